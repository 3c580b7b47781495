"""What several runs amount to: the best round of each, mean and deviation over seeds, beside a paper's numbers."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsim.presets.tables import Printed
from fedsim.results.load import load

PERCENT = 100.0


@dataclass(frozen=True)
class Measured:
    """One number per seed, in percent."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def deviation(self) -> float:
        """The population's, as in the papers (numpy's default)."""
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / len(self.values))

    def __str__(self) -> str:
        # A single run has no deviation, rather than one of 0.
        return f"{self.mean:.2f}" + (f" ± {self.deviation:.2f}" if len(self.values) > 1 else "")


@dataclass(frozen=True)
class Row:
    """One cell of a table or one combination of a sweep."""

    labels: Mapping[str, str]
    metric: str
    measured: Measured | None
    printed: Printed | None = None
    note: str = ""
    """Why there is no number, ours or the paper's."""

    @property
    def ours(self) -> str:
        return str(self.measured) if self.measured else ""

    @property
    def paper(self) -> str:
        return str(self.printed) if self.printed else ""

    @property
    def difference(self) -> str:
        return f"{self.measured.mean - self.printed.mean:+.2f}" if self.measured and self.printed else ""


@dataclass(frozen=True)
class Comparison:
    """A whole table, ready to be shown."""

    title: str
    scale: str
    """How ours came about, for the heading of our column: "quick scale"; empty for a sweep."""
    notes: Sequence[str]
    rows: Sequence[Row]
    is_comparable: bool = True
    """Whether a difference between ours and the paper's means anything."""

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells as text, without columns that would say nothing."""
        columns: dict[str, list[str]] = {
            label: [row.labels[label] for row in self.rows] for label in self.rows[0].labels
        }
        if len({row.metric for row in self.rows}) > 1:
            columns["metric"] = [row.metric.replace("_", " ") for row in self.rows]
        ours = f"ours, {self.scale} (%)" if self.scale else "best round (%)"
        columns[ours] = [row.ours for row in self.rows]
        columns["runs"] = [str(len(row.measured.values)) if row.measured else "0" for row in self.rows]
        if any(row.printed for row in self.rows):
            columns["paper (%)"] = [row.paper for row in self.rows]
            if self.is_comparable:
                columns["difference"] = [row.difference for row in self.rows]
        if any(row.note for row in self.rows):
            columns["note"] = [row.note for row in self.rows]
        return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]

    def markdown(self) -> str:
        headings, cells = self.grid()
        lines = [f"# {self.title}", "", *(line for note in self.notes for line in (note, ""))]
        lines += [_markdown_line(headings), _markdown_line(["---"] * len(headings))]
        lines += [_markdown_line(row) for row in cells]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """One row a cell, numbers without signs or units, so that pandas reads it directly."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        numbers = ("ours_mean", "ours_deviation", "ours_runs", "paper_mean", "paper_deviation")
        writer.writerow([*self.rows[0].labels, "metric", "scale", *numbers, "note"])
        for row in self.rows:
            ours = (
                [row.measured.mean, row.measured.deviation, len(row.measured.values)]
                if row.measured
                else ["", "", 0]
            )
            paper = [row.printed.mean, _or_empty(row.printed.deviation)] if row.printed else ["", ""]
            writer.writerow([*row.labels.values(), row.metric, self.scale, *ours, *paper, row.note])
        return buffer.getvalue()

    def write(self, stem: Path) -> list[Path]:
        """As Markdown and CSV."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths = [stem.with_name(f"{stem.name}.md"), stem.with_name(f"{stem.name}.csv")]
        for path, text in zip(paths, (self.markdown(), self.csv()), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths


def best_of_rounds(folder: Path, metric: str) -> float | None:
    """The largest value of a column of metrics.csv, in percent; None where the run never had one."""
    metrics = load(folder).metrics
    if metric not in metrics:
        return None
    values = metrics.known(metric)[1]
    return PERCENT * float(values.max()) if len(values) else None


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value
