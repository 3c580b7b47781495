"""What a method costs, as a formula that can be read, evaluated and held against the ledger.

    Cost(up="K*ΣC", down="M*K*C")

A formula counts the elements of one round in which all clients take part, over letters: M clients, C classes,
K features, ΣC the classes held summed over clients, U the classes that any client holds (all C, as a rule),
`ch h w` of an image, and the letters that a method's `sizes` defines. The papers count the same way.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsim.data import Subset
from fedsim.learning.training import samples_per_epoch
from fedsim.method import Setting

_OPERATIONS = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
}


@dataclass(frozen=True)
class Cost:
    """Elements of one full round, and of the set-up before the first one."""

    up: str
    down: str
    setup_up: str = "0"
    setup_down: str = "0"
    note: str = ""
    """What a formula cannot say: that the number depends on weights, for example."""


def evaluate(formula: str, letters: Mapping[str, int]) -> int:
    """The number that a formula stands for."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=letter):
                return letters[letter]
            case ast.BinOp(left=left, op=operation, right=right):
                return _OPERATIONS[type(operation)](value(left), value(right))
        raise ValueError(f"{formula!r} is not made of letters, whole numbers, +, - and *")

    return value(ast.parse(formula, mode="eval").body)


def letters_in(*formulae: str) -> list[str]:
    """The letters that formulae use, in the order in which they come."""
    nodes = [node for formula in formulae for node in ast.walk(ast.parse(formula, mode="eval"))]
    return list(dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name)))


def pretty(formula: str) -> str:
    """As a paper would print it."""
    return formula.replace(" ", "").replace("*", "·").replace("+", " + ").replace("-", " - ").replace("ΣC", "ΣCᵢ")


def letters_of(setting: Setting) -> dict[str, int]:
    """All letters that a method's formulae may use in this setting."""
    covered = [classes_covered(setting, client) for client in range(setting.task.num_clients)]
    held = {"ΣC": sum(map(len, covered)), "U": len(set().union(*covered))}
    return setting.rehearsed_dimensions | held


def classes_covered(setting: Setting, client: int) -> set[int]:
    """The classes that a client trains on: with `drop_last` those of whole batches only."""
    subset: Subset = setting.federation.client(client).train
    return set(np.unique(subset.labels[: samples_per_epoch(len(subset), setting.experiment.train)]).tolist())
