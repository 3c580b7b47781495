"""What several runs amount to: one number of each, mean and deviation over seeds, beside a paper's numbers."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

from fedsim.metrics import describe
from fedsim.presets.tables import Printed
from fedsim.results.load import load

PERCENT = 100.0


@dataclass(frozen=True)
class Measured:
    """One number per seed."""

    values: tuple[float, ...]
    in_percent: bool = True

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The population's, as in the papers (numpy's default)."""
        return statistics.pstdev(self.values)

    def __str__(self) -> str:
        shape = ".2f" if self.in_percent else ".4g"
        # A single run has no deviation, rather than one of 0.
        return f"{self.mean:{shape}}" + (f" ± {self.deviation:{shape}}" if len(self.values) > 1 else "")


@dataclass(frozen=True)
class Row:
    """One cell of a table."""

    labels: Mapping[str, str]
    metric: str
    measured: Measured | None
    printed: Printed | None = None
    note: str = ""
    """Why there is no number, ours or the paper's."""


@dataclass(frozen=True)
class Comparison:
    """A whole table, ready to be shown."""

    title: str
    scale: str
    """How ours came about, for the heading of our column: "quick scale"."""
    notes: Sequence[str]
    rows: Sequence[Row]
    is_comparable: bool = True
    """Whether a difference between ours and the paper's means anything."""

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells as text, without columns that would say nothing."""
        several_metrics = len({row.metric for row in self.rows}) > 1
        ours = f"ours, {self.scale} (%)"
        cells = [
            {
                **row.labels,
                "metric": row.metric.replace("_", " ") if several_metrics else "",
                ours: str(row.measured or ""),
                "runs": str(len(row.measured.values) if row.measured else 0),
                "paper (%)": str(row.printed or ""),
                "difference": self._difference(row),
                "note": row.note,
            }
            for row in self.rows
        ]
        headings = [name for name in cells[0] if name == ours or any(row[name] for row in cells)]
        return headings, [[row[name] for name in headings] for row in cells]

    def _difference(self, row: Row) -> str:
        if not (self.is_comparable and row.measured and row.printed):
            return ""
        return f"{row.measured.mean - row.printed.mean:+.2f}"

    def markdown(self) -> str:
        headings, cells = self.grid()
        lines = [f"# {self.title}", "", *(line for note in self.notes for line in (note, ""))]
        lines += [_markdown_line(headings), _markdown_line(["---"] * len(headings))]
        lines += [_markdown_line(row) for row in cells]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """One row a cell, numbers without signs or units, so that pandas reads it directly."""
        rows = [
            {
                **row.labels,
                "metric": row.metric,
                "scale": self.scale,
                "ours_mean": row.measured and row.measured.mean,
                "ours_deviation": row.measured and row.measured.deviation,
                "ours_runs": len(row.measured.values) if row.measured else 0,
                "paper_mean": row.printed and row.printed.mean,
                "paper_deviation": row.printed and row.printed.deviation,
                "note": row.note,
            }
            for row in self.rows
        ]
        return DataFrame(rows).to_csv(index=False, lineterminator="\n")

    def write(self, stem: Path) -> list[Path]:
        """As Markdown and CSV."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths = [stem.with_name(f"{stem.name}.md"), stem.with_name(f"{stem.name}.csv")]
        for path, text in zip(paths, (self.markdown(), self.csv()), strict=True):
            path.write_text(text, encoding="utf-8")
        return paths


def number_of(folder: Path, metric: str) -> float | None:
    """What counts of a column of metrics.csv; None where the run never had one."""
    found = load(folder).best_and_last(metric)
    if found is None:
        return None
    return PERCENT * found.best if describe(metric).is_share else found.last


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
