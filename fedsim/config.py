"""The experiment config: typed sections, checked values, layers.

Layers, later ones win: defaults < defaults that the method states < preset < file < command line. `Experiment`
is complete and is what goes into `config.toml` and to every client; loading that file again gives the same
experiment.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import tomli_w
from msgspec import Meta

from fedsim import methods, own_files
from fedsim.errors import UnknownName, UserError

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
# Finite, because the experiment travels as JSON, which has no infinity.
NonNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
AboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all config sections and of every method's `Config`."""


class Run(Section, frozen=True, kw_only=True):
    """What is run: changing any of these changes the result."""

    clients: Positive = 10
    rounds: Positive = 15
    participation: Fraction = 1.0
    """Share of the clients that train in a round; int(clients × participation), at least one."""
    seed: Count = 1
    evaluate_every: Positive = 1
    """Rounds between evaluations; the last round is always followed by one."""
    metric: Literal["pooled", "client_mean"] = "pooled"
    """pooled: Σ correct / Σ tested over all clients, as the papers do. client_mean: mean of client accuracies."""
    count_partial: bool = False
    """Let a round in which clients were lost be the best or the last one too."""
    rehearsal: bool = False
    """Send messages of the real shapes without training: measures what a round costs, and nothing else."""

    def is_evaluated(self, round: int) -> bool:
        """Whether clients evaluate in this round; the one after the last training always is."""
        return round % self.evaluate_every == 0 or round == self.rounds


class Data(Section, frozen=True, kw_only=True):
    """Which samples, and who holds them."""

    seed: Count = 0
    """Draws the partition, the public samples and the like; 0: run.seed. Set it to compare several run.seed on one
    partition, as the papers do; 1 gives the published partitions."""
    dataset: str = "digits"
    """A name, or your own: the path of a folder, .npz or .csv file, ./FILE.py:FUNCTION, hf:NAME (docs/data.md)."""
    data_dir: str = ""
    """Where to look first; then FEDSIM_DATA, the user's cache, system folders, torchvision's download."""
    image_size: Count = 0
    """Side to which images are resized, files and arrays alike; 0: their own, or 64 where files differ."""
    label: str = ""
    """Column of a table (.csv, hf:) that holds the classes; empty: label, target, class or y, else the last."""
    partition: Literal["dirichlet", "pathological", "iid"] = "dirichlet"
    beta: AboveZero = 0.1
    """Concentration of the Dirichlet partition; small is heterogeneous."""
    classes_per_client: Positive = 2
    """Classes each client holds in the pathological partition."""
    train_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.75
    min_samples: Count = 0
    """Smallest client that a partition may make; 0: the published rule, from batch size and data size."""
    max_redraws: Positive = 1000
    """How often the Dirichlet partition may be drawn again to satisfy min_samples."""
    stratified: bool = False
    """Split each class of a client by itself; the published split may leave classes that are only tested."""
    samples_per_class: Count = 0
    """Keep only so many samples of each class before the partition; 0: all. On CIFAR-100 with one client
    30, 12 and 3 are FedKTL's 23-, 9- and 2-shot settings."""
    public_samples: Count = 0
    """Training images set aside, without their labels, before the partition (N_p of FedProtoKD)."""
    global_test: bool = False
    """Keep the official test set out of the partition for the server's own metric; where a data set has
    none, a sixth of the samples."""

    @property
    def short_name(self) -> str:
        """The data set in the name of a folder: `./own.csv` is own.csv, `./data.py:load` is data.py-load."""
        return re.sub(r"[^\w.-]", "-", Path(self.dataset).name)


class Model(Section, frozen=True, kw_only=True):
    """Client i gets entry i mod n of the group. A single model's name is a group of one."""

    group: str = "HtCNN8"
    feature_dim: Positive = 512
    """K, the size of the features and so of a prototype."""
    feature_mapping: Literal["published", "pool", "project"] = "published"
    """How a backbone's features become K: by average pooling, by a learnable linear layer, or as published with
    the group (the group FedProtoKD projects, all others pool)."""
    cifar_stem: bool = False
    """Give networks made for ImageNet a first convolution of 3×3 without stride, and no max pooling after it."""
    relu_logits: bool = False
    """A ReLU after the logits, as in the code published for the HtC4 heads; negative logits then stop learning."""


class Train(Section, frozen=True, kw_only=True):
    """Local training; the optimizer is plain SGD, made anew every round as in the published runs."""

    batch_size: Positive = 10
    local_epochs: Positive = 1
    lr: AboveZero = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    shuffle: bool = False
    """The published runs keep the order that the partition drew."""
    drop_last: bool = True


class Cluster(Section, frozen=True, kw_only=True):
    """How it is run: none of these may change a result, except device and server_threads by rounding."""

    device: Literal["auto", "cpu"] = "auto"
    """auto: the GPUs of each host where there are any. Results on a GPU differ from those on a CPU by rounding."""
    slots: Count = 0
    """Clients that train at once per host or GPU; 0: one per core, or one per GPU."""
    server_threads: Count = 0
    """Threads of the server's optimizer, which runs while clients are idle; 0: every core."""
    quorum: Fraction = 1.0
    """Share of those who are to train in a round, and of those who are only to be tested, that must answer. With
    less than 1 a run goes on when clients are lost for good; such rounds are marked, for they are about fewer."""
    deadline_seconds: AboveZero = 3600.0
    """How long one client may take over one request before the round goes on without it."""
    rejoin_seconds: NonNegative = 30.0
    """How long a round waits for a client that was lost and may come back."""
    join_seconds: AboveZero = 300.0
    """How long the server waits for all clients to join before the first round."""
    patience_seconds: AboveZero = 60.0
    """How long a client looks for a server that has gone before it gives up."""
    heartbeat_seconds: NonNegative = 0.0
    """Interval of the clients' heartbeats; 0: none, which is enough on one machine."""
    checkpoint_every: Count = 0
    """Rounds between checkpoints; 0: none."""
    max_frame_mib: Positive = 1024
    """The largest single array that may travel."""


class Experiment(Section, frozen=True, kw_only=True):
    """One whole experiment. `method` holds the method's name and its own options."""

    run: Run = Run()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    method: dict[str, Any] = msgspec.field(default_factory=lambda: {"name": "fedtgp"})
    cluster: Cluster = Cluster()

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
        return _convert(options, self.method_module.Config, "method")


def build(layers: Iterable[Mapping[str, Any]]) -> Experiment:
    """Merge nested mappings, later ones over earlier ones, and check every name and value."""
    merged: dict[str, Any] = {}
    for given in layers:
        layer = own_files.absolute(given, Path())
        if _changes_method(merged, layer):
            merged["method"] = {}  # another method's options mean nothing to this one
        _merge(merged, layer)
    method = merged.setdefault("method", {})
    if not isinstance(method, dict) or not isinstance(method.setdefault("name", "fedtgp"), str):
        raise UserError(
            f'method = {method!r} is not valid: write a section with its name, such as name = "fedtgp".'
        )
    own_files.check_names(merged)
    # A method may need more of other sections than their own defaults, such as public samples.
    complete: dict[str, Any] = {}
    for layer in (getattr(methods.load(method["name"]), "DEFAULTS", {}), merged):
        _merge(complete, layer)
    experiment: Experiment = _convert(complete, Experiment, "")
    # All method options are written out, so that config.toml says what ran even after defaults change.
    options = msgspec.to_builtins(experiment.method_config())
    name = methods.canonical(experiment.method["name"])
    return msgspec.structs.replace(experiment, method={"name": name, **options})


def read_toml(path: Path) -> dict[str, Any]:
    """A config layer from a file; own code is looked for from where the file is."""
    try:
        return own_files.absolute(tomllib.loads(path.read_text()), path.parent)
    except FileNotFoundError:
        raise UserError(f"there is no config file {path}.") from None
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


def _convert(values: Mapping[str, Any], kind: type, path: str) -> Any:
    """msgspec checks types and ranges; names are checked here first, for the hint with the nearest ones."""
    _check_names(values, kind, path)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        where = (path + place.rstrip("`")).strip(".")
        given = _look_up(values, place.rstrip("`").strip("."))
        if isinstance(given, str) and (choices := _choices(kind, place.rstrip("`").strip("."))):
            raise UnknownName(where, given, choices) from None
        raise UserError(f"{where} = {given!r} is not valid: {reason.replace('`', '').lower()}.") from None


def _check_names(values: Mapping[str, Any], kind: type, path: str) -> None:
    fields = {item.name: item.type for item in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in fields:
            raise UnknownName("option", f"{path}.{key}".strip("."), [f"{path}.{f}".strip(".") for f in fields])
        if isinstance(value, Mapping) and isinstance(fields[key], type) and issubclass(fields[key], Section):
            _check_names(value, fields[key], f"{path}.{key}".strip("."))


def _choices(kind: type, path: str) -> list[str]:
    """The words that an option allows; none where it is not an option of words."""
    for key in path.split("."):
        fields = {item.name: item.type for item in msgspec.structs.fields(kind)}
        kind = fields.get(key, object)
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _look_up(values: Any, path: str) -> Any:
    for key in path.split(".") if path else []:
        if not isinstance(values, Mapping):
            break
        values = values.get(key)
    return values
