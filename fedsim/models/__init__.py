"""The model zoo: every client model is an extractor with K features and a head.

`build` is all that the rest of fedsim needs. It draws from torch's global generator, so callers wrap it in
`Streams.seeded`. Importing this package does not import torchvision.
"""

from fedsim.config import Model
from fedsim.models import groups
from fedsim.models.base import SplitModel, feature_mapping
from fedsim.models.groups import group_names
from fedsim.models.heads import make_head

__all__ = ["SplitModel", "architecture", "build", "group_names"]


def architecture(config: Model, client: int) -> str:
    """The name of the model that this client gets; itself a valid group."""
    return groups.entry(config, client).name


def build(config: Model, client: int, input_shape: tuple[int, ...], num_classes: int) -> SplitModel:
    """The model of client i for inputs of this shape, (ch, h, w) or (D,), with fresh weights."""
    entry = groups.entry(config, client)
    backbone = groups.MODELS[entry.model].make(entry.model, tuple(input_shape), config)
    kind = entry.mapping if config.feature_mapping == "published" else config.feature_mapping
    mapping = feature_mapping(kind, backbone.dim, config.feature_dim)
    head = make_head(entry, config, num_classes)
    return SplitModel(entry.name, backbone, mapping, head, config.feature_dim)
