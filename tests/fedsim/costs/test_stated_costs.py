"""Formulae as papers and methods' authors state them, held against those that follow from the contracts.

Every option that the table does not name is varied too: none of them may change what travels.
"""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from fedsim import methods
from fedsim.contract import DIRECTIONS
from fedsim.costs.formula import formulae
from fedsim.errors import UserError

LETTERS = (
    *("M", "C", "K", "ΣC", "U", "ch", "h", "w", "Np", "Nb"),
    *("kept", "inputs", "model", "head", "gen", "aux", "f", "H", "common", "seen"),
)
PAIRS = "M*C*(ch*h*w + H)"

# Method, options: up, down, once up, once down.
STATED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("local", {}, ("0", "0")),
    ("fedavg", {}, ("M*model", "M*model")),
    ("fedprox", {}, ("M*model", "M*model")),
    ("feduv", {}, ("M*model", "M*model")),
    ("fednh", {}, ("M*model + (K + 1)*ΣC", "M*(model + K*C)")),
    ("fml", {}, ("M*aux", "M*aux")),
    ("fedkd", {}, ("M*f", "M*f")),
    ("fedmrl", {}, ("M*common", "M*common")),
    ("fedl2g", {}, ("M*seen*K", "M*K*C")),
    ("fedl2g", {"guide": "logits"}, ("M*seen*C", "M*C*C")),
    ("fedmd", {}, ("M*Np*C", "M*Np*C")),
    ("fedmd", {"public_data": "sent"}, ("M*Np*C", "M*Np*C", "0", "M*Np*inputs")),
    ("lg_fedavg", {}, ("M*head", "M*head")),
    ("fedgh", {}, ("K*ΣC", "M*head")),
    ("fedgen", {}, ("M*head", "M*(head + gen)", "M*C", "M*C")),
    ("feddistill", {}, ("C*ΣC", "M*C*U")),
    ("fedproto", {}, ("K*ΣC", "M*K*U")),
    ("fedproto", {"aggregation": "weighted"}, ("(K + 1)*ΣC", "M*K*U")),
    ("fedproto", {"report_margins": True}, ("(K + 1)*ΣC", "M*K*U")),
    ("fedproto", {"aggregation": "weighted", "report_margins": True}, ("(K + 2)*ΣC", "M*K*U")),
    ("protonorm", {}, ("K*ΣC", "M*K*U")),
    ("protonorm", {"report_margins": True}, ("(K + 1)*ΣC", "M*K*U")),
    ("fedtgp", {}, ("K*ΣC", "M*K*C")),
    ("fedtgp", {"report_margins": True}, ("(K + 1)*ΣC", "M*K*C")),
    ("fedprotokd", {}, ("M*Np*C + K*ΣC", "M*Np*C + M*K*C")),
    ("fedprotokd", {"report_margins": True}, ("M*Np*C + (K + 1)*ΣC", "M*Np*C + M*K*C")),
    ("fedprotokd", {"public_data": "sent"}, ("M*Np*C + K*ΣC", "M*Np*C + M*K*C", "0", "M*Np*inputs")),
    ("fedpkd", {}, ("M*Np*C + (K + 1)*ΣC", "M*kept*C + M*K*U")),
    ("fedpkd", {"report_margins": True}, ("M*Np*C + (K + 2)*ΣC", "M*kept*C + M*K*U")),
    ("fedpkd", {"public_data": "sent"}, ("M*Np*C + (K + 1)*ΣC", "M*kept*C + M*K*U", "0", "M*Np*inputs")),
    ("fed2pkd", {}, ("M*Nb*(K + C) + K*ΣC", "M*Nb*K + M*K*U")),
    ("fed2pkd", {"aggregation": "weighted"}, ("M*Nb*(K + C) + (K + 1)*ΣC", "M*Nb*K + M*K*U")),
    ("fed2pkd", {"public_data": "sent"}, ("M*Nb*(K + C) + K*ΣC", "M*Nb*K + M*K*U", "0", "M*Np*inputs")),
    ("fed2pkd", {"server_model": "CNN"}, ("M*Np*C + M*Nb*(K + C) + K*ΣC", "M*Nb*K + M*K*U")),
    (
        "fed2pkd",
        {"server_model": "CNN", "aggregation": "weighted", "public_data": "sent"},
        ("M*Np*C + M*Nb*(K + C) + (K + 1)*ΣC", "M*Nb*K + M*K*U", "0", "M*Np*inputs"),
    ),
    ("fedktl", {}, ("C*ΣC", PAIRS)),
    ("fedktl", {"etf_dim": 500}, ("500*ΣC", PAIRS)),
    ("fedktl", {"classifier": "original"}, ("K*ΣC", PAIRS)),
    ("fedktl", {"transfer": "mix"}, ("C*ΣC", "M*C*ch*h*w")),
    ("fedktl", {"transfer": "mix", "pairs_from": "labels"}, ("0", "0", "0", "M*C*ch*h*w")),
    ("fedktl", {"pairs_from": "labels"}, ("0", "0", "0", PAIRS)),
    ("fedktl", {"transfer": "none"}, ("0", "0")),
    ("fedktl", {"transfer": "none", "pairs_from": "labels"}, ("0", "0")),
]


def evaluate(formula: str, letters: dict[str, int]) -> int:
    """Python reads the formulae as they stand."""
    value: int = eval(formula, {"__builtins__": {}}, letters)
    return value


def some_values(kind: inspect.Type) -> list[Any]:
    """A few that an option may have: all of a choice, both ends and the middle of a range."""
    match kind:
        case inspect.BoolType():
            return [False, True]
        case inspect.LiteralType(values=choices):
            return list(choices)
        case inspect.UnionType(types=kinds):
            return [value for one in kinds for value in some_values(one)]
        case inspect.IntType(ge=least):
            return [(least or 0) + step for step in (0, 1, 2, 7)]
        case inspect.FloatType(gt=above, ge=least, lt=below, le=most):
            low = next(end for end in (least, above, 0) if end is not None)
            high = next(end for end in (most, below, low + 1) if end is not None)
            return [value for value in (low, (low + high) / 2, high) if value not in (above, below)]
        case inspect.StrType():
            return ["", "tiny", "CNN", "stylegan.pkl"]
    raise AssertionError(f"options of {kind} are not varied")


def configs(name: str, options: dict[str, Any]) -> Iterator[msgspec.Struct]:
    """With these options, and with any other option of the method changed beside them."""
    config = methods.load(name).Config
    named = {option for other, chosen, _ in STATED if other == name for option in chosen}
    info = inspect.type_info(config)
    assert isinstance(info, inspect.StructType)
    others = [field for field in info.fields if field.name not in named]
    changes = [{field.name: value} for field in others for value in some_values(field.type)]
    for change in [{}, *changes]:
        try:
            yield msgspec.convert({**options, **change}, config)
        except UserError:  # an option that needs another one
            assert change, f"{name} does not take {options}"


@pytest.mark.parametrize(
    ("name", "options", "stated"), STATED, ids=["-".join([name, *options]) for name, options, _ in STATED]
)
def test_the_contract_comes_to_what_is_stated(name: str, options: dict[str, Any], stated: tuple[str, ...]) -> None:
    draw = random.Random(name)
    for config in configs(name, options):
        found = formulae(methods.load(name).contract(config))
        for direction, formula in zip(DIRECTIONS, (*stated, "0", "0"), strict=False):
            letters = {letter: draw.randrange(2, 1000) for letter in LETTERS}
            expected = evaluate(formula, letters)
            assert found[direction].evaluate(letters) == expected, (config, direction)
            assert evaluate(str(found[direction]), letters) == expected, "what is printed is what is computed"


def test_the_table_names_every_method_and_its_options_are_varied() -> None:
    assert {name for name, _, _ in STATED} == set(methods.names())
    assert sum(len(list(configs(name, options))) for name, options, _ in STATED) > 1000
