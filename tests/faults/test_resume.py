"""A run that was killed and resumed, however often, ends with the bits of a run that was left alone."""

import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import (
    METHODS,
    PROJECT,
    TINY,
    Command,
    Run,
    Start,
    address_of,
    bits,
    events,
    events_of,
    hold,
    reach,
    rows,
    wait_for,
    wait_for_event,
)
from handmade import HandmadeClient

ROUNDS = ("--rounds", "12")
Cluster = Callable[..., Run]
Reference = Callable[..., Path]


@pytest.fixture
def resume(python: Start) -> Callable[[Run], Run]:
    """The command that goes on with a run."""

    def start(run: Run) -> Run:
        return Run(python(PROJECT / "run_cluster.py", "--resume", run.folder), run.folder)

    return start


def client_states(folder: Path, client: int) -> Path:
    """Where a client of the only run in a folder keeps its states."""
    (found,) = folder.glob(f"*/client-{client:05d}")
    return found


def kill_all(run: Run) -> None:
    """Everything at once, as when the power fails."""
    run.command.send_to_all(signal.SIGKILL)
    run.command.wait_until_gone()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("method", "every"), [("fedtgp", "1"), ("fedproto", "3")])
def test_killed_at_random_moments_and_resumed_gives_the_same_bits(
    method: str, every: str, seed: int, cluster: Cluster, resume: Callable[[Run], Run], reference: Reference
) -> None:
    """A moment is a number of events: about eleven of them make a round."""
    draw = random.Random(f"{method}/{seed}")
    options = (*METHODS[method], *ROUNDS)
    run, num_kills = cluster(*options, "--checkpoint-every", every), 0
    for _ in range(3):
        if not reach(run, len(events(run.folder)) + draw.randrange(1, 60)):
            break
        kill_all(run)
        num_kills += 1
        run = resume(run)
    run.succeed()
    assert num_kills > 0
    assert bits(run.folder) == bits(reference(*options))


def test_a_run_that_was_stopped_with_ctrl_c_goes_on(
    cluster: Cluster, resume: Callable[[Run], Run], reference: Reference
) -> None:
    run = cluster(*ROUNDS, "--checkpoint-every", "2")
    wait_for_event(run.folder, "round_finished", round=4)
    run.command.send_to_all(signal.SIGINT)
    assert run.command.wait() == 1
    resumed = resume(run).succeed()
    started = list(events_of(run.folder, "started"))
    assert [event["resumed_from"] is None for event in started] == [True, False]
    assert started[1]["resumed_from"] % 2 == 1
    assert resumed.summary["completed"] and resumed.summary["rounds"] == 12
    assert bits(run.folder) == bits(reference(*ROUNDS))


def test_a_run_without_a_checkpoint_starts_over(
    cluster: Cluster, resume: Callable[[Run], Run], reference: Reference
) -> None:
    run = cluster(*ROUNDS)
    wait_for_event(run.folder, "round_finished", round=3)
    kill_all(run)
    again = resume(run).succeed()
    assert "the run has no checkpoint to go on from, so it starts over" in again.command.stdout
    assert bits(run.folder) == bits(reference(*ROUNDS))


def test_rows_that_were_cut_off_by_the_crash_are_dropped(
    cluster: Cluster, resume: Callable[[Run], Run], reference: Reference
) -> None:
    """Of a row of round 11 only the first digit was written: it must not be taken for one of round 1."""
    run = cluster(*ROUNDS, "--checkpoint-every", "5")
    wait_for_event(run.folder, "round_finished", round=6)
    kill_all(run)
    for name in ("metrics.csv", "clients.csv", "timings.csv", "server_timings.csv"):
        with (run.folder / name).open("a") as file:
            file.write("1")
    resume(run).succeed()
    assert bits(run.folder) == bits(reference(*ROUNDS))


def test_a_crash_while_files_are_written_leaves_the_previous_checkpoint_whole(
    cluster: Cluster, resume: Callable[[Run], Run], reference: Reference
) -> None:
    """Some clients have saved a round that no manifest names, and temporary files lie about."""
    run = cluster(*ROUNDS, "--checkpoint-every", "2")
    wait_for_event(run.folder, "checkpoint", round=3)
    _, waiting = hold(run, 3)
    wait_for(lambda: len(list(events_of(run.folder, "answered", round=waiting))) == 3, "the others do not answer")
    kill_all(run)
    for folder in (run.folder / "checkpoints" / "server", client_states(run.folder / "checkpoints", 0)):
        (folder / ".round-000099.safetensors.123").write_bytes(b"half")
    (run.folder / "checkpoints" / ".manifest.json.123").write_bytes(b'{"round": 9')
    resume(run).succeed()
    assert bits(run.folder) == bits(reference(*ROUNDS))


def test_a_client_keeps_what_the_last_checkpoint_names_and_what_the_next_will(cluster: Cluster) -> None:
    run = cluster("--checkpoint-every", "1").succeed()
    for client in range(4):
        saved = {path.name for path in client_states(run.folder / "checkpoints", client).iterdir()}
        assert saved == {"round-000001.safetensors", "round-000002.safetensors"}


def test_a_client_that_is_late_at_every_checkpoint_is_told_to_keep_the_state_that_counts(
    hand_driven_server: Callable[..., tuple[str, Run]],
) -> None:
    """It saves its state each time, but no checkpoint names that: the one that counts must outlive them all."""
    address, run = hand_driven_server(
        *("--clients", "2", "--rounds", "4", "--checkpoint-every", "1"),
        *("--set", "cluster.quorum=0.5", "--set", "cluster.deadline_seconds=3"),
    )
    kept, named = [], []
    with HandmadeClient(address, 0) as punctual, HandmadeClient(address, 1) as slow:
        for client in (punctual, slow):
            client.join()
        for round in range(5):
            asked = [(client, *client.next_work()) for client in (punctual, slow)]
            kept.append(tuple(work.keep for _, work, _ in asked))
            for client, work, down in asked:
                if client is slow and round in (1, 2):
                    wait_for_event(run.folder, "left_out", round=round, client=1)
                client.answer(work, client.do(work, down))
            if round < 4:
                wait_for_event(run.folder, "checkpoint", round=round)
                manifest = json.loads((run.folder / "checkpoints" / "manifest.json").read_text())
                named.append((manifest["client_rounds"]["0"], manifest["client_rounds"]["1"]))
        assert punctual.next_work() is None and slow.next_work() is None
    run.succeed()
    assert named == [(0, 0), (1, 0), (2, 0), (3, 3)]
    assert kept == [(-1, -1), *named]


FILL = (
    'if round == 2 and not os.path.exists("kept"): '
    'os.rename("run/server_timings.csv", "kept"); os.symlink("/dev/full", "run/server_timings.csv")'
)


def test_a_disk_that_fills_is_a_sentence_and_the_run_goes_on_when_there_is_room(
    run_changed: Callable[..., Run], resume: Callable[[Run], Run], reference: Reference, tmp_path: Path
) -> None:
    run = run_changed(*ROUNDS, "--checkpoint-every", "1", server=FILL)
    assert run.command.wait() == 2
    said = run.command.stdout + run.command.stderr
    sentence = f"no space is left on the disk of {run.folder}; what was written is kept: make room and go on with"
    assert f"the server failed: {sentence} --resume." in said and "Traceback" not in said
    assert not run.command.left()
    for log in (run.folder / "logs").iterdir():
        assert "Traceback" not in log.read_text(), log
    assert [row["round"] for row in rows(run.folder / "metrics.csv")][:2] == ["0", "1"]
    (tmp_path / "kept").replace(run.folder / "server_timings.csv")
    (tmp_path / "kept").touch()
    resume(run).succeed()
    assert bits(run.folder) == bits(reference(*ROUNDS))


def test_a_broken_manifest_is_a_sentence(cluster: Cluster, resume: Callable[[Run], Run]) -> None:
    run = cluster(*ROUNDS, "--checkpoint-every", "2")
    wait_for_event(run.folder, "checkpoint", round=3)
    kill_all(run)
    (run.folder / "checkpoints" / "manifest.json").write_text("{}")
    before = (run.folder / "metrics.csv").read_bytes()
    resumed = resume(run)
    assert resumed.command.wait() != 0
    said = resumed.command.stdout + resumed.command.stderr
    assert "manifest.json is not a checkpoint manifest" in said and "Traceback" not in said
    assert not resumed.command.left()
    assert (run.folder / "metrics.csv").read_bytes() == before


# ---------------------------------------------------------------------------------------- started by hand


@pytest.fixture
def by_hand(python: Start, tmp_path: Path) -> Callable[..., tuple[Run, Command]]:
    """A server, and four clients that keep their state in a folder of their own."""

    def start(*options: str, patience: str = "60") -> tuple[Run, Command]:
        folder = tmp_path / "run"
        server = python("-m", "nodes.server", *TINY, *options, "--bind", "tcp://127.0.0.1:*", "--out", folder)
        clients = python(
            *("-m", "nodes.client", "--connect", address_of(server), "--ids", "0-3"),
            *("--state-dir", tmp_path / "state", "--patience", patience, "--heartbeat", "1"),
        )
        return Run(server, folder), clients

    return start


def test_clients_wait_for_a_server_that_is_started_again(
    by_hand: Callable[..., tuple[Run, Command]], python: Start, reference: Reference
) -> None:
    options = ("--rounds", "25")
    run, clients = by_hand(*options, "--checkpoint-every", "2")
    address = address_of(run.command)
    wait_for_event(run.folder, "checkpoint", round=5)
    kill_all(run)
    again = python("-m", "nodes.server", "--resume", run.folder, "--bind", address)
    again.succeed()
    clients.succeed()
    assert bits(run.folder) == bits(reference(*options))


def test_runs_that_share_a_state_folder_do_not_take_each_other_s_states(
    by_hand: Callable[..., tuple[Run, Command]], python: Start, reference: Reference, tmp_path: Path
) -> None:
    run, clients = by_hand("--checkpoint-every", "1", patience="1")
    wait_for_event(run.folder, "checkpoint", round=1)
    kill_all(run)
    assert clients.wait() != 0
    run.folder.rename(tmp_path / "first")
    other, clients = by_hand("--seed", "7", "--checkpoint-every", "1")
    other.succeed()
    clients.succeed()
    server = python("-m", "nodes.server", "--resume", tmp_path / "first", "--bind", "tcp://127.0.0.1:*")
    clients = python(
        *("-m", "nodes.client", "--connect", address_of(server), "--ids", "0-3"),
        *("--state-dir", tmp_path / "state"),
    )
    server.succeed()
    clients.succeed()
    assert bits(tmp_path / "first") == bits(reference())


def test_a_complete_run_is_not_run_again(cluster: Cluster, resume: Callable[[Run], Run]) -> None:
    run = cluster().succeed()
    before = {path: path.read_bytes() for path in run.folder.rglob("*.*") if path.is_file()}
    again = resume(run).command
    assert again.wait() == 2
    assert again.stderr == f"error: the run in {run.folder} is complete; there is nothing left to go on with.\n"
    assert (
        before.items() <= {path: path.read_bytes() for path in run.folder.rglob("*.*") if path.is_file()}.items()
    )


def test_a_server_that_cannot_begin_forgets_nothing(cluster: Cluster, python: Start) -> None:
    run = cluster(*ROUNDS, "--checkpoint-every", "2")
    wait_for_event(run.folder, "round_finished", round=4)
    kill_all(run)
    before = (run.folder / "metrics.csv").read_bytes()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert python("-m", "nodes.server", "--resume", run.folder, "--bind", address).wait() != 0
    assert (run.folder / "metrics.csv").read_bytes() == before


def test_a_run_that_is_going_on_is_not_resumed_beside_itself(
    cluster: Cluster, resume: Callable[[Run], Run], reference: Reference
) -> None:
    run = cluster(*ROUNDS, "--checkpoint-every", "2")
    wait_for_event(run.folder, "checkpoint", round=3)
    process, _ = hold(run, 1)
    second = resume(run).command
    assert second.wait() == 2
    assert "is being worked on by another process; wait for its end." in second.stderr
    os.kill(process, signal.SIGCONT)
    run.succeed()
    assert bits(run.folder) == bits(reference(*ROUNDS))


def test_clients_whose_server_was_killed_give_up_after_their_patience(
    by_hand: Callable[..., tuple[Run, Command]],
) -> None:
    run, clients = by_hand("--rounds", "100000", patience="1")
    address = address_of(run.command)
    wait_for_event(run.folder, "round_finished", round=1)
    kill_all(run)
    assert clients.wait() == 4
    for client in range(4):
        assert (
            clients.stdout.count(
                f"client {client}: no server at {address} for 1 s: nothing listens there; giving up."
            )
            == 1
        )
    assert "Traceback" not in clients.stderr
    assert not clients.left()


def test_a_copied_run_folder_is_enough_to_go_on_elsewhere(
    cluster: Cluster, resume: Callable[[Run], Run], reference: Reference, tmp_path: Path
) -> None:
    run = cluster(*ROUNDS, "--checkpoint-every", "4")
    wait_for_event(run.folder, "checkpoint", round=7)
    kill_all(run)
    shutil.copytree(run.folder, tmp_path / "elsewhere")
    shutil.rmtree(run.folder)
    moved = resume(Run(run.command, tmp_path / "elsewhere")).succeed()
    assert bits(moved.folder) == bits(reference(*ROUNDS))
