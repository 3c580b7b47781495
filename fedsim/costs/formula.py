"""What a round costs: elements by a formula that follows from the contract, and bytes by it and the encodings.

    Contract(up={"prototypes": Field(PROTOTYPES, "n K")}, down={"prototypes": Field(PROTOTYPES, "C K")})

is K·ΣC up and M·K·C down. A formula counts the elements of one round in which all clients take part, as the papers
do, over letters: M clients, C classes, K features, ΣC the classes held summed over clients, U the classes that any
client holds (all C, as a rule), the input's (`ch h w` of an image, `length` of a text), and those that a method's
`sizes` defines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np

from fedsim.contract import CLASSES_HELD, DIRECTIONS, Contract, Field
from fedsim.data import Subset
from fedsim.encodings import Chosen
from fedsim.encodings.base import Encoding
from fedsim.learning.training import samples_per_epoch
from fedsim.method import Setting

ALL_HELD, ANY_HELD = "ΣC", "U"
_ORDER = ("M", "", "K", "C", "ch", "h", "w", "sensors", "length", ANY_HELD, ALL_HELD)
"""Of letters in a product; those of a method come where the empty one stands."""

Product = tuple[str, ...]
"""Letters and whole numbers."""


@dataclass(frozen=True)
class Formula:
    """A sum of products."""

    products: tuple[Product, ...]

    def evaluate(self, letters: Mapping[str, int]) -> int:
        numbers = ((int(word) if word.isdigit() else letters[word] for word in words) for words in self.products)
        return sum(map(prod, numbers))

    @property
    def letters(self) -> list[str]:
        """In the order in which they come."""
        return [word for word in dict.fromkeys(chain(*self.products)) if not word.isdigit()]

    def __str__(self) -> str:
        """`M*(head+gen)`, with what terms share before the brackets."""
        counted = Counter(self.products).items()
        terms = [_ordered([str(times), *product]) if times > 1 else product for product, times in counted]
        return _sum(terms) or "0"


def formulae(contract: Contract) -> dict[str, Formula]:
    """By direction, as the contract names them: of a round, and of the set-up before the first one."""
    return {way: _formula(getattr(contract, way).values(), up=way.endswith("up")) for way in DIRECTIONS}


def payload_bytes(setting: Setting, contract: Contract, chosen: Chosen) -> dict[str, int | None]:
    """By direction: all bytes of arrays, in their encodings, of a round in which all clients take part; None where
    those of one depend on its values."""
    covered = [classes_covered(setting, client) for client in range(setting.task.num_clients)]
    held = [len(classes) for classes in covered]
    anyone = [len(set().union(*covered))] * len(held)
    found: dict[str, int | None] = {}
    for way in DIRECTIONS:
        sizes = [
            _field_bytes(item, setting.rehearsed_dimensions | {CLASSES_HELD: number}, chosen[way].get(name))
            for name, item in getattr(contract, way).items()
            for number in (held if way.endswith("up") else anyone)
        ]
        known = [size for size in sizes if size is not None]
        found[way] = sum(known) if len(known) == len(sizes) else None
    return found


def _field_bytes(field: Field, letters: Mapping[str, int], encoding: Encoding | None) -> int | None:
    shape = tuple(int(word) if word.isdigit() else letters[word] for word in field.words)
    return (encoding or Encoding()).num_bytes(shape, field.numpy_dtype)


def pretty(formula: str) -> str:
    """As a paper would print it."""
    return formula.replace("*", "·").replace("+", " + ").replace(ALL_HELD, "ΣCᵢ")


def letters_of(setting: Setting) -> dict[str, int]:
    """All letters that the formulae of a method may use in this setting."""
    covered = [classes_covered(setting, client) for client in range(setting.task.num_clients)]
    held = {ALL_HELD: sum(map(len, covered)), ANY_HELD: len(set().union(*covered))}
    return setting.rehearsed_dimensions | held


def classes_covered(setting: Setting, client: int) -> set[int]:
    """The classes that a client trains on: with `drop_last` those of whole batches only."""
    subset: Subset = setting.federation.client(client).train
    return set(np.unique(subset.labels[: samples_per_epoch(len(subset), setting.experiment.train)]).tolist())


def _formula(fields: Iterable[Field], *, up: bool) -> Formula:
    """Rows of classes are each client's own on the way up and those that anyone holds on the way down; all else is
    as large for each of the M clients."""
    products = []
    for field in fields:
        if field.payload.is_knowledge:
            words = [(ALL_HELD if up else ANY_HELD) if word == CLASSES_HELD else word for word in field.words]
            products.append(_ordered(words if ALL_HELD in words else ["M", *words]))
    return Formula(tuple(products))


def _ordered(words: list[str]) -> Product:
    return tuple(sorted(words, key=lambda word: _ORDER.index(word if word in _ORDER else "")))


def _sum(products: list[Product]) -> str:
    """Those that are for each client first, then those that are for each class held."""
    groups: dict[str, list[Product]] = {}
    for product in products:
        groups.setdefault(ALL_HELD if ALL_HELD in product else "".join(product[:1]), []).append(product)
    return "+".join(_bracketed(groups[first]) for first in sorted(groups, key=lambda first: first != "M"))


def _bracketed(products: list[Product]) -> str:
    """`M*(model+K*C)`, `(K+1)*ΣC`."""
    if len(products) == 1:
        return "*".join(products[0]) or "1"
    shared = Counter(products[0])
    for product in products[1:]:
        shared &= Counter(product)
    rest = [tuple((Counter(product) - shared).elements()) for product in products]
    last = [ALL_HELD] * shared.pop(ALL_HELD, 0)
    return "*".join([*shared.elements(), f"({_sum(rest)})", *last])
