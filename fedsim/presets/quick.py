"""The small scale: one rule that makes every experiment of the papers fit a laptop, and says so.

What stays: methods and their options, data sets, partitions, numbers of clients, feature dimensions. What shrinks:
rounds, samples, batches and models. So numbers are far below the papers', and only what is better than what may be
compared, with care.
"""

import math

from msgspec.structs import replace

from fedsim.config import Experiment
from fedsim.data.sources.known import sizes_of

NUM_ROUNDS = 10
MIN_ROUNDS = 5
SAMPLES_PER_CLIENT = 100
MIN_SAMPLES = 20
BATCH_SIZE = 10
PUBLIC_SAMPLES = 200

GROUPS = {
    "HtFE2": "CNN,ResNet4",
    "HtFE3": "ResNet4,ResNet6,ResNet8",
    "HtFE4": "CNN,ResNet4,CNN4,ResNet6",
    "HtFE8": "CNN,ResNet4,CNN4,ResNet6,CNN6,ResNet8,CNN8,ResNet10",
    "HtFE9": "CNN,ResNet4,CNN4,ResNet6,CNN6,ResNet8,CNN8,ResNet10,CNN3",
    "HtM10": "CNN,ResNet4,CNN4,ResNet6,CNN6,ResNet8,CNN8,ResNet10,CNN4:256,ResNet4:128",
    "HtFE8-HtC4": "CNN,ResNet4:512,CNN4:256,ResNet6:128,CNN6,ResNet8:512,CNN8:256,ResNet10:128",
    "Res34-HtC4": "ResNet4,ResNet4:512,ResNet4:256,ResNet4:128",
    "Ht0": "ResNet4,CNN,ResNet6,CNN4",
    "FedProtoKD": "ResNet4,ResNet6,ResNet8,ResNet10,CNN",
    "ResNet10": "ResNet4",
    "ResNet18": "ResNet6",
    "ResNet34": "ResNet8",
}
"""Lighter stand-ins with as many architectures and the same kinds of heads."""

RULE = (
    f"at most {NUM_ROUNDS} passes over the data in at least {MIN_ROUNDS} rounds, {SAMPLES_PER_CLIENT} samples per "
    f"client (all classes alike), batches of {BATCH_SIZE}, at most {PUBLIC_SAMPLES} public samples, light models "
    "in place of large ones (HtCNN8 and MLP stay), the embedded generator in place of published ones"
)


def shrink(experiment: Experiment) -> Experiment:
    """The same experiment at the small scale."""
    run, data, model, train = experiment.run, experiment.data, experiment.model, experiment.train
    passes = max(MIN_ROUNDS, NUM_ROUNDS // train.local_epochs)
    method = dict(experiment.method)
    if "server_model" in method:
        method["server_model"] = GROUPS.get(method["server_model"], method["server_model"])
    if "generator" in method:
        method["generator"] = "tiny"
    return replace(
        experiment,
        run=replace(run, rounds=min(run.rounds, passes)),
        data=replace(
            data,
            samples_per_class=data.samples_per_class or _samples_per_class(experiment),
            min_samples=min(data.min_samples or MIN_SAMPLES, MIN_SAMPLES),
            public_samples=min(data.public_samples, PUBLIC_SAMPLES),
        ),
        model=replace(model, group=GROUPS.get(model.group, model.group)),
        train=replace(train, batch_size=min(train.batch_size, BATCH_SIZE)),
        method=method,
    )


def _samples_per_class(experiment: Experiment) -> int:
    """0, which is all of them, for data of the user's own."""
    sizes = sizes_of(experiment.data.dataset)
    if sizes is None:
        return 0
    wanted = math.ceil(SAMPLES_PER_CLIENT * experiment.run.clients / sizes.num_classes)
    return min(wanted, sizes.smallest_class)
