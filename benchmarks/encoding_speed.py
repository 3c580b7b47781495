"""How long encodings take, beside how long the wire does: do they save more time than they cost?

    python -m benchmarks.encoding_speed [--shapes 100x512 25000000] [--links 10 1000]

For each encoding: bytes, processor seconds to encode and to decode on one core (the best of several turns), and
for each link (Mbit/s) the seconds of the payload on the wire and, in brackets, those of encoding, wire and
decoding together. Values are normal; those of a matrix are features behind a ReLU, so half of them are zero.
"""

import argparse

import numpy as np

from benchmarks._common import best_seconds, machine_load, show
from fedsim import encodings
from fedsim.contract import Field, Payload
from fedsim.encodings.base import Encoding, decoded

BITS = 8e-6
"""Megabits of a byte."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["100x512", "25000000"])
    parser.add_argument("--encodings", nargs="+", default=["plain", "float16", "bfloat16", "int8", "topk"])
    parser.add_argument("--zstd", action=argparse.BooleanOptionalAction, default=True, help="Each with zstd too.")
    parser.add_argument("--links", type=float, nargs="+", default=[10.0, 1000.0], help="Mbit/s.")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # so that processor time is measured
    names = [name for name in given.encodings for name in ([name, with_zstd(name)] if given.zstd else [name])]
    for text in given.shapes:
        shape = tuple(map(int, text.split("x")))
        array = values(shape)
        field = Field(Payload.PROTOTYPES if len(shape) > 1 else Payload.PARAMETERS, " ".join("ab"[: len(shape)]))
        rows = [row for name in names if (row := measured(name, array, field, given)) is not None]
        headings = [
            "encoding",
            "bytes",
            "share",
            "encode, s",
            "decode, s",
            *(f"{link:g} Mbit/s" for link in given.links),
        ]
        show(f"{text} float32, {machine_load()}", headings, rows)


def with_zstd(name: str) -> str:
    return "zstd" if name == "plain" else f"{name}+zstd"


def values(shape: tuple[int, ...]) -> np.ndarray:
    array = np.random.default_rng(1).standard_normal(shape, np.float32)
    return np.maximum(array, 0) if len(shape) > 1 else array


def measured(name: str, array: np.ndarray, field: Field, given: argparse.Namespace) -> list[str] | None:
    """A row; None for an encoding that does not suit such an array."""
    encoding = encodings.make(name) or Encoding()
    if encoding.unsuited(field):
        return None

    def draws() -> np.random.Generator:
        return np.random.default_rng(1)

    frame = encoding.encode(array, draws)
    encode, decode = best_seconds(
        [
            lambda: encoding.encode(array, draws),
            lambda: np.array(decoded(encoding, frame, array.shape, array.dtype)),
        ],
        given.repeats,
    )
    on_wire = [len(frame) * BITS / link for link in given.links]
    links = [f"{seconds:.4g} ({encode + seconds + decode:.4g})" for seconds in on_wire]
    share = f"{len(frame) / array.nbytes:.3f}"
    return [name, f"{len(frame):,}", share, f"{encode:.6f}", f"{decode:.6f}", *links]


if __name__ == "__main__":
    main()
