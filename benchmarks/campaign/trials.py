"""One trial: a run, faults in it, `--resume` until it is whole, then every bit beside an undisturbed run."""

import json
import random
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.campaign.runs import EXPERIMENTS, Command, References, differences, resume_words, run_words

MAX_ATTEMPTS = 40


@dataclass
class Trial:
    """What was done to one run and what came of it."""

    kind: str
    number: int
    experiment: str
    options: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    messages: int = 0
    """Hostile ones that were sent."""
    ends: list[int] = field(default_factory=list)
    """The exit code of the run and of each time it was resumed."""
    differs: list[str] = field(default_factory=list)
    """All that is not as it should be, in words."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        ends = " ".join(map(str, self.ends))
        verdict = "same bits" if not self.differs else "DIFFERS: " + "; ".join(self.differs)
        faults = ", ".join(self.faults) or "none"
        return f"{self.kind} {self.number} ({self.experiment}): {faults}; exit {ends}; {verdict}"


class Stage:
    """Where trials are played: folders of their own, and references. What is left of one that differs is kept."""

    def __init__(self, folder: Path, seed: int, flood_messages: int):
        self.folder = folder
        self.seed = seed
        self.flood_messages = flood_messages
        self.references = References(folder / "references")

    def play(self, kind: str, number: int, act: "Act") -> Trial:
        draw = random.Random(f"{self.seed} {kind} {number}")
        trial = Trial(kind, number, draw.choice(sorted(EXPERIMENTS)))
        started, folder = time.monotonic(), self.trial_folder(trial)
        shutil.rmtree(folder, ignore_errors=True)
        self.run_folder(trial).parent.mkdir(parents=True)
        try:
            act(self, trial, draw)
        except Exception as error:
            trial.differs.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
        trial.seconds = round(time.monotonic() - started, 1)
        if not trial.differs:
            shutil.rmtree(folder)
        return trial

    def trial_folder(self, trial: Trial) -> Path:
        return self.folder / f"{trial.kind}-{trial.number:05d}"

    def run_folder(self, trial: Trial) -> Path:
        """Not beside what the trial itself writes: its disk may be full."""
        return self.trial_folder(trial) / "disk" / "run"

    def until_whole(
        self,
        trial: Trial,
        disturb: Callable[[Command], object],
        *options: str,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the run, then resume it again and again, each time with `disturb`, until it ends well."""

        def attempt(words: list[str], output: Path) -> int:
            command = Command(words, output, before)
            try:
                disturb(command)
                code = command.wait()
                trial.differs += [f"left running: {name}" for name in command.left_running()]
            finally:
                command.kill()
            return code

        folder = self.run_folder(trial)
        self.repeat(trial, run_words(trial.experiment, folder, *trial.options, *options), attempt)

    def repeat(self, trial: Trial, words: list[str], attempt: Callable[[list[str], Path], int]) -> None:
        """`attempt` with these words, then with those that resume what they began, until it ends well."""
        folder = self.run_folder(trial)
        for number in range(MAX_ATTEMPTS):
            trial.ends.append(attempt(words, self.trial_folder(trial) / f"attempt-{number:02d}.log"))
            if self.is_complete(folder):
                if trial.ends[-1] == 1:
                    trial.notes.append("complete, but its bytes do not agree")
                break
            if (folder / "config.toml").exists():
                words = resume_words(words[1], folder)
            else:  # it did not get as far as a folder
                shutil.rmtree(folder, ignore_errors=True)
        self.judge(trial)

    def judge(self, trial: Trial) -> None:
        folder = self.run_folder(trial)
        if not self.is_complete(folder):
            trial.differs.append(f"not complete after {len(trial.ends)} attempts")
            return
        trial.differs += differences(folder, self.references[trial.experiment])
        audit = json.loads((folder / "summary.json").read_text()).get("audit", {})
        trial.differs += [f"audit: {item}" for item in audit.get("differences", [])]
        trial.differs += [f"traceback in {path.name}" for path in _tracebacks(self.trial_folder(trial))]

    @staticmethod
    def is_complete(folder: Path) -> bool:
        try:
            return bool(json.loads((folder / "summary.json").read_text())["completed"])
        except (OSError, ValueError):
            return False


def _tracebacks(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.log")) if "Traceback" in path.read_text(errors="replace")]


Act = Callable[[Stage, Trial, random.Random], None]
"""What a kind of trial does."""


def played(journal: Path) -> list[Trial]:
    """Trials of earlier calls; a line that was cut off does not count."""
    if not journal.exists():
        return []
    *lines, _ = journal.read_text().split("\n")
    return [Trial(**json.loads(line)) for line in lines]


def as_record(trial: Trial) -> dict[str, Any]:
    return asdict(trial)


def summary_rows(trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    rows = []
    for kind in sorted({trial.kind for trial in trials}):
        of_kind = [trial for trial in trials if trial.kind == kind]
        rows.append(
            (
                kind,
                f"{len(of_kind)}",
                f"{sum(len(trial.faults) for trial in of_kind)}",
                f"{sum(trial.messages for trial in of_kind):,}",
                f"{sum(len(trial.ends) - 1 for trial in of_kind)}",
                f"{sum(not trial.differs for trial in of_kind)}",
                f"{sum(bool(trial.differs) for trial in of_kind)}",
            )
        )
    return rows
