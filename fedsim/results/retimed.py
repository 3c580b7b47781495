"""A finished run asked again: what its rounds would take over other links and on other devices.

Bytes are the ledger's. Where a device is known, a client's training takes its operations at the device's speed;
otherwise as long as was measured. The server's own step takes what was measured, in seconds of the clock or of the
processor, whichever are fewer: on a machine that does other things too the clock counts these as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pandas import DataFrame, Series

from fedsim.errors import UserError
from fedsim.results.load import LoadedRun
from fedsim.world.clock import Air, Part, RoundTime, on_own_devices
from fedsim.world.devices import Device
from fedsim.world.links import PROFILES, parse

Clock = Mapping[tuple[str, str], Sequence[RoundTime]]
"""(link, schedule) -> a run's rounds."""

SETUP = -1
"""The round of what is agreed on before the first."""
_METHOD_WORK = ("receive", "train", "upload")
_ALL_WORK = (*_METHOD_WORK, "evaluate", "save")


def message_bytes(run: LoadedRun) -> Series:
    """On the wire, by round, client and kind of message."""
    if not len(run.ledger):
        raise UserError(f"{run.path} has no ledger, for it had no wire; run it without --in-process.")
    return run.ledger.groupby(["round", "client", "message"])["wire_bytes"].sum()


def measured_seconds(run: LoadedRun, *, for_method: bool) -> Series:
    """What clients computed, by round and client; `for_method`: without tests and checkpoints."""
    table = run.timings.set_index(["round", "client"])
    return table[list(_METHOD_WORK if for_method else _ALL_WORK)].fillna(0).sum(axis=1)


def server_seconds(run: LoadedRun) -> dict[int, float]:
    """The server's own step, by round."""
    parts = run.server_timings
    fewest = parts[["seconds", "cpu_seconds"]].min(axis=1)
    return {int(round): float(spent) for round, spent in fewest.groupby(parts["round"]).sum().items()}


def parts_of(
    run: LoadedRun, devices: Sequence[Device | None] = (), flops: Sequence[float] = ()
) -> dict[int, list[Part]]:
    """Round -> what its cohort sent, received and computed. Clients that were only tested have no part."""
    sent, measured = message_bytes(run), measured_seconds(run, for_method=True)
    trains = set(run.server_timings["round"])
    own = run.ledger[run.ledger["purpose"] == "method"]
    rounds: dict[int, list[Part]] = {}
    for round, client in sorted(set(zip(own["round"], own["client"], strict=True))):
        device = devices[client] if devices else None
        if round not in trains:
            seconds = 0.0
        else:
            seconds = (
                flops[client] / device.flops_per_second if device else float(measured.get((round, client), 0))
            )
        up = int(sent.get((round, client, "result"), 0)) if round in trains else 0
        part = Part(client, int(sent.get((round, client, "work"), 0)), seconds, up)
        rounds.setdefault(round, []).append(part)
    if agreed := _setup(run.ledger):
        rounds[SETUP] = agreed
    return rounds


def _setup(ledger: DataFrame) -> list[Part]:
    """What is agreed on before the first round, of methods that do so."""
    own = ledger[(ledger["purpose"] == "setup") & (ledger["payload_bytes"] > 0)]
    sent = own.groupby(["client", "direction"])["wire_bytes"].sum()
    clients = sorted(set(own["client"]))
    return [Part(c, int(sent.get((c, "down"), 0)), 0.0, int(sent.get((c, "up"), 0))) for c in clients]


def over_profiles(run: LoadedRun) -> dict[tuple[str, str], list[RoundTime]]:
    """Over each kind of link, with computing as measured, every client on a device of its own."""
    parts, step, run_settings = parts_of(run), server_seconds(run), run.experiment.run
    return {
        (name, "devices"): on_own_devices(
            parts, step, Air([parse(name)] * run_settings.clients, run_settings.seed)
        )
        for name in PROFILES
    }


def first_round_at(run: LoadedRun, accuracy: float) -> int | None:
    """The first round whose row says so; None where none does. Rounds that lost clients do not count."""
    series = run.series("accuracy")
    whole = series[~series.index.isin(run.partial_rounds)]
    reached = whole.index[whole >= accuracy]
    return int(reached[0]) if len(reached) else None


def seconds_until(times: Sequence[RoundTime]) -> Mapping[int, float]:
    """Round -> when its accuracy can be had: all clients have what is tested."""
    return {time.round: time.arrives for time in times}
