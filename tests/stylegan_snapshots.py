"""Writes small networks as the official StyleGAN programs do: pickles that name classes nobody has installed.

Sizes are chosen by hand, weights and filters are random numbers; the filters are not symmetric, so that a
mirrored one would be noticed.
"""

import contextlib
import io
import pickle
import sys
import types
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

Z_DIM, W_DIM = 5, 6


class Network:
    """A module of the official programs, seen from outside: class name and attributes."""

    def __init__(self, class_name: str, *, parameters=None, buffers=None, modules=None, **attributes: Any):
        self.class_name = class_name
        self.version = 6
        self.state = {
            "training": False,
            "_parameters": OrderedDict((k, torch.nn.Parameter(v)) for k, v in (parameters or {}).items()),
            "_buffers": OrderedDict(buffers or {}),
            "_modules": OrderedDict(modules or {}),
            "_forward_hooks": OrderedDict(),
            "_non_persistent_buffers_set": set(),
            **attributes,
            "_init_args": (),
            "_init_kwargs": EasyDict(size=1),
        }

    def __reduce__(self):
        meta = {
            "type": "class",
            "version": self.version,
            "module_src": "raise SystemExit('the source was run')",
            "class_name": self.class_name,
            "state": self.state,
        }
        return _Name("torch_utils.persistence", "_reconstruct_persistent_obj"), (meta,)

    def __getitem__(self, path: str) -> Any:
        """`network["synthesis.L0.weight"]`, wherever a module keeps it."""
        first, _, rest = path.partition(".")
        places = [self.state, *(self.state[name] for name in ("_parameters", "_buffers", "_modules"))]
        value = next(place[first] for place in places if first in place)
        return value[rest] if rest else value


class EasyDict(dict):
    """Of the official `dnnlib.util`."""


class Call:
    """Pickled as the call of a function by name, whether there is one or not."""

    def __init__(self, module: str, name: str, *arguments: Any):
        self.function, self.arguments = (module, name), arguments
        self.state: Any = None  # written to the result by BUILD

    def __reduce__(self):
        return _Name(*self.function), self.arguments, self.state


class _Name:
    """Pickled as a bare name."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def __call__(self) -> None:
        raise AssertionError("only ever pickled")


class _Pickler(pickle._Pickler):
    """The pickler in Python, which can be told how to write names that do not exist here."""

    def save(self, thing: Any, *rest: Any) -> None:
        if not isinstance(thing, _Name):
            return super().save(thing, *rest)
        if self.proto >= 4:
            self.save(thing.module)
            self.save(thing.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{thing.module}\n{thing.name}\n".encode())
        return None


def dumps(thing: Any, protocol: int = 4) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings(), _official_modules():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        _Pickler(file, protocol).dump(thing)
    return file.getvalue()


@contextlib.contextmanager
def _official_modules():
    """Where pickle finds EasyDict while it writes its name."""
    package, module = types.ModuleType("dnnlib"), types.ModuleType("dnnlib.util")
    module.EasyDict, EasyDict.__module__ = EasyDict, "dnnlib.util"
    sys.modules |= {"dnnlib": package, "dnnlib.util": module}
    try:
        yield
    finally:
        del sys.modules["dnnlib"], sys.modules["dnnlib.util"]


def write(path: Path, generator: Any, protocol: int = 4, **others: Any) -> Path:
    """A snapshot in the official order of keys; `others` may replace the discriminator."""
    snapshot = {"G": None, "D": None, "G_ema": generator, "augment_pipe": None, "training_set_kwargs": None}
    if "D" in others:
        snapshot["D"] = others["D"]
    path.write_bytes(dumps(snapshot, protocol))
    return path


def dense(random: torch.Generator, num_in: int, num_out: int, activation: str = "linear", rate: float = 1.0):
    return Network(
        "FullyConnectedLayer",
        parameters={
            "weight": torch.randn(num_out, num_in, generator=random) / rate,
            "bias": torch.randn(num_out, generator=random),
        },
        activation=activation,
        weight_gain=rate / np.sqrt(num_in),  # a numpy number, as in real files
        bias_gain=rate,
    )


def mapping(
    random: torch.Generator, num_ws: int, num_labels: int = 0, *, family: str = "stylegan3", hidden: int = 8
):
    modules, attributes, width = {}, {"embed": None}, Z_DIM
    w_avg_shape = [W_DIM]
    if num_labels and family == "xl":
        embedding = torch.nn.Embedding.from_pretrained(torch.randn(num_labels, 7, generator=random))
        modules = {"embed": embedding, "embed_proj": dense(random, 7, Z_DIM, "lrelu")}
        attributes, width, w_avg_shape = {}, 2 * Z_DIM, [num_labels, W_DIM]
    elif num_labels:
        modules = {"embed": dense(random, num_labels, W_DIM)}
        attributes, width = {}, Z_DIM + W_DIM
    modules |= {
        "fc0": dense(random, width, hidden, "lrelu", rate=0.01),
        "fc1": dense(random, hidden, W_DIM, "lrelu", rate=0.01),
    }
    return Network(
        "MappingNetwork",
        buffers={"w_avg": torch.randn(*w_avg_shape, generator=random)},
        modules=modules,
        z_dim=Z_DIM,
        w_dim=W_DIM,
        c_dim=num_labels,
        num_ws=num_ws,
        num_layers=2,
        **attributes,
    )


def layer(random: torch.Generator, num_in: int, num_out: int, kernel: int, **options: Any):
    """Options: up, down, padding, size in and out, and `radial` for a square filter on the way down."""
    up, down, torgb = options.get("up", 1), options.get("down", 1), options.get("torgb", False)
    down_taps = (6 * down, 6 * down) if options.get("radial") else (6 * down,)
    return Network(
        "SynthesisLayer",
        parameters={
            "weight": torch.randn(num_out, num_in, kernel, kernel, generator=random),
            "bias": torch.randn(num_out, generator=random),
        },
        buffers={
            "magnitude_ema": torch.tensor(1.7),
            "up_filter": None if up == 1 else torch.rand(6 * up, generator=random) / (3 * up),
            "down_filter": None
            if down == 1
            else torch.rand(down_taps, generator=random) * (2 / 12) ** len(down_taps),
        },
        modules={"affine": dense(random, W_DIM, num_in)},
        is_torgb=torgb,
        in_channels=num_in,
        out_channels=num_out,
        conv_kernel=kernel,
        conv_clamp=options.get("clamp", 256),
        up_factor=up,
        down_factor=down,
        padding=options.get("padding", [0, 0, 0, 0]),
        in_size=np.array([options["size"][0]] * 2),
        out_size=np.array([options["size"][1]] * 2),
    )


def stylegan3(
    seed: int = 0,
    num_labels: int = 0,
    *,
    kernel: int = 3,
    radial: bool = False,
    family: str = "stylegan3",
    mapping_hidden: int = 8,
) -> Network:
    """Input of 14² samples, one layer of the same rate, one that doubles it and crops to 8², colours.

    `mapping_hidden` makes the network as large as one likes without making its images slower.
    """
    random = torch.Generator().manual_seed(seed)
    # Sizes by hand, for kernel 3: 14 + 2, ×2 = 32, + 9 + 8 − 11 = 38, − 11 = 27, halved 14.
    # Then 14 + 2, ×4 = 64, − 9 − 5 − 23 = 27, − 11 = 16, halved 8.
    # Kernel 1 leaves out the + 2 of each, so that much more padding gives the same.
    wider = 2 * (3 - kernel)
    first = layer(
        random, 4, 5, kernel, up=2, down=2, size=(14, 14), clamp=1.1, radial=radial,
        padding=[9 + wider // 2, 8 + wider // 2] * 2,
    )  # fmt: skip
    second = layer(
        random, 5, 3, kernel, up=4, down=2, size=(14, 8), clamp=None, radial=radial,
        padding=[-9 + wider, -5 + wider] * 2,
    )  # fmt: skip
    colours = layer(random, 3, 3, 1, torgb=True, size=(8, 8))
    synthesis_input = Network(
        "SynthesisInput",
        parameters={"weight": torch.randn(4, 4, generator=random)},
        buffers={
            "freqs": torch.randn(4, 2, generator=random) * 2,
            "phases": torch.rand(4, generator=random) - 0.5,
            "transform": torch.eye(3),
        },
        modules={"affine": dense(random, W_DIM, 4)},
        channels=4,
        size=np.array([14, 14]),
        sampling_rate=np.float64(8),
        bandwidth=np.float64(2),
    )
    synthesis = Network(
        "SynthesisNetwork",
        # Another order than that of execution: layer_names decides.
        modules={"L1": second, "L0": first, "L2": colours, "input": synthesis_input},
        layer_names=["L0", "L1", "L2"],
        num_ws=4,
        w_dim=W_DIM,
        img_channels=3,
        output_scale=0.25,
    )
    return _generator(synthesis, mapping(random, 4, num_labels, family=family, hidden=mapping_hidden))


def stylegan2(seed: int = 0, num_labels: int = 0) -> Network:
    """Two blocks, 4² and 8²."""
    random = torch.Generator().manual_seed(seed)

    def conv(num_in: int, num_out: int, resolution: int, up: int) -> Network:
        return Network(
            "SynthesisLayer",
            parameters={
                "weight": torch.randn(num_out, num_in, 3, 3, generator=random),
                "bias": torch.randn(num_out, generator=random),
                "noise_strength": torch.tensor(0.3),
            },
            buffers={
                "noise_const": torch.randn(resolution, resolution, generator=random),
                "resample_filter": torch.rand(4, 4, generator=random) / 8,
            },
            modules={"affine": dense(random, W_DIM, num_in)},
            up=up,
            use_noise=True,
            activation="lrelu",
            act_gain=np.sqrt(2),
            conv_clamp=2.0,
        )

    def block(num_in: int, num_out: int, resolution: int) -> Network:
        first = resolution == 4
        colours = Network(
            "ToRGBLayer",
            parameters={
                "weight": torch.randn(3, num_out, 1, 1, generator=random),
                "bias": torch.randn(3, generator=random),
            },
            modules={"affine": dense(random, W_DIM, num_out)},
            weight_gain=1 / np.sqrt(num_out),
            conv_clamp=None,
        )
        convs = {} if first else {"conv0": conv(num_in, num_out, resolution, 2)}
        convs["conv1"] = conv(num_out, num_out, resolution, 1)
        return Network(
            "SynthesisBlock",
            parameters={"const": torch.randn(num_out, 4, 4, generator=random)} if first else {},
            buffers={"resample_filter": torch.rand(4, 4, generator=random) / 8},
            modules={**convs, "torgb": colours},
            architecture="skip",
            num_conv=len(convs),
            num_torgb=1,
            in_channels=num_in,
            is_last=not first,
        )

    synthesis = Network(
        "SynthesisNetwork",
        modules={"b4": block(0, 4, 4), "b8": block(4, 5, 8)},
        block_resolutions=[4, 8],
        num_ws=4,
        w_dim=W_DIM,
        img_channels=3,
    )
    return _generator(synthesis, mapping(random, 4, num_labels, family="stylegan2"))


def _generator(synthesis: Network, mapping: Network) -> Network:
    return Network(
        "Generator",
        modules={"synthesis": synthesis, "mapping": mapping},
        z_dim=Z_DIM,
        w_dim=W_DIM,
        c_dim=mapping["c_dim"],
        num_ws=mapping["num_ws"],
        img_resolution=8,
        img_channels=3,
    )
