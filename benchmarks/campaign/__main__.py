"""`python -m benchmarks.campaign`: faults of every kind against small runs, each held beside an undisturbed one.

It prints what was tried, what was compared and every difference, and ends with exit code 1 if there is one. With
--out the trials are written down as they end, and a later call goes on where the earlier one stopped; folders of
trials that differ are kept there.

    python -m benchmarks.campaign                                     a few minutes
    python -m benchmarks.campaign --process 250 --link 40 --hostile 20 --out campaign
"""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from benchmarks._common import CONSOLE, show
from benchmarks.campaign.kinds import KINDS
from benchmarks.campaign.trials import Stage, Trial, as_record, played, summary_rows
from nodes.launchers import zygote

_DEFAULTS = {"process": 10, "report": 1, "link": 4, "hostile": 1, "disk": 4, "clock": 1}


@click.command(
    params=[
        click.Option([f"--{kind}"], type=click.IntRange(0), default=None, help="Trials with faults of this kind.")
        for kind in KINDS
    ]
)
@click.option(
    "--seed", default=1, show_default=True, help="Same seed, same faults; when they strike is the machine's."
)
@click.option("--out", type=Path, help="A folder to keep trials in, and to go on from.")
@click.option("--messages", default=50_000, show_default=True, help="Hostile ones in a trial with them.")
def main(seed: int, out: Path | None, messages: int, **wanted: int | None) -> None:
    """Faults of every kind against small runs, each held beside an undisturbed one.

    Say how many trials of which kind; by default a few of each.
    """
    given = {kind: number for kind, number in wanted.items() if number is not None} or _DEFAULTS
    zygote.preload()
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="campaign-")))
        trials = campaign(Stage(folder.resolve(), seed, messages), given)
    headings = ("faults of", "trials", "faults", "messages", "resumed", "same bits", "differ")
    show(f"campaign, seed {seed}", headings, summary_rows(trials))
    differing = [trial for trial in trials if trial.differs]
    CONSOLE.print(f"{len(trials)} results compared, {len(differing)} differences")
    for trial in differing:
        CONSOLE.print(trial.line(), soft_wrap=True, markup=False)
    sys.exit(1 if differing else 0)


def campaign(stage: Stage, wanted: dict[str, int]) -> list[Trial]:
    """All kinds by turns, so that a campaign that is cut short has tried something of each."""
    journal = stage.folder / "trials.jsonl"
    trials = played(journal)
    done = {(trial.kind, trial.number) for trial in trials}
    plan = sorted((number / count, kind, number) for kind, count in wanted.items() for number in range(count))
    stage.folder.mkdir(parents=True, exist_ok=True)
    with journal.open("a", buffering=1) as file:
        for _, kind, number in plan:
            if (kind, number) in done:
                continue
            trial = stage.play(kind, number, KINDS[kind])
            trials.append(trial)
            CONSOLE.print(trial.line(), soft_wrap=True, markup=False)
            file.write(json.dumps(as_record(trial)) + "\n")
    return trials


if __name__ == "__main__":
    main()
