"""Typed access to the attributes of a network in a snapshot.

Every value is checked where it is taken, so that a damaged or foreign file ends in a sentence that names the
attribute (`G_ema.synthesis.L3_36_512.weight`), what was expected there and what was found.
"""

from collections.abc import Sequence
from reprlib import repr

import torch
from torch import Tensor

from fedsim.generators.stylegan.stand_ins import Array, LazyTensor, Record, Refused
from fedsim.generators.stylegan.storage import decode

MAX_SIZE = 8192
"""Pixels, channels or features: eight times the largest published network, and a bound on memory."""
MAX_NUMBER = 1e30


class Attributes:
    """One record and its place in the file."""

    def __init__(self, record: Record, path: str):
        self.path = path
        self.class_name = record.class_name
        # A module keeps its tensors and sub-modules in three dictionaries, and absent ones as plain None.
        self._values = dict(record.state)
        for container in ("_parameters", "_buffers", "_modules"):
            held = record.state.get(container, {})
            if not isinstance(held, dict):
                raise Refused(f"{path}.{container} is a {type(held).__name__} where a dictionary belongs")
            self._values |= held
        self.module_names = [str(name) for name in record.state.get("_modules", {})]

    @property
    def description(self) -> str:
        return f"a {self.class_name:.40} made of {', '.join(self.module_names) or 'nothing':.200}"

    def has(self, name: str) -> bool:
        """True where the attribute exists and is not None."""
        return self._values.get(name) is not None

    def module(self, name: str) -> "Attributes":
        value = self._values.get(name)
        if not isinstance(value, Record):
            raise self._wrong(name, "a network module")
        return Attributes(value, f"{self.path}.{name}")

    def count(self, name: str, low: int = 1, high: int = MAX_SIZE) -> int:
        value = self._values.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if type(value) is not bool:
            raise self._wrong(name, "true or false")
        return value

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if type(value) not in (int, float) or not abs(value) <= MAX_NUMBER:  # nor is NaN
            raise self._wrong(name, "a number of ordinary size")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if self.has(name) else None

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._values.get(name)
        if not isinstance(value, list | tuple) or not value or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return list(value)

    def integers(self, name: str, count: int | None = None, low: int = 1, high: int = MAX_SIZE) -> list[int]:
        value = self._values.get(name)
        if isinstance(value, Array):
            value = value.values
        whole = isinstance(value, list | tuple) and all(type(n) is int and low <= n <= high for n in value)
        if not whole or not value or (count is not None and len(value) != count):
            raise self._wrong(name, f"{count or 'a list of'} whole numbers from {low} to {high}")
        return list(value)

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """In single precision; None in the shape stands for any size."""
        value = self._values.get(name)
        if not isinstance(value, LazyTensor):
            raise self._wrong(name, "a tensor")
        fits = len(value.size) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, value.size, strict=True)
        )
        if not fits:
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            raise Refused(f"{self.path}.{name} has the shape {_shape(value.size)} where ({expected}) belongs")
        try:
            tensor = decode(value)
        except Refused as reason:
            raise Refused(f"{self.path}.{name} {reason}") from None
        if not torch.isfinite(tensor).all():
            raise Refused(f"{self.path}.{name} holds infinite numbers or none at all")
        return tensor

    def optional_tensor(self, name: str, *shape: int | None) -> Tensor | None:
        return self.tensor(name, *shape) if self.has(name) else None

    def rank(self, name: str) -> int:
        value = self._values.get(name)
        if not isinstance(value, LazyTensor):
            raise self._wrong(name, "a tensor")
        return len(value.size)

    def expect(self, name: str, value: int | list[int], expected: int | list[int]) -> None:
        """Two statements of the file that must agree."""
        if value != expected:
            raise Refused(f"{self.path}.{name} is {value} where {expected} belongs")

    def _wrong(self, name: str, expected: str) -> Refused:
        if name not in self._values:
            return Refused(f"{self.path} ({self.class_name}) has no {name}")
        value = self._values[name]
        found = _shape(value.size) if isinstance(value, LazyTensor) else repr(value)
        if isinstance(value, Record):
            found = value.class_name
        return Refused(f"{self.path}.{name} is {found} where {expected} belongs")


def _shape(size: Sequence[int]) -> str:
    return f"({', '.join(map(str, size))})"
