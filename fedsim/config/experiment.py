"""An experiment, and how one is built from layers, read and written."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import tomli_w
from msgspec import UNSET, UnsetType

from fedsim import encodings, methods
from fedsim.config.checking import checked
from fedsim.config.sections import Cluster, Data, Model, Run, Section, Train, Wire, World
from fedsim.contract import Payload
from fedsim.errors import UserError
from fedsim.own import files


class Experiment(Section, frozen=True, kw_only=True):
    """One whole experiment. `method` holds the method's name and its own options."""

    run: Run = Run()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    method: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "fedtgp"})
    cluster: Cluster = Cluster()
    wire: dict[str, Any] | UnsetType = UNSET
    """Encodings of payloads (docs/encodings.md); where there are none, nothing of them is written or sent."""
    world: dict[str, Any] | UnsetType = UNSET
    """Links and devices of clients (docs/time.md); likewise."""

    @property
    def method_name(self) -> str:
        """What the method is called; for a file of one's own, the file's name."""
        return methods.label(methods.canonical(self.method["name"]))

    @property
    def method_module(self) -> ModuleType:
        return methods.load(self.method["name"])

    def method_config(self) -> Any:
        """The method's own options, typed and checked."""
        options = {key: value for key, value in self.method.items() if key != "name"}
        return checked(options, self.method_module.Config, "method")

    def wire_config(self) -> Any:
        """How payloads travel: a `Wire`."""
        return wire_of(self.wire or {})

    def world_config(self) -> World:
        settings: World = checked(self.world or {}, World, "world")
        return settings


def build(layers: Iterable[Mapping[str, Any]]) -> Experiment:
    """Merge nested mappings, later ones over earlier ones, and check every name and value."""
    given = merged(layers)
    files.check_names(given)
    # A method may need more of other sections than their own defaults, such as public samples.
    complete: dict[str, Any] = {}
    for layer in (getattr(methods.load(given["method"]["name"]), "DEFAULTS", {}), given):
        _merge(complete, layer)
    experiment: Experiment = checked(complete, Experiment, "")
    # All method options are written out, so that config.toml says what ran even after defaults change.
    options = msgspec.to_builtins(experiment.method_config())
    name = methods.canonical(experiment.method["name"])
    return msgspec.structs.replace(
        experiment,
        method={"name": name, **options},
        wire=_wire(experiment.wire),
        world=msgspec.to_builtins(experiment.world_config()) or UNSET,
    )


def merged(layers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All that is given, and the method's name: what is not in it is left to defaults."""
    result: dict[str, Any] = {}
    for given in layers:
        layer = files.absolute(given, Path())
        if _changes_method(result, layer):
            result["method"] = {}  # another method's options mean nothing to this one
        _merge(result, layer)
    method = result.setdefault("method", {})
    if not isinstance(method, dict) or not isinstance(method.setdefault("name", "fedtgp"), str):
        raise UserError(
            f'method = {method!r} is not valid: write a section with its name, such as name = "fedtgp".'
        )
    return result


def _changes_method(merged: Mapping[str, Any], layer: Mapping[str, Any]) -> bool:
    old, new = (item.get("method") for item in (merged, layer))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return False
    return "name" in new and new["name"] != old.get("name")


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def wire_of(settings: Mapping[str, Any]) -> Any:
    """The section as a `Wire`, typed and checked."""
    return checked(settings, Wire, "wire")


def _wire(given: dict[str, Any] | UnsetType) -> dict[str, Any] | UnsetType:
    """Checked, without what is as it is by default: an experiment without encodings knows nothing of them."""
    stated: dict[str, Any] = msgspec.to_builtins(wire_of(given or {}))
    for kind in set(Payload) & stated.keys():
        encodings.make(stated[kind])
    return stated or UNSET


def read_toml(path: Path) -> dict[str, Any]:
    """A config layer from a file; own code is looked for from where the file is."""
    try:
        return files.absolute(tomllib.loads(path.read_text()), path.parent)
    except FileNotFoundError:
        raise UserError(f"there is no config file {path}.") from None
    except OSError as error:
        raise UserError(f"the config file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None


def parse_setting(text: str) -> dict[str, Any]:
    """`section.key=value` as a layer; the value is read as TOML, and as plain text when it is not TOML."""
    name, sign, value = text.partition("=")
    path = name.strip().split(".")
    if not sign or len(path) != 2 or not all(path):
        raise UserError(f"--set wants section.key=value, not {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return {path[0]: {path[1]: parsed}}


def to_layer(experiment: Experiment) -> dict[str, Any]:
    """All of it, as `build` takes it."""
    return msgspec.to_builtins(experiment)


def to_toml(experiment: Experiment) -> str:
    return tomli_w.dumps(to_layer(experiment))


def to_json(experiment: Experiment) -> bytes:
    return msgspec.json.encode(experiment)


def from_json(text: bytes) -> Experiment:
    return build([msgspec.json.decode(text)])
