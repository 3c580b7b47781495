"""Names of models and groups, and which client gets what.

A group is a list of entries, and client i gets entry i mod X. An entry is a model's name, and `:256` after it
puts a hidden layer of 256 units into the head, as in the groups with heterogeneous classifiers (HtC4). Users
write their own groups in the same way: `model.group = "CNN,ResNet18:256"`. Models from elsewhere (`own.py`) stand
in them like any other: `CNN,./nets.py:Small,timm:mobilenetv3_small_050`.
"""

from dataclasses import dataclass
from functools import cache

from fedsim.config import Model
from fedsim.errors import UnknownName, UserError
from fedsim.models import cnn, own, resnet_small, sensors, text, torchvision_zoo
from fedsim.own import spelling

MODELS = cnn.MODELS | resnet_small.MODELS | torchvision_zoo.MODELS | text.MODELS | sensors.MODELS

_HTFE8 = "CNN,GoogLeNet,MobileNetV2,ResNet18,ResNet34,ResNet50,ResNet101,ResNet152"

GROUPS: dict[str, str] = {
    "HtFE2": "CNN,ResNet18",
    "HtFE3": "ResNet10,ResNet18,ResNet34",
    "HtFE4": "CNN,GoogLeNet,MobileNetV2,ResNet18",
    "HtFE8": _HTFE8,
    "HtFE9": "ResNet4,ResNet6,ResNet8,ResNet10,ResNet18,ResNet34,ResNet50,ResNet101,ResNet152",
    "HtM10": f"{_HTFE8},ViT-B/16,ViT-B/32",
    "HtCNN8": ",".join(cnn.HTCNN8),
    "Res34-HtC4": "ResNet34,ResNet34:512,ResNet34:256,ResNet34:128",
    # Client i has extractor i mod 8 and head i mod 4.
    "HtFE8-HtC4": (
        "CNN,GoogLeNet:512,MobileNetV2:256,ResNet18:128,ResNet34,ResNet50:512,ResNet101:256,ResNet152:128"
    ),
    "Ht0": "ResNet8,MobileNetV2,ShuffleNetV2,EfficientNetB0",
    "FedProtoKD": "ResNet18,ResNet34,ResNet50,ResNet101,ResNet152",
    "HtFE-img-5": "GoogLeNet,MobileNetV2,ResNet18,ResNet34,ResNet50",
    "HtFE-txt-2": "fastText,LogisticRegression",
    "HtFE-txt-4": "fastText,LogisticRegression,LSTM,BiLSTM",
    "HtFE-txt-5-1": ",".join(f"Transformer-8x{layers}" for layers in text.SIZES),
    "HtFE-txt-5-2": ",".join(f"Transformer-{heads}x4" for heads in text.SIZES),
    "HtFE-txt-5-3": ",".join(f"Transformer-{both}x{both}" for both in text.SIZES),
    "HtFE-txt-6": "fastText,LSTM,BiLSTM,Transformer-8x2,LogisticRegression,GRU",
    "HtFE-sen-2": "HARCNN,HARCNN-s2",
    "HtFE-sen-3": "HARCNN,HARCNN-s2,HARCNN-s3",
    "HtFE-sen-5": "HARCNN,HARCNN-s2,HARCNN-s3,HARCNN1,HARCNN3",
    "HtFE-sen-8": "HARCNN,HARCNN-s2,HARCNN-s3,HARCNN1,HARCNN1-s2,HARCNN1-s3,HARCNN3,HARCNN3-s2",
    "MLPs": "MLP-100,MLP-500-100,MLP-1000-500-100,MLP-1000-500-200-100",
    "MLP_1layer": "MLP-200-100,MLP-500-100",
    "MLP_layers": "MLP-500-100,MLP-1000-500-100,MLP-1000-500-200-100",
}

ALIASES = {f"HtFE-img-{name}": f"HtFE{name}" for name in ("2", "3", "4", "8", "9", "8-HtC4")}
"""Other names under which users of HtFLlib know a group."""

PROJECTING_GROUPS = {"FedProtoKD"}
"""Published with a learnable projection to K; all others pool."""


@dataclass(frozen=True)
class Entry:
    """One architecture of a group: a model, hidden layers of its head, how its features become K."""

    model: str
    head_hidden: tuple[int, ...]
    mapping: str  # "pool" or "project"

    @property
    def is_elsewhere(self) -> bool:
        return self.model not in MODELS

    @property
    def name(self) -> str:
        """What people call it, and the name by which its first weights are drawn."""
        return spelling.label(self.model) if self.is_elsewhere else self.group

    @property
    def group(self) -> str:
        """As a group of one."""
        return ":".join((self.model, *map(str, self.head_hidden)))


def group_names() -> list[str]:
    """Everything that `model.group` may be, or list."""
    return [*GROUPS, *MODELS]


def is_known(name: str) -> bool:
    """Whether this is a group or a model of the zoo."""
    return _key(name.partition(":")[0]) in _NAMES


def label(group: str) -> str:
    """A group as people call it, wherever files of own models lie."""
    return ",".join(spelling.label(part) for part in group.split(","))


@cache
def entries(group: str) -> tuple[Entry, ...]:
    """The entries of a published group, a single model, or a comma separated list of both."""
    found: list[Entry] = []
    for part in group.split(","):
        name, _, hidden = part.strip().partition(":")
        known = _NAMES.get(_key(name))
        if known is None and own.is_elsewhere(part.strip()):
            found.append(Entry(part.strip(), (), "pool"))
            continue
        if known is None:
            raise UnknownName("model group", name, group_names())
        if known in GROUPS:
            if hidden:
                raise UserError(
                    f"{part.strip()!r} sets a head for the whole group {known}; set it for single models."
                )
            mapping = "project" if known in PROJECTING_GROUPS else "pool"
            found += [
                Entry(item.model, item.head_hidden, mapping)  # the list itself says nothing of mappings
                for item in entries(GROUPS[known])
            ]
        else:
            found.append(Entry(known, _head_hidden(part, hidden), "pool"))
    return tuple(found)


def entry(config: Model, client: int) -> Entry:
    """What client i gets."""
    found = entries(config.group)
    return found[client % len(found)]


def _head_hidden(part: str, hidden: str) -> tuple[int, ...]:
    if not hidden:
        return ()
    if not hidden.isdecimal() or int(hidden) < 1:
        raise UserError(f"{part.strip()!r} wants a number of units after the colon, as in ResNet34:256.")
    return (int(hidden),)


def _key(name: str) -> str:
    """Spellings that mean the same: ViT-B/16 and vit_b_16, MobileNetV2 and mobilenet_v2."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


_NAMES = {_key(name): name for name in group_names()} | {_key(name): known for name, known in ALIASES.items()}
