"""The virtual clock against the relay: whole runs that really wait, and what the clock says of their rounds.

    python -m benchmarks.clock --methods fedproto fedtgp fedavg --links wifi 4g 3g --out FOLDER

The clock is given the ledger, the timings and the slots of a run; it knows nothing of how long its rounds took.
A round is within bounds where both differ by at most 10 %. Finished runs are not made again.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks._common import machine_load, run_all, show
from fedsim import adaptation
from fedsim.results.load import LoadedRun
from fedsim.world import links
from fedsim.world.clock import Air
from nodes.tools.replay import on_own_slots

_BOUND = 0.1


def ratios(run: LoadedRun) -> list[float]:
    """Of each round: seconds by the clock over seconds as measured."""
    air = Air(links.of_clients(run.experiment), run.experiment.run.seed)
    return [time.seconds / run.rounds[time.round]["seconds"] for time in on_own_slots(run, air)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["fedproto", "fedtgp", "fedavg"])
    parser.add_argument("--links", nargs="+", default=["wifi", "4g", "3g"])
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--samples-per-class", type=int, default=60)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/clock"))
    options = parser.parse_args()
    experiments = {}
    for method in options.methods:
        for link in options.links:
            layer = {
                "method": {"name": method},
                "data": {"dataset": options.dataset, "samples_per_class": options.samples_per_class},
                "run": {"clients": options.clients, "rounds": options.rounds},
                "cluster": {"slots": options.slots},
                "world": {"link": link},
            }
            experiments[method, link] = f"{method} over {link}", adaptation.build([layer])[0]
    rows, within, total = [], 0, 0
    for (method, link), run in run_all(options.out, experiments).items():
        found = ratios(run)
        near = sum(abs(ratio - 1) <= _BOUND for ratio in found)
        within, total = within + near, total + len(found)
        measured = statistics.fmean(said["seconds"] for said in run.rounds.values())
        bounds = f"{min(found):.3f} to {max(found):.3f}"
        agree = f"{run.summary['audit']['agree']} of {options.clients}" if run.summary else "–"
        rows.append(
            [
                method,
                link,
                f"{measured:.2f}",
                f"{statistics.fmean(found):.3f}",
                bounds,
                f"{near} of {len(found)}",
                agree,
            ]
        )
    headings = (
        "method",
        "link",
        "seconds a round",
        "clock / measured",
        "from round to round",
        "within 10 %",
        "kernel agrees",
    )
    show(f"The virtual clock against the relay ({machine_load()})", headings, rows)
    print(f"{within} of {total} rounds within 10 %")


if __name__ == "__main__":
    main()
