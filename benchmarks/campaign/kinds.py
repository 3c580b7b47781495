"""The kinds of trials: what is done to a run while it goes on."""

import contextlib
import functools
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import psutil

from benchmarks.campaign import processes, surroundings
from benchmarks.campaign.hostile import Attacker
from benchmarks.campaign.links import Relay
from benchmarks.campaign.runs import (
    PATIENCE_SECONDS,
    Command,
    address_of,
    alive,
    client_words,
    rows,
    server_words,
    wait_for,
)
from benchmarks.campaign.trials import Act, Stage, Trial
from nodes.launchers import zygote


def process(stage: Stage, trial: Trial, draw: random.Random) -> None:
    """One to five processes are killed or stopped, at moments of their own, over as many attempts as it takes."""
    trial.options = ["--checkpoint-every", str(draw.choice([0, 1, 1, 1, 2])), "--slots", str(draw.choice([1, 2]))]
    if draw.random() < 0.3:  # then a process that is stopped for long counts as lost
        trial.options += ["--set", "cluster.heartbeat_seconds=1"]
    if draw.random() < 0.15:
        trial.options.append("--curve")
    planned = draw.randint(1, 5)

    def disturb(command: Command) -> None:
        while len(trial.faults) < planned:
            time.sleep(draw.choice([draw.uniform(0, 0.3), draw.uniform(0, 3)]))
            fault = processes.strike(draw, command)
            if fault is None:
                return
            trial.faults.append(fault)

    stage.until_whole(trial, disturb, "--no-report")


def report(stage: Stage, trial: Trial, draw: random.Random) -> None:
    """The process that draws the report dies: the run is complete all the same, and says so."""

    def drawing(command: Command) -> int | None:
        for pid in alive(command.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "nodes.display.report_process" in psutil.Process(pid).cmdline():
                    return pid
        return -1 if command.has_ended() else None

    def disturb(command: Command) -> None:
        pid = wait_for(lambda: drawing(command), "no report is drawn")
        time.sleep(draw.uniform(0, 1.5))
        with contextlib.suppress(ProcessLookupError):
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                trial.faults.append("SIGKILL of report")

    stage.until_whole(trial, disturb)
    output = (stage.trial_folder(trial) / "attempt-00.log").read_text()
    if trial.ends != [0] or "report" not in output:
        trial.differs.append("a report that was not drawn changes how a run ends, or is not mentioned")


def link(stage: Stage, trial: Trial, draw: random.Random) -> None:
    """Server and clients are started by hand, with a relay between them that cuts, slows and stalls."""
    heartbeat = draw.choice(["1", "2"])
    trial.options = ["--checkpoint-every", "1", "--set", "cluster.rejoin_seconds=120"]
    trial.notes.append(f"heartbeat {heartbeat}")
    folder, planned = stage.trial_folder(trial), draw.randint(2, 5)

    def attempt(words: list[str], output: Path) -> int:
        server = Command(words, output)
        with contextlib.ExitStack() as stack:
            stack.callback(server.kill)
            relay = Relay(address_of(server), draw.randrange(1 << 30))
            stack.callback(relay.close)
            relay.set(delay_seconds=draw.choice([0.0, 0.0, 0.02]))
            options = ("--heartbeat", heartbeat, "--state-dir", str(folder / "states"), "--patience", "100")
            clients = Command(client_words(trial.experiment, relay.address, *options), folder / "clients.log")
            stack.callback(clients.kill)
            while len(trial.faults) < planned and not server.has_ended():
                time.sleep(draw.uniform(0, 1.0))
                trial.faults.append(_spoil(draw, relay))
            relay.set(loss=0.0, bytes_per_second=float("inf"), delay_seconds=0.0)
            code = server.wait()
            for command in (server, clients):
                trial.differs += [f"left running: {name}" for name in command.left_running()]
            return code

    words = server_words(trial.experiment, stage.run_folder(trial), "--no-report", *trial.options)
    stage.repeat(trial, words, attempt)


def _spoil(draw: random.Random, relay: Relay) -> str:
    """One fault of the link, to its end."""
    kind, seconds = draw.choice(["cut", "hang up", "slow", "loss"]), round(draw.uniform(0.1, 5), 1)
    if kind == "cut":
        relay.cut(seconds)
    elif kind == "hang up":
        relay.hang_up(seconds / 2)
    elif kind == "slow":
        rate = 10 ** draw.uniform(3.5, 6)
        relay.set(bytes_per_second=rate)
        kind = f"{rate / 1e3:.0f} kB/s"
    else:
        share = draw.uniform(0.02, 0.3)
        relay.set(loss=share)
        kind = f"loss {share:.0%}"
    time.sleep(seconds)
    relay.set(loss=0.0, bytes_per_second=float("inf"))
    return f"{kind} for {seconds} s"


def hostile(stage: Stage, trial: Trial, draw: random.Random) -> None:
    """Strangers flood the server: first while a client is held, so that the run cannot end, then as it goes on."""
    folder = stage.run_folder(trial)
    seeds = draw.randrange(1 << 30), draw.randrange(1 << 30)
    share = stage.flood_messages // 2

    def disturb(command: Command) -> None:
        events = folder / "events.jsonl"
        wait_for(lambda: events.exists() and '"joined"' in events.read_text(), "nobody joins")
        held = processes.named(command, "client-00001")
        address = re.search(r"tcp://[\d.:]+", events.read_text())
        assert address is not None
        if held:
            os.kill(held, signal.SIGSTOP)
        try:
            _attack(address.group(), seeds[0], share, patience_seconds=60)
        finally:
            if held:
                os.kill(held, signal.SIGCONT)
        _attack(address.group(), seeds[1], share, patience_seconds=2)  # the run may end before

    stage.until_whole(trial, disturb, "--no-report", "--set", "cluster.max_frame_mib=1")
    arrived = [row for row in rows(folder / "ledger.csv") if row["client"] == "-1" and row["direction"] == "up"]
    trial.messages = sum(int(row["frames"]) for row in arrived if row["payload"] in ("header", "rejected"))
    trial.faults.append(f"a flood of {trial.messages} messages that arrived")


def _attack(address: str, seed: int, count: int, *, patience_seconds: float) -> None:
    """In a process of its own: ZeroMQ's threads do not survive the forks of this one."""

    def main() -> int:
        attacker = Attacker(address, seed)
        with contextlib.suppress(OSError):
            attacker.do_everything()
        attacker.flood(count, patience_seconds)
        attacker.close(linger_ms=round(patience_seconds * 1000))
        return 0

    attack = zygote.fork(main)
    if not zygote.has_ended(attack, PATIENCE_SECONDS):
        zygote.stop_process(attack)


def disk(stage: Stage, trial: Trial, draw: random.Random) -> None:
    """A disk that is full at some moment of the run; then there is room, and it goes on."""
    trial.options = ["--checkpoint-every", str(draw.choice([0, 1]))]
    here = stage.run_folder(trial).parent
    room = int(10 ** draw.uniform(4.3, 6.8)) // 4096 * 4096
    trial.faults.append(f"a disk of {room // 1024} kB")

    def disturb(command: Command) -> None:
        if not trial.ends:
            # 2 where the server cannot write, 1 where a client cannot save; either is told in the same words.
            if command.wait() and "no space is left on the disk of" not in command.printed():
                trial.differs.append(f"exit code {command.code} on a full disk, without a word of it")
            surroundings.grow(here, 1 << 28)

    with surroundings.small_disk(here, room):
        stage.until_whole(trial, disturb, "--no-report")
        if trial.differs:
            shutil.copytree(here, stage.trial_folder(trial) / "kept")


def clock(stage: Stage, trial: Trial, draw: random.Random) -> None:
    """A clock that jumps back and forth all the time."""
    trial.options = ["--checkpoint-every", "1", "--set", "cluster.heartbeat_seconds=1"]
    seed = draw.randrange(1 << 30)
    trial.faults.append("a clock that jumps")
    jump = functools.partial(surroundings.make_clock_jump, random.Random(seed))
    stage.until_whole(trial, lambda command: None, "--no-report", before=jump)


KINDS: dict[str, Act] = {act.__name__: act for act in (process, report, link, hostile, disk, clock)}
