"""The model zoo, and models from elsewhere: every client model is an extractor with K features and a head.

`build` is all that the rest of fedsim needs. It draws from torch's global generator, so callers wrap it in
`Streams.seeded`. Importing this package does not import torchvision.
"""

import msgspec
import torch
from torch import nn

from fedsim.config import Model
from fedsim.data.inputs import described
from fedsim.errors import UserError
from fedsim.models import groups, own
from fedsim.models.base import SplitModel, feature_mapping
from fedsim.models.groups import group_names
from fedsim.models.heads import make_head

__all__ = ["SplitModel", "architecture", "build", "group_names", "refuse_unheeded"]


def architecture(config: Model, client: int) -> str:
    """The name of the model that this client gets."""
    return groups.entry(config, client).name


def build(config: Model, client: int, input_shape: tuple[int, ...], num_classes: int) -> SplitModel:
    """The model of client i for inputs of this shape, (ch, h, w) or (D,), with fresh weights."""
    entry = groups.entry(config, client)
    if entry.is_elsewhere:
        parts = own.build(entry.model, input_shape, num_classes, config)
    else:
        parts = own.Parts(groups.MODELS[entry.model].make(entry.model, described(input_shape), config))
    kind = entry.mapping if config.feature_mapping == "published" else config.feature_mapping
    mapping = feature_mapping(kind, parts.backbone.dim, config.feature_dim)
    head = make_head(entry, config, num_classes) if parts.head is None else _own_head(entry.name, parts, config)
    return SplitModel(entry.name, parts.backbone, mapping, head, config.feature_dim)


OF_SOME_MODELS = ("feature_cut", "cifar_stem")
"""Options that only some architectures know."""


def refuse_unheeded(
    config: Model, other_groups: list[str], input_shape: tuple[int, ...], num_classes: int
) -> None:
    """UserError for an option that leaves every model of the run as it is. `other_groups` are models that the run
    has beside its clients' own, such as the server's."""

    def described_models(config: Model) -> list[str]:
        num_entries = len(groups.entries(config.group))
        return [str(build(config, entry, input_shape, num_classes)) for entry in range(num_entries)]

    for option in OF_SOME_MODELS:
        value, default = getattr(config, option), getattr(Model(), option)
        if value == default:
            continue
        for group in (config.group, *other_groups):
            wanted = msgspec.structs.replace(config, group=group)
            try:
                plain = described_models(msgspec.structs.replace(wanted, **{option: default}))
            except UserError:
                break  # only the option makes it possible
            if plain != described_models(wanted):
                break
        else:
            raise UserError(
                f"model.{option} = {msgspec.json.encode(value).decode()} has no effect on {config.group}: none of "
                "these models knows it; leave it out, or choose others."
            )


def _own_head(name: str, parts: own.Parts, config: Model) -> nn.Module:
    """It stands behind the mapping, so it must take K features."""
    assert parts.head is not None
    try:
        with torch.no_grad():
            parts.head(torch.zeros(own.BATCH, config.feature_dim))
    except RuntimeError:
        raise UserError(
            f"the head of {name} takes {parts.backbone.dim} features, but model.feature_dim is "
            f"{config.feature_dim}; set it to {parts.backbone.dim}, or let the model take feature_dim as an "
            "argument and give its head as many."
        ) from None
    return nn.Sequential(parts.head, nn.ReLU()) if config.relu_logits else parts.head
