"""Tables of the papers: axes, settings and printed numbers, as cells that can be run.

A file states its axes (method, data set, ...), each a list of labels. A label stands for a layer of the config,
which the table gives itself or takes from its paper's file. Rows and columns are products of axes, in their
order, so `printed` has the layout of the paper's own table: one list for each row. In it

    "46.94±0.12"  is a number as printed, in percent,
    "–"           is a dash that the paper prints; `dash` says what it means,
    "·"           is a cell of ours, to compare with, that the paper has no number for,
    ""            is a cell that the paper does not have.

A table without `printed` is a figure: what it shows is drawn from the runs.
"""

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import msgspec

from fedsim.config import Experiment, build
from fedsim.errors import UnknownName, UserError

DASH, OURS = "–", "·"
Layer = dict[str, Any]
Labels = dict[str, str]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that belong to a combination of labels, such as a method's options for one data set."""

    when: dict[str, list[str]]
    set: Layer

    def applies_to(self, labels: Labels) -> bool:
        return all(labels.get(axis) in wanted for axis, wanted in self.when.items())


class Paper(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all tables of a paper share."""

    title: str
    cite: str
    base: Layer
    axes: dict[str, dict[str, Layer]]
    rules: list[Rule] = []
    note: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table or figure."""

    paper: str
    title: str
    source: str
    """Where it is printed."""
    metric: str = "accuracy"
    """The column of metrics.csv of which the best round counts. A label may name another with the key `metric`."""
    base: Layer = {}
    axes: dict[str, list[str] | dict[str, Layer]] = {}
    rows: list[str] = []
    columns: list[str] = []
    """Axes whose labels make the rows and the columns; without both, all axes make columns."""
    printed: dict[str, list[str]] = {}
    dash: Literal["not applicable", "failed to converge", ""] = ""
    rules: list[Rule] = []
    note: str = ""
    see: list[str] = []
    """Commands that show what runs do not: communication cost, FLOPs, partitions."""

    def cells(self) -> list["Cell"]:
        """All cells, row by row; none where a table is not made of runs."""
        if not self.axes:
            return []
        paper = load_paper(self.paper)
        axes = {name: _layers_of(name, given, paper) for name, given in self.axes.items()}
        row_axes = self.rows
        column_axes = self.columns or [name for name in axes if name not in row_axes]
        fixed = {name: _only(labels) for name, labels in axes.items() if name not in (*row_axes, *column_axes)}
        cells = []
        for row in itertools.product(*(axes[name] for name in row_axes)):
            texts = iter(self.printed[" / ".join(row)]) if self.printed else None
            for column in itertools.product(*(axes[name] for name in column_axes)):
                labels = fixed | dict(zip((*row_axes, *column_axes), (*row, *column), strict=True))
                text = next(texts) if texts else None
                if text != "":
                    cells.append(self._cell(paper, axes, labels, text))
            if texts and (left := list(texts)):
                raise ValueError(f"{self.source}: row {row} prints {len(left)} numbers too many")
        return cells

    def _cell(
        self, paper: Paper, axes: Mapping[str, Mapping[str, Layer]], labels: Labels, text: str | None
    ) -> "Cell":
        chosen = [dict(axes[name][label]) for name, label in labels.items()]
        metric = next((layer.pop("metric") for layer in chosen if "metric" in layer), self.metric)
        # A layer that names the method comes first, because a change of method drops the options before it; then
        # what the paper says of such a method, then the options that the table varies.
        methods = [layer for layer in chosen if "name" in layer.get("method", {})]
        options = [layer for layer in chosen if layer not in methods]
        of_paper, of_table = (
            [r.set for r in rules if r.applies_to(labels)] for rules in (paper.rules, self.rules)
        )
        is_dash = text == DASH
        return Cell(
            labels=labels,
            layers=(paper.base, self.base, *methods, *of_paper, *options, *of_table),
            metric=metric,
            printed=parse_printed(text) if text and text not in (DASH, OURS) else None,
            dash=self.dash if is_dash else "",
        )

    @property
    def base_layers(self) -> list[Layer]:
        """What all cells have in common."""
        return [load_paper(self.paper).base, self.base]


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it, in percent."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Cell:
    """One number of a table: which experiment it is and what the paper says."""

    labels: Labels
    layers: tuple[Layer, ...]
    metric: str
    printed: Printed | None
    dash: str = ""
    """What the paper's dash in this cell means; empty where it prints none."""

    @property
    def is_run(self) -> bool:
        """Where a method is not applicable there is nothing to run; where it failed, it is run all the same."""
        return self.dash != "not applicable"

    @property
    def name(self) -> str:
        return ", ".join(self.labels.values())

    def experiment(self, *layers: Layer) -> Experiment:
        """Later layers win, so a user's own settings go on top."""
        return build([*self.layers, *layers])


def parse_printed(text: str) -> Printed:
    mean, _, deviation = text.partition("±")
    return Printed(float(mean), float(deviation) if deviation else None)


def names() -> list[str]:
    """All presets: fedtgp-table2 before fedtgp-table10."""
    files = resources.files(__package__).iterdir()
    return sorted((f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")), key=_natural)


@cache
def load(name: str) -> Table:
    if name not in names():
        raise UnknownName("preset", name, names())
    return _read(f"{name}.toml", Table)


@cache
def load_paper(name: str) -> Paper:
    return _read(f"papers/{name}.toml", Paper)


def select(name: str, cells: Sequence[Cell], words: Iterable[str]) -> list[Cell]:
    """The cells that have one of the words in each axis where a word was given: `cifar10,practical`."""
    known = {(axis, label) for cell in cells for axis, label in cell.labels.items()}
    wanted: dict[str, set[str]] = {}
    for word in words:
        found = [(axis, label) for axis, label in known if plain(label) == plain(word)]
        if not found:
            raise UnknownName(f"label in {name}", word.lower(), {label.lower() for _, label in known})
        for axis, label in found:
            wanted.setdefault(axis, set()).add(label)
    chosen = [cell for cell in cells if all(cell.labels[axis] in labels for axis, labels in wanted.items())]
    if not chosen:
        raise UserError(
            f"{name} has no cell with all of {', '.join(words)}; fedsim presets {name} lists its cells."
        )
    return chosen


def preset_layers(text: str) -> list[Layer]:
    """For `--preset`: `fedtgp-table10` is what its cells share, `fedtgp-table10/practical,fedtgp` one of them."""
    name, slash, words = text.partition("/")
    table = load(name)
    if not slash:
        return table.base_layers
    cells = select(name, table.cells(), words.split(","))
    if len(cells) > 1:
        raise UserError(
            f"{text} is {len(cells)} cells, such as {cells[0].name} and {cells[1].name}; add labels until it is "
            "one."
        )
    return list(cells[0].layers)


def plain(text: str) -> str:
    """CIFAR-10, Cifar10 and cifar_10 are one word; HtFE₈ has no subscript here."""
    return "".join(letter for letter in text.lower() if letter.isalnum() or letter in "+*.")


def _layers_of(axis: str, given: list[str] | dict[str, Layer], paper: Paper) -> dict[str, Layer]:
    if isinstance(given, dict):
        return given
    known = paper.axes.get(axis, {})
    for label in given:
        if label not in known:
            raise UnknownName(f"{axis} in {paper.title}", label, known)
    return {label: known[label] for label in given}


def _only(labels: Mapping[str, Layer]) -> str:
    """Of an axis that is neither row nor column."""
    (label,) = labels
    return label


def _natural(name: str) -> tuple[str, str, int]:
    paper, _, item = name.rpartition("-")
    kind = item.rstrip("0123456789")
    number = item.removeprefix(kind)
    return paper, kind, int(number) if number else 0


def _read(path: str, kind: type) -> Any:
    text = (resources.files(__package__) / path).read_text(encoding="utf-8")
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from None
