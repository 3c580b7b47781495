"""The relay of a local run as a process: between its clients and its server, where the experiment has links."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path

from fedsim.config import Experiment
from fedsim.world import links
from fedsim.world.links import Link
from nodes.launchers import processes, zygote
from protocol.relay import CAPACITY_BYTES, LATE_SECONDS, Relay, Shape, Shapes

REPORT = "relay.json"
"""In the folder of logs: what each connection has carried, and how late the relay ever was."""

_MEGABYTE = 1e6


def is_wanted(experiment: Experiment) -> bool:
    """Whether there is a link to wait for."""
    return experiment.world_config().wait and any(links.of_clients(experiment))


class RelayProcess:
    """Started by `between`; `stop` ends it and says what is to be said of it."""

    def __init__(self, relay: Relay, logs: Path):
        self.address = relay.address
        self.notes = _too_much(relay.nominal_bytes_per_second)
        self._report = logs / REPORT
        self._process = zygote.fork(lambda: _serve(relay, logs))
        relay.close()

    @classmethod
    def between(cls, experiment: Experiment, server: str, logs: Path) -> RelayProcess | None:
        """None where there is nothing to wait for."""
        if not is_wanted(experiment):
            return None
        processes.raise_file_limit()
        shapes = [_shapes(link) for link in links.of_clients(experiment)]
        return cls(Relay(server, shapes, experiment.run.seed), logs)

    def stop(self) -> list[str]:
        """It passes nothing on any more; returns sentences for the user, mostly none."""
        zygote.stop_process(self._process)
        try:
            report = json.loads(self._report.read_text())
        except (OSError, ValueError):
            return [f"the relay has not said what it carried; see {self._report.with_suffix('.log')}."]
        sentences = []
        if wrong := [book["client"] for book in report["connections"] if not book["agrees"]]:
            sentences.append(f"the relay has not passed on what it got of clients {wrong}; see {self._report}.")
        if report["latest_seconds"] > LATE_SECONDS:
            sentences.append(
                f"the relay was up to {1000 * report['latest_seconds']:.0f} ms late, because this machine had "
                "other things to do; for times to trust, use fewer or slower links, or ask fedsim time."
            )
        return sentences


def _serve(relay: Relay, logs: Path) -> int:
    zygote.redirect_output(logs / "relay.log")
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    relay.serve(lambda: is_over)
    connections = [{**asdict(books), "agrees": books.agrees} for books in relay.books]
    temporary = logs / f".{REPORT}.{os.getpid()}"
    temporary.write_text(
        json.dumps({"latest_seconds": relay.latest_seconds, "connections": connections}, indent=1)
    )
    temporary.replace(logs / REPORT)
    return 0 if all(books.agrees for books in relay.books) else 1


def _shapes(link: Link | None) -> Shapes:
    if link is None:
        return None, None
    up, down = (
        Shape(bits / 8, link.delay_seconds, link.jitter_seconds) for bits in (link.up_bits, link.down_bits)
    )
    return up, down


def _too_much(bytes_per_second: float) -> list[str]:
    if bytes_per_second <= CAPACITY_BYTES:
        return []
    return [
        f"all links together carry {bytes_per_second / _MEGABYTE:.0f} MB a second, and the relay about "
        f"{CAPACITY_BYTES / _MEGABYTE:.0f}: where all clients send at once, it will be slower than their links."
    ]
