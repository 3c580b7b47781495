"""Things described in words, `up=10mbit down=50mbit delay=40ms`, or by the name of a profile."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedsim.errors import UnknownName, UserError

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-z]*)")

BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9}
NUMBER = {"": 1.0}


@dataclass(frozen=True)
class Grammar:
    """What may be said of a thing, in which units, and what must be."""

    what: str
    units: Mapping[str, Mapping[str, float]]
    needed: Collection[str]
    """Above 0, too."""
    profiles: Mapping[str, str]
    example: str

    def read(self, text: str) -> dict[str, float]:
        """Everything that is said, in units of 1."""
        words = text.strip()
        if words and "=" not in words:
            if words.lower() not in self.profiles:
                raise UnknownName(self.what, words, self.profiles)
            words = self.profiles[words.lower()]
        said = dict(self._quantity(word, text) for word in words.split())
        if missing := [name for name in self.needed if name not in said]:
            raise UserError(f"the {self.what} {text!r} does not say {' and '.join(missing)}; {self.example}.")
        return said

    def _quantity(self, word: str, text: str) -> tuple[str, float]:
        where = f"{word!r} in the {self.what} {text!r}"
        name, sign, value = word.partition("=")
        match = _QUANTITY.fullmatch(value.lower())
        if not sign or name not in self.units or match is None:
            raise UserError(f"{where} is not understood; {self.example}.")
        if match[2] not in (units := self.units[name]):
            listed = " or ".join(filter(None, units)) or "a number alone"
            raise UserError(f"{where} is not understood: {name} is in {listed}.")
        number = float(match[1]) * units[match[2]]
        if name in self.needed and not number:
            raise UserError(f"{where} is nothing at all; give more than 0.")
        return name, number
