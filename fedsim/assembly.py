"""From an experiment to the two halves of its method, ready to work. Used by every kind of node alike."""

import torch

from fedsim import models
from fedsim.config import Experiment
from fedsim.contract import Contract
from fedsim.costs import rehearsal
from fedsim.data import Federation
from fedsim.learning.stopwatch import Stopwatch
from fedsim.method import Client, ClientContext, Server, ServerContext, Setting, Task
from fedsim.seeds import Streams

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


def make_client(experiment: Experiment, federation: Federation, client: int, device: torch.device = CPU) -> Client:
    """A client as it is before the first round. Clients of one architecture start from the same weights."""
    if experiment.run.rehearsal:
        return rehearsal.Client(setting_of(experiment, federation), client)
    streams = Streams(experiment.run.seed)
    task = task_of(experiment, federation)
    with streams.seeded(f"model-init/{models.architecture(experiment.model, client)}"):
        model = models.build(experiment.model, client, task.input_shape, task.num_classes)
    context = ClientContext(
        client=client,
        experiment=experiment,
        config=experiment.method_config(),
        task=task,
        model=model.to(device),
        data=federation.client(client),
        streams=streams,
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
    contract_of(experiment)
    federation.client(0)
    for client in range(experiment.run.clients):
        setting.model(client)
    module = experiment.method_module
    if hasattr(module, "check"):
        module.check(setting)
    return federation
