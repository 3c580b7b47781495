"""The smaller scales: for each one rule that makes every experiment of the papers fit less time, and says so.

What stays: methods, data sets, partitions, numbers of clients, feature dimensions. What shrinks: rounds, samples,
images and models. Quick is to see that something runs. Laptop is to see methods differ: it takes minutes to hours
for a table on two cores. Its rule, rounds and seeds were fixed before any of its results was looked at.
"""

import math
from dataclasses import dataclass, field

from msgspec.structs import replace

from fedsim.config import Experiment
from fedsim.data.sources.known import sizes_of

LIGHT = {
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


@dataclass(frozen=True)
class Scale:
    """How much smaller than the papers."""

    name: str
    rounds: int
    """Passes over the data, in at least `min_rounds` rounds."""
    min_rounds: int
    samples: int
    """At most, of all classes alike; for each client where `per_client` says so."""
    public_samples: int
    per_client: bool = False
    batch_size: int | None = None
    """At most; None: the paper's. The same of samples that a client must have."""
    min_samples: int | None = None
    image_size: int = 0
    """Side of larger images; 0: as they are."""
    upscaling: float = 1.0
    """Factor on ProtoNorm's γ."""
    groups: dict[str, str] = field(default_factory=lambda: LIGHT)

    @property
    def rule(self) -> str:
        """All that it changes, in words."""
        each = "per client" if self.per_client else "in all"
        parts = [
            f"at most {self.rounds} passes over the data in at least {self.min_rounds} rounds",
            f"at most {self.samples:,} samples {each} (all classes alike)",
            f"batches of at most {self.batch_size}" if self.batch_size else "",
            f"images of at most {self.image_size}x{self.image_size} pixels" if self.image_size else "",
            f"at most {self.public_samples} public samples",
            "light models in place of large ones (HtCNN8 and MLP stay)",
            f"ProtoNorm's γ times {self.upscaling:g}, as these have no batch normalisation"
            if self.upscaling != 1
            else "",
            "the embedded generator in place of published ones, unless --generators names these",
        ]
        return ", ".join(filter(None, parts))

    def shrink(self, experiment: Experiment) -> Experiment:
        """The same experiment at this scale."""
        run, data, model, train = experiment.run, experiment.data, experiment.model, experiment.train
        least = data.min_samples
        if self.min_samples:
            least = min(least or self.min_samples, self.min_samples)
        passes = max(self.min_rounds, self.rounds // train.local_epochs)
        method = dict(experiment.method)
        if "server_model" in method:
            method["server_model"] = self.groups.get(method["server_model"], method["server_model"])
        if "generator" in method:
            method["generator"] = "tiny"
        if method["name"] == "protonorm" and "prototype_scale" in method:
            method["prototype_scale"] *= self.upscaling
        return replace(
            experiment,
            run=replace(run, rounds=min(run.rounds, passes)),
            data=replace(
                data,
                samples_per_class=data.samples_per_class or self._samples_per_class(experiment),
                min_samples=least,
                public_samples=min(data.public_samples, self.public_samples),
                image_size=data.image_size or self._image_size(experiment),
            ),
            model=replace(model, group=self.groups.get(model.group, model.group)),
            train=replace(train, batch_size=min(train.batch_size, self.batch_size or train.batch_size)),
            method=method,
        )

    def _samples_per_class(self, experiment: Experiment) -> int:
        """0, which is all of them, for data of the user's own or few enough."""
        sizes = sizes_of(experiment.data.dataset)
        wanted = self.samples * (experiment.run.clients if self.per_client else 1)
        if sizes is None or (sizes.num_samples <= wanted and not self.per_client):
            return 0
        return min(math.ceil(wanted / sizes.num_classes), sizes.smallest_class)

    def _image_size(self, experiment: Experiment) -> int:
        sizes = sizes_of(experiment.data.dataset)
        is_large = sizes is not None and len(sizes.input_shape) == 3 and sizes.input_shape[1] > self.image_size
        return self.image_size if is_large else 0


QUICK = Scale("quick", 10, 5, 100, 200, per_client=True, batch_size=10, min_samples=20)

LAPTOP = Scale(
    "laptop", 60, 20, 20_000, 500, image_size=32, upscaling=0.1,
    groups=LIGHT | {"HtFE8": "CNN2,CNN4,CNN6,CNN8", "Ht0": "CNN,ResNet4,ResNet6,ResNet8"},
)  # fmt: skip

SCALES = {scale.name: scale for scale in (QUICK, LAPTOP)}
"""Beside the papers' own, which is called `paper`."""
