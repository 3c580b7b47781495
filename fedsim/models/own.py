"""Models from elsewhere: a user's own classes and factories, and those of timm and torchvision by their names.

    ./nets.py:Small                 called with what its signature asks for by name (`OFFERED`)
    timm:mobilenetv3_small_050      timm.create_model
    torchvision:convnext_tiny       torchvision.models.get_model
    hf:./folder                     an encoder of texts from a local Hugging Face folder (`hf_encoder.py`)

All become what the zoo's models are: a backbone that ends in d features, a mapping from d to K, and a head from K
to the classes. Where they come apart is found with a small batch: the linear layer that is called last gives way
to the zoo's head. A model that has both `features` and `head` says it itself, and keeps its head.
"""

import copy
import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedsim.compat import import_torchvision
from fedsim.config import Model
from fedsim.data.inputs import InputShape, described, example_batch
from fedsim.errors import UnknownName, UserError
from fedsim.models import hf_encoder
from fedsim.models.base import SAY_WHAT_NUMBERS_ARE, Backbone, require_kind, stem_conv
from fedsim.own import loading, spelling

OFFERED = ("num_classes", "in_channels", "input_shape", "feature_dim", "vocabulary")
"""What a class or factory may take, by these names: classes, the first number of a sample's shape, that shape
without the batch, K, and the number of tokens where samples are texts (0 elsewhere)."""

TIMM, TORCHVISION, HF = "timm", "torchvision", "hf"
BATCH = 2
_SIDES = (32, 48, 64, 96, 128, 160, 224, 256, 299, 384)


@dataclass(frozen=True)
class Parts:
    """A model taken apart."""

    backbone: Backbone
    head: nn.Module | None = None
    """(B, d) → (B, C), where the model names it."""


@dataclass(frozen=True)
class Wish:
    """What a model is made for."""

    input_shape: InputShape
    num_classes: int
    feature_dim: int

    def offered(self) -> dict[str, Any]:
        shape = self.input_shape
        values = (self.num_classes, shape[0], tuple(shape), self.feature_dim, shape.vocabulary)
        return dict(zip(OFFERED, values, strict=True))

    @property
    def size(self) -> str:
        return "x".join(map(str, self.input_shape)) + " tokens" * (self.input_shape.kind == "tokens")


def is_elsewhere(text: str) -> bool:
    """Whether an entry of a group names a model that is not of the zoo."""
    place, name = spelling.split(text)
    return place in (TIMM, TORCHVISION, HF) or (spelling.names_code(text) and not name.isdecimal())


def build(text: str, input_shape: tuple[int, ...], num_classes: int, config: Model) -> Parts:
    """Made on the CPU whatever the device, because it must be tried. On torch's meta device, where experiments are
    checked before they start, the result has no memory, and the model is also tried as in training.
    """
    wish = Wish(described(input_shape), num_classes, config.feature_dim)
    device = torch.empty(0).device
    is_check = device.type == "meta"
    with torch.device("cpu"), torch.random.fork_rng(devices=[], enabled=is_check):
        if text.startswith(f"{HF}:"):
            encoder = hf_encoder.build(text, wish.input_shape)
            encoder.module.to(device)
            return Parts(encoder)
        model = Candidate(spelling.label(text), _file(text), wish)
        parts = model.take_apart(_make(text, wish))
        if is_check:
            model.try_training(parts)
    if is_check:
        parts.backbone.module.to(device)
        if parts.head is not None:
            parts.head.to(device)
    return parts


# ------------------------------------------------------------------------------------------------------ making


def _make(text: str, wish: Wish) -> nn.Module:
    place, name = spelling.split(text)
    if place in (TIMM, TORCHVISION):
        require_kind(text, wish.input_shape, "image")
    if place == TIMM:
        return _from_timm(name, wish)
    if place == TORCHVISION:
        return _from_torchvision(name, wish)
    return _from_own_code(text, place, name, wish)


def _from_own_code(text: str, place: str, name: str, wish: Wish) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # what a file draws when it is imported must not shift its weights
        maker = loading.load(place, name)
    if isinstance(maker, nn.Module):
        raise UserError(
            f"{text} is a network already, and every client needs its own; give its class, or a function that "
            "makes it."
        )
    if not callable(maker) or (isinstance(maker, type) and not issubclass(maker, nn.Module)):
        raise UserError(f"{text} is no torch.nn.Module; give such a class, or a function that makes one.")
    with loading.explained(f"{text} cannot be made", loading.file_of(place)):
        network = maker(**_arguments(text, maker, wish))
    if not isinstance(network, nn.Module):
        raise UserError(f"{text} returns {type(network).__name__}, not a torch.nn.Module; return the network.")
    return network


def _arguments(text: str, maker: Callable[..., object], wish: Wish) -> dict[str, Any]:
    offered, given = wish.offered(), {}
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            given[parameter.name] = offered[parameter.name]
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise UserError(
                f"{text} wants {parameter.name!r}, which nobody gives; give it a default value, or use one of "
                f"{', '.join(OFFERED)}, which it is given."
            )
    return given


def _from_timm(name: str, wish: Wish) -> nn.Module:
    try:
        import_torchvision()  # which timm imports, and which may need our help
        timm = importlib.import_module("timm")
    except ImportError as error:
        raise UserError(f"timm:{name} needs timm ({error}); run: pip install 'fedsim-htfl[zoo]'.") from None
    _require_known(TIMM, name, timm.list_models())
    made: nn.Module = timm.create_model(
        name, pretrained=False, num_classes=wish.num_classes, in_chans=wish.input_shape[0]
    )
    return made


def _from_torchvision(name: str, wish: Wish) -> nn.Module:
    library = import_torchvision().models
    _require_known(TORCHVISION, name, library.list_models(module=library))
    network: nn.Module = library.get_model(name, weights=None, num_classes=wish.num_classes)
    if wish.input_shape[0] != 3:
        path, conv = next((path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Conv2d))
        _replace(network, path, stem_conv(conv, wish.input_shape[0], small_images=False))
    return network


def _require_known(library: str, name: str, known: list[str]) -> None:
    """There are hundreds, so only the nearest are told."""
    if name not in known:
        raise UnknownName(f"model in {library} called", name, difflib.get_close_matches(name, known, 3, 0.3))


def _file(text: str) -> Path:
    """Where the line of an error is looked for."""
    place, _ = spelling.split(text)
    return Path(place) if place in (TIMM, TORCHVISION) else loading.file_of(place)


# ------------------------------------------------------------------------------------------------ taking apart


@dataclass(frozen=True)
class Candidate:
    """One model that is tried before it is used; what is wrong is said in one sentence."""

    name: str
    file: Path
    wish: Wish

    def take_apart(self, network: nn.Module) -> Parts:
        was_training = network.training
        network.eval()
        with torch.no_grad():
            logits = self._forward(network)
            self._check_logits(logits)
            parts = self._given(network, logits) or self._found(network)
        parts.backbone.module.train(was_training)
        return parts

    def _given(self, network: Any, logits: torch.Tensor) -> Parts | None:
        """Only where `features` and then `head` is all that the model does: in some libraries there is more."""
        head = getattr(network, "head", None)
        if not isinstance(head, nn.Module) or not callable(getattr(network, "features", None)):
            return None
        try:
            features = network.features(self._batch())
            if features.ndim != 2 or not torch.equal(head(features), logits):
                return None
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return None
        network.head = nn.Identity()
        module = network.features if isinstance(network.features, nn.Module) else _Features(network)
        return Parts(Backbone(module, features.shape[1]), head)

    def _found(self, network: nn.Module) -> Parts:
        """The linear layer that is called last, if what it gives is what the model gives."""
        calls: list[tuple[nn.Linear, torch.Tensor, torch.Tensor]] = []
        with _watched(network, calls):
            logits = network(self._batch())
        if not calls or calls[-1][2] is not logits:
            raise UserError(
                f"{self.name} does not end in a linear layer, so its features cannot be told from its head; let "
                "it return what an nn.Linear gives, or give it both `features` and `head`."
            )
        linear, features, _ = calls[-1]
        if features.ndim != 2 or sum(layer is linear for layer, _, _ in calls) != 1:
            raise UserError(
                f"the last linear layer of {self.name} is called with {tuple(features.shape)}, not once with a "
                "vector for each sample; give the model `features` and `head`."
            )
        path = next(path for path, layer in network.named_modules() if layer is linear)
        if not path:
            return Parts(Backbone(nn.Flatten(), linear.in_features))
        _replace(network, path, nn.Identity())
        return Parts(Backbone(network, linear.in_features))

    def _batch(self, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        return example_batch(BATCH, shape or self.wish.input_shape)

    def _forward(self, network: nn.Module) -> Any:
        try:
            return network(self._batch())
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            self._suggest_larger(network, error)
            sample = self.wish.input_shape
            unless = f"let it take {sample}{SAY_WHAT_NUMBERS_ARE}" if sample.kind == "vector" else "mend it"
            raise UserError(
                f"{self.name} cannot take samples of {self.wish.size} ({loading.described(error, self.file)}); "
                f"{unless}, and try again."
            ) from error

    def _suggest_larger(self, network: nn.Module, error: Exception) -> None:
        if self.wish.input_shape.kind != "image":
            return
        channels, height, width = self.wish.input_shape
        for side in _SIDES:
            if side <= max(height, width):
                continue
            try:
                network(self._batch((channels, side, side)))
            except Exception:  # whatever it is, this size does not help either
                continue
            raise UserError(
                f"{self.name} cannot take images of {height}x{width}, but of {side}x{side} it can; set "
                f"data.image_size={side} where the data are your own, choose other data, or let the model depend "
                "on input_shape."
            ) from error

    def _check_logits(self, logits: Any) -> None:
        classes = self.wish.num_classes
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != BATCH:
            what = tuple(logits.shape) if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
            raise UserError(
                f"{self.name} gives {what} for {BATCH} samples instead of {(BATCH, classes)}; let it return "
                "logits."
            )
        if logits.shape[1] != classes:
            raise UserError(
                f"{self.name} gives {logits.shape[1]} outputs, but there are {classes} classes; let it take "
                "num_classes as an argument."
            )

    def try_training(self, parts: Parts) -> None:
        """Some networks give something else while they train, such as the logits of further heads."""
        module = copy.deepcopy(parts.backbone.module).train()
        with torch.no_grad(), loading.explained(f"{self.name} cannot be trained", self.file):
            features = module(self._batch())
        expected = (BATCH, parts.backbone.dim)
        if not isinstance(features, torch.Tensor) or tuple(features.shape) != expected:
            what = tuple(features.shape) if isinstance(features, torch.Tensor) else f"a {type(features).__name__}"
            raise UserError(
                f"the features of {self.name} are {what} while it trains and {expected} otherwise; let it give "
                "the same in both, or give it `features` and `head`."
            )


class _Features(nn.Module):
    """The part of a model that its method `features` computes."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.network.features(inputs)
        return features


@contextmanager
def _watched(network: nn.Module, calls: list[tuple[nn.Linear, torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """All calls of linear layers, in their order."""

    def note(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        calls.append((layer, inputs[0], output))

    handles = [layer.register_forward_hook(note) for layer in network.modules() if isinstance(layer, nn.Linear)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replace(network: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)
