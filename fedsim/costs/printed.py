"""The papers' numbers for the cost of a round (printed.toml), and how ours compare."""

import tomllib
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from fedsim.config import Experiment

MILLION = 1_000_000


@dataclass(frozen=True)
class Printed:
    """Millions of elements as a paper prints them."""

    millions: str
    source: str

    def agrees(self, elements: int) -> bool:
        """Whether our number, rounded as theirs, is theirs."""
        digits = Decimal(self.millions)
        return (Decimal(elements) / MILLION).quantize(digits, ROUND_HALF_UP) == digits

    def difference_percent(self, elements: int) -> float:
        printed = float(self.millions) * MILLION
        return 100 * (elements - printed) / printed


def printed_costs(experiment: Experiment) -> dict[str, Printed]:
    """By way (up, down, both): what papers print for exactly this experiment, the first table first."""
    found: dict[str, Printed] = {}
    for table in _tables():
        if "when" in table and _holds(table["when"], experiment):
            for way in ("up", "down", "both"):
                if number := table.get(way, {}).get(experiment.method_name):
                    found.setdefault(way, Printed(number, table["source"]))
    return found


def printed_formulae(method: str) -> dict[str, str]:
    """By source: a method's cost in a paper's own letters, up and down together."""
    return {table["source"]: table["formula"][method] for table in _tables() if method in table.get("formula", {})}


@cache
def _tables() -> list[dict[str, Any]]:
    text = resources.files(__package__).joinpath("printed.toml").read_text(encoding="utf-8")
    tables: list[dict[str, Any]] = tomllib.loads(text)["table"]
    return tables


def _holds(when: dict[str, Any], experiment: Experiment) -> bool:
    sections = msgspec.to_builtins(experiment)
    for path, wanted in when.items():
        section, key = path.split(".")
        given = sections[section].get(key, wanted)  # an option that a method does not have says nothing
        if path == "data.dataset":
            given = Path(given).stem
        if str(given).lower() != str(wanted).lower():
            return False
    return True
