"""The encodings, one module each. The module's name stands in a setting: `--set wire.prototypes=int8+zstd`.

A module has a docstring whose first line is what people are told, and a class `Encoding`, derived from that in
`base.py`. Adding an encoding edits no other file.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fedsim.contract import DIRECTIONS, Contract, Payload
from fedsim.encodings.base import Encoding
from fedsim.errors import UnknownName, UserError

_NO_ENCODINGS = {"base", "error_feedback"}
"""Modules beside them: what all encodings have in common, and what makes up for their losses."""

Chosen = Mapping[str, Mapping[str, Encoding]]
"""By direction, as contracts name them, and by field; what travels as it is, is not in it."""


@cache
def names() -> list[str]:
    """All encodings, found by module name without importing any of them."""
    return sorted({module.name for module in pkgutil.iter_modules(__path__)} - _NO_ENCODINGS)


def described() -> dict[str, str]:
    """Name -> the first line of its description."""
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names()}
    return {name: (inspect.getdoc(module) or "").splitlines()[0] for name, module in modules.items()}


def make(text: str) -> Encoding | None:
    """`topk:0.05+zstd` as an encoding; None for plain."""
    made: Encoding | None = None
    for part in text.split("+"):
        name, _, argument = part.strip().partition(":")
        if name not in names():
            raise UnknownName("encoding", name, names())
        kind = importlib.import_module(f"{__name__}.{name}").Encoding
        if made is not None and (not kind.on_top or made.on_top):
            raise UserError(
                f"the encodings {text!r} cannot be combined: {name} cannot work on what {made.name} makes; only "
                "zstd goes on top of another, and once."
            )
        made = kind(argument, made) if kind.on_top else kind(argument)
    return None if made is None or made.name == "plain" else made


def choose(contract: Contract, wire: Any, method: str) -> Chosen:
    """What the section `wire` means for a method; UserError for what would break the method or change nothing."""
    chosen: dict[str, dict[str, Encoding]] = {direction: {} for direction in DIRECTIONS}
    ways: str = wire.ways
    for kind in Payload:
        text = getattr(wire, kind)
        encoding = make(text)
        if encoding is None:
            continue
        found = list(_fields(contract, kind, ways))
        if not found:
            raise UserError(_no_effect(contract, kind, text, ways, method))
        for direction, name in found:
            field = getattr(contract, direction)[name]
            if reason := encoding.unsuited(field):
                raise UserError(
                    f"wire.{kind} = {text!r} would break {method}: {reason} (field {name!r}, {field.dtype}); "
                    "use another encoding, or zstd, which loses nothing."
                )
            chosen[direction][name] = encoding
    if wire.error_feedback and all(encoding.is_lossless for encoding in chosen["up"].values()):
        raise UserError(
            "wire.error_feedback has no effect: nothing that clients send up in a round is encoded with a loss; "
            "set an encoding such as wire.prototypes=int8, or leave it out."
        )
    if ways != "both" and not any(chosen.values()):
        raise UserError(f"wire.ways = {ways!r} has no effect without an encoding; set one, or leave it out.")
    return chosen


def _fields(contract: Contract, kind: Payload, ways: str) -> Iterator[tuple[str, str]]:
    """Directions and names of all fields of a kind that go the way that is wanted."""
    for direction in DIRECTIONS:
        if ways == "both" or direction.endswith(ways):
            yield from (
                (direction, name) for name, item in getattr(contract, direction).items() if item.payload is kind
            )


def _no_effect(contract: Contract, kind: str, text: str, ways: str, method: str) -> str:
    sent = sorted(payload for payload in contract.payloads() if any(_fields(contract, payload, ways)))
    way = "" if ways == "both" else f" {ways}"
    return (
        f"wire.{kind} = {text!r} has no effect: {method} sends no {kind}{way}; "
        f"it sends {', '.join(sent) or 'nothing'}{way}."
    )
