"""The public samples as both sides have them, and what models say of them.

Public samples are unlabelled training samples that no client holds (`data.public_samples`), the same for everyone
and always in the same order. A client that owns the data set knows them by their numbers, so nothing travels;
otherwise they are sent once, at set-up. Either way both sides compute with the same bits. They come from the data
set that clients hold the rest of, so their classes cannot be others.

Dimensions: B batch, C classes, K features, P public samples, k some of them.
"""

from collections.abc import Iterator
from math import prod
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from fedsim.config import Train
from fedsim.contract import Arrays, Field, Fields, Payload
from fedsim.data import Dataset, Subset
from fedsim.data.feeding import to_device
from fedsim.data.inputs import described
from fedsim.errors import UserError
from fedsim.learning.evaluation import outputs
from fedsim.method import Batch, ClientContext, Instead, Setting, Task, Upload, filled
from fedsim.models import SplitModel

DEFAULTS: dict[str, dict[str, int]] = {"data": {"public_samples": 2500, "global_test": True}}
"""What methods with public samples ask of the data unless the user says otherwise."""
SMALL_SHARE = 5
"""Of a small data set one training sample in so many is public."""
NEEDS = ("public samples", "equal or projected feature sizes")

Source = Literal["known", "sent"]


# ------------------------------------------------------------------------------------------- at set-up


def setup_fields(source: Source, dtype: str) -> Fields:
    """What goes down once: all public samples, a row each."""
    return {"public": Field(Payload.SAMPLES, "Np inputs", dtype)} if source == "sent" else {}


def setup_arrays(source: Source, dtype: str, public: Subset) -> Arrays:
    if source == "known":
        return {}
    if dtype != "float32":  # as they are stored
        rows = np.take(public.dataset.inputs, public.indices, axis=0)
    else:
        rows = torch.cat([inputs for inputs, _ in public.batches(len(public))]).numpy()
    return {"public": rows.reshape(len(public), -1)}


def received(public_rows: np.ndarray, task: Task) -> Subset:
    """The samples that came with the set-up. Bytes are pixels, whole numbers tokens, floats what models read."""
    sample = described(task.input_shape)
    shape: tuple[int, ...] = sample
    if public_rows.dtype == np.uint8:
        channels, height, width = sample
        shape = (height, width, channels)
    num = len(public_rows)
    labels = np.full(num, -1, np.int64)
    inputs = public_rows.reshape(num, *shape)
    dataset = Dataset(
        "public", inputs, labels, task.num_classes, num, kind=sample.kind, vocabulary=sample.vocabulary
    )
    return Subset(dataset, np.arange(num), labelled=False)


def sizes(setting: Setting) -> dict[str, int]:
    """Letters for contracts: Np public samples of so many inputs."""
    return {"Np": setting.experiment.data.public_samples, "inputs": prod(setting.task.input_shape)}


def adapt(setting: Setting) -> Iterator[Instead]:
    """A small data set cannot spare as many as published."""
    if is_small(setting):
        num_train = setting.federation.num_train
        why = f"{setting.federation.dataset.name} has {num_train:,} training samples"
        yield Instead("data", "public_samples", num_train // SMALL_SHARE, why)


def is_small(setting: Setting) -> bool:
    """Whether the published number of public samples is more than half of all that could be public."""
    return DEFAULTS["data"]["public_samples"] > setting.federation.num_train / 2


def check(setting: Setting) -> None:
    """Raises UserError where a method with public samples that compares features cannot work."""
    check_samples(setting)
    for client in range(setting.task.num_clients):
        require_comparable(setting.model(client), setting.experiment.method_name)


def check_samples(setting: Setting) -> None:
    """Raises UserError where a method with public samples cannot work."""
    name, config = setting.experiment.method_name, setting.config
    if not setting.experiment.data.public_samples:
        raise UserError(f"{name} needs public samples, and data.public_samples = 0; set it, to 2500 as published.")
    used = setting.dimensions.get("kept", setting.dimensions["Np"])
    if used < 2:  # batch normalisation cannot train on one
        raise UserError(f"{name} would learn from {used} public sample; raise data.public_samples to 2 or more.")
    dataset = setting.federation.dataset
    stored = str(dataset.inputs.dtype)
    fitting = "int32" if stored == "int32" else "float32"  # images may travel as bytes too
    if config.public_data == "sent" and config.public_dtype not in (stored, fitting):
        raise UserError(
            f"method.public_dtype = {config.public_dtype} does not fit samples of {dataset.name}, which are "
            f"{dataset.input_shape}; use {fitting}."
        )


def require_comparable(model: SplitModel, method: str) -> None:
    """Features that were made equally long by pooling have nothing to do with each other."""
    if isinstance(model.extractor[1], nn.AdaptiveAvgPool1d):
        raise UserError(
            f"{model.name} has {model.backbone_dim} features and {method} compares {model.feature_dim}; set "
            "model.feature_mapping = project, or model.feature_dim to the size that all models have."
        )


# ------------------------------------------------------------------------------------------ in each round


class PublicSamples:
    """As a client has them: in its own copy of the data set, or as they were sent."""

    def __init__(self, context: ClientContext):
        self.context = context
        # Those that are sent are the same to the bit; until then, its own let a client's work be counted.
        self.all = context.public

    def receive(self, setup: Arrays) -> None:
        self.all = received(setup["public"], self.context.task)

    def subset(self, rows_k: np.ndarray | None = None) -> Subset:
        """All of them, or some."""
        assert self.all is not None, "the check lets no experiment without them through"
        return self.all if rows_k is None else some(self.all, rows_k)

    def logits(self) -> np.ndarray:
        """What the client's model says of all of them, (P, C)."""
        return public_logits(self.context.model, self.subset(), self.context.device).cpu().numpy()


def some(public: Subset, rows_k: np.ndarray) -> Subset:
    return Subset(public.dataset, public.indices[rows_k], labelled=False)


def public_logits(model: nn.Module, public: Subset, device: torch.device) -> Tensor:
    """(P, C), in evaluation mode."""
    return torch.cat([logits_BC for logits_BC, _ in outputs(model, public, device)])


def public_features(model: SplitModel, public: Subset, device: torch.device) -> Tensor:
    """(P, K), in evaluation mode."""
    return torch.cat([features_BK for features_BK, _ in outputs(model, public, device, forward=model.features)])


def features_and_logits(model: SplitModel, public: Subset, device: torch.device) -> tuple[Tensor, Tensor]:
    """(P, K) and (P, C) in one pass, in evaluation mode."""

    def both(inputs: Tensor) -> Tensor:
        features_BK = model.features(inputs)
        return torch.cat([features_BK, model.head(features_BK)], dim=1)

    both_P = torch.cat([both_B for both_B, _ in outputs(model, public, device, forward=both)])
    return both_P[:, : model.feature_dim], both_P[:, model.feature_dim :]


def stacked(uploads: list[Upload], name: str, device: torch.device) -> Tensor:
    """(M, …): the arrays of this name of all clients that sent something."""
    return torch.from_numpy(np.stack([upload.arrays[name] for upload in filled(uploads)])).to(device)


def rows_of(batch: Batch, device: torch.device) -> Tensor:
    """Which samples of the subset a batch holds, to look up what is known of them."""
    return to_device(batch.rows_B, device)


def training(train: Train, epochs: int, batch_size: int, lr: float) -> Train:
    """Public samples are few and nobody's: they are shuffled, and all are used but one that is left over alone."""
    return msgspec.structs.replace(
        train, local_epochs=epochs, batch_size=batch_size, lr=lr, shuffle=True, drop_last=False
    )
