"""From an experiment to the two halves of its method, ready to work. Used by every kind of node alike."""

import msgspec
import numpy as np
import torch

from fedsim import models
from fedsim.config import Experiment
from fedsim.contract import Contract
from fedsim.costs import rehearsal
from fedsim.data import Federation
from fedsim.data.dataset import ClientData
from fedsim.encodings import Chosen, choose
from fedsim.errors import UserError
from fedsim.learning.stopwatch import Stopwatch
from fedsim.method import Client, ClientContext, Server, ServerContext, Setting, Task
from fedsim.models import SplitModel, groups
from fedsim.seeds import Streams
from fedsim.world import devices, links

CPU = torch.device("cpu")


def task_of(experiment: Experiment, federation: Federation) -> Task:
    return Task(
        num_clients=experiment.run.clients,
        num_classes=federation.num_classes,
        feature_dim=experiment.model.feature_dim,
        input_shape=federation.input_shape,
    )


def setting_of(experiment: Experiment, federation: Federation) -> Setting:
    if experiment.run.rehearsal:
        federation = rehearsal.federation_of(experiment)
    return Setting(experiment, experiment.method_config(), task_of(experiment, federation), federation)


def contract_of(experiment: Experiment) -> Contract:
    return experiment.method_module.contract(experiment.method_config())


def encodings_of(experiment: Experiment) -> Chosen:
    """In what the method's arrays travel; UserError where that would break the method or change nothing."""
    chosen = choose(contract_of(experiment), experiment.wire_config(), experiment.method_name)
    for fields in chosen.values():
        for encoding in fields.values():
            if experiment.run.rehearsal and encoding.num_bytes((1, 1), np.dtype("float32")) is None:
                raise UserError(
                    f"a rehearsal cannot measure {encoding.name}: how many bytes it sends depends on the values, "
                    "and a rehearsal sends zeros; leave it out, or run the method itself."
                )
    return chosen


def first_model(experiment: Experiment, federation: Federation, client: int) -> SplitModel:
    """A client's model as it is before the first round: the same weights for all clients of one architecture."""
    task = task_of(experiment, federation)
    with Streams(experiment.run.seed).seeded(f"model-init/{models.architecture(experiment.model, client)}"):
        return models.build(experiment.model, client, task.input_shape, task.num_classes)


def make_client(
    experiment: Experiment,
    federation: Federation,
    client: int,
    device: torch.device = CPU,
    model: SplitModel | None = None,
    data: ClientData | None = None,
) -> Client:
    """A client as it is before the first round. `model` is a `first_model` that whoever calls has ready; `data`
    stand in for what the client holds."""
    if experiment.run.rehearsal:
        return rehearsal.Client(setting_of(experiment, federation), client)
    model = model or first_model(experiment, federation, client)
    context = ClientContext(
        client=client,
        experiment=experiment,
        config=experiment.method_config(),
        task=task_of(experiment, federation),
        model=model.to(device),
        data=data or federation.client(client),
        streams=Streams(experiment.run.seed),
        device=device,
        public=federation.public if experiment.data.public_samples else None,
        global_test=federation.global_test if experiment.data.global_test else None,
    )
    return experiment.method_module.Client(context)


def make_server(
    experiment: Experiment,
    federation: Federation,
    device: torch.device = CPU,
    stopwatch: Stopwatch | None = None,
) -> Server:
    if experiment.run.rehearsal:
        return rehearsal.Server(setting_of(experiment, federation))
    context = ServerContext(
        experiment=experiment,
        config=experiment.method_config(),
        task=task_of(experiment, federation),
        federation=federation,
        streams=Streams(experiment.run.seed),
        device=device,
        stopwatch=stopwatch or Stopwatch(),
    )
    return experiment.method_module.Server(context)


def check(experiment: Experiment) -> Federation:
    """Everything that can be wrong with an experiment is found here, before any process is started."""
    federation = rehearsal.federation_of(experiment) if experiment.run.rehearsal else Federation(experiment)
    setting = setting_of(experiment, federation)
    encodings_of(experiment)
    links.of_clients(experiment)
    federation.client(0)
    for client, device in enumerate(devices.of_clients(experiment)):
        model = setting.model(client)
        devices.require_memory(device, client, model.name, sum(p.numel() for p in model.parameters()))
    _refuse_unheeded(setting)
    module = experiment.method_module
    if hasattr(module, "check"):
        module.check(setting)
    return federation


def _refuse_unheeded(setting: Setting) -> None:
    """Models that a method has beside its clients' are options of it."""
    named = [value for value in msgspec.to_builtins(setting.config).values() if isinstance(value, str)]
    others, task = [value for value in named if groups.is_known(value)], setting.task
    with torch.device("meta"):
        models.refuse_unheeded(setting.experiment.model, others, task.input_shape, task.num_classes)


def notes(experiment: Experiment, federation: Federation) -> list[str]:
    """What a method has to say of an experiment that is sound, before it starts."""
    module = experiment.method_module
    if experiment.run.rehearsal or not hasattr(module, "notes"):
        return []
    return list(module.notes(setting_of(experiment, federation)))
