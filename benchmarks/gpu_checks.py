"""On a real GPU: do own processes and shared executors give the same bits, twice, and how many contexts are there?

    make test-gpu        (python -m benchmarks.gpu_checks [--clients 6] [--method fedproto])

Where there is no GPU nothing is run, and that is said. `docs/gpus.md` says what was tested where there was none.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from benchmarks._common import run_cluster, show
from fedsim import assembly, config
from nodes.launchers import gpus, zygote
from nodes.server.events import Event


class Observer:
    """Asks the driver who has a context, when all have worked."""

    def __init__(self) -> None:
        self.num_contexts = 0
        self.collect_seconds: list[float] = []

    def on_event(self, event: Event) -> None:
        if event["event"] == "round_finished":
            self.collect_seconds.append(event["collect_seconds"])
            command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
            listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
            self.num_contexts = max(self.num_contexts, len(listed))

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--method", default="fedproto")
    parser.add_argument("--model-group", default="HtCNN8")
    arguments = parser.parse_args()
    names = gpus.usable_gpus()
    if not names:
        print("not run: no GPU")
        return
    zygote.preload()
    rows, found = [], set()
    for compute in ("own", "own", "shared", "shared"):
        experiment = config.build(
            [
                {
                    "run": {"clients": arguments.clients, "rounds": 3},
                    "model": {"group": arguments.model_group},
                    "method": {"name": arguments.method},
                    "cluster": {"compute": compute},
                }
            ]
        )
        assembly.check(experiment)
        observer = Observer()
        with tempfile.TemporaryDirectory() as parent:
            folder = run_cluster(Path(parent) / "run", experiment, observer)
            found.add((folder.path / "metrics.csv").read_bytes())
        rows.append((compute, str(observer.num_contexts), f"{min(observer.collect_seconds):.2f} s"))
    show(f"{arguments.clients} clients on {len(names)} GPUs", ("", "processes on GPUs", "a round"), rows)
    if len(found) > 1:
        raise SystemExit(f"{len(found)} different results of four runs that must be the same")
    print("four runs, the same bits")


if __name__ == "__main__":
    main()
