"""Any process may die at any moment: the run goes on or ends with a sentence, and nothing stays behind."""

import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Run, bits, events_of, hold, rows, wait_for, wait_for_event
from handmade import HandmadeClient

from nodes.server.program import EXIT_LACKS_CLIENTS
from protocol import messages

ENDLESS = ("--rounds", "100000")
SOON = ("--set", "cluster.rejoin_seconds=0.5")
FEWER = ("--set", "cluster.quorum=0.5")
GONE = r"(lost for \d+ s|it has no saved state to go on with; use --checkpoint-every) since round \d+"
"""Until the rejoin time is over, or until it is back with nothing to go on from."""


@pytest.fixture
def running(cluster: Callable[..., Run]) -> Callable[..., Run]:
    """A run that is in the middle of its rounds."""

    def start(*options: str) -> Run:
        run = cluster(*ENDLESS, *options)
        wait_for_event(run.folder, "round_finished", round=2)
        return run

    return start


def test_nothing_survives_the_launcher(running: Callable[..., Run]) -> None:
    run = running()
    assert set(run.command.roles()) == {"server", "clients", *(f"client-0000{i}" for i in range(4))}
    run.command.send(signal.SIGKILL)
    run.command.wait_until_gone()
    assert run.command.wait() == -signal.SIGKILL
    # The server had time to write down what there was.
    assert not run.summary["completed"]
    assert run.summary["reason"] == "the run was stopped (SIGTERM, or the launcher has died)"


def test_nothing_survives_a_launcher_that_had_stopped_reading(running: Callable[..., Run]) -> None:
    run = running()
    run.command.send(signal.SIGSTOP)
    sizes: list[int] = []

    def no_longer_grows() -> bool:
        sizes.append((run.folder / "events.jsonl").stat().st_size)
        return len(sizes) > 50 and sizes[-1] == sizes[-50]

    wait_for(no_longer_grows, "the server writes on although nobody reads its events")
    run.command.send(signal.SIGKILL)
    run.command.wait_until_gone()
    assert run.command.wait() == -signal.SIGKILL
    assert not run.command.left()


def test_a_killed_server_is_named_takes_everything_with_it_and_can_be_gone_on_with(
    running: Callable[..., Run],
) -> None:
    run = running()
    os.kill(run.command.role("server"), signal.SIGKILL)
    assert run.command.wait() == 2
    go_on = f"go on with: python run_cluster.py --resume {run.folder}"
    starts_over = "(no checkpoint was saved, so it starts over; --checkpoint-every 1 saves one each round)"
    sentence = "error: the server was killed by signal 9 (SIGKILL)."
    assert run.command.stderr == f"{sentence}\n{go_on} {starts_over}\n"
    assert not run.command.left()


def test_a_killed_server_with_a_checkpoint_comes_with_the_command_to_go_on(running: Callable[..., Run]) -> None:
    run = running("--checkpoint-every", "2")
    wait_for_event(run.folder, "checkpoint")
    os.kill(run.command.role("server"), signal.SIGKILL)
    assert run.command.wait() == 2
    command = f"python run_cluster.py --resume {run.folder}"
    assert run.command.stderr.endswith(f"(SIGKILL).\ngo on with: {command}\n")
    assert not run.command.left()


def test_the_run_goes_on_without_a_client_that_was_killed(cluster: Callable[..., Run]) -> None:
    run = cluster("--rounds", "60", *SOON, *FEWER)
    wait_for_event(run.folder, "round_finished", round=1)
    process, round = hold(run, 2)
    os.kill(process, signal.SIGKILL)
    run.succeed()
    assert next(events_of(run.folder, "lost"))["client"] == 2
    first_without = next(events_of(run.folder, "left_out"))
    assert (first_without["client"], first_without["round"]) == (2, round)
    assert f"client 2 was lost in round {round}" in run.command.stdout
    assert re.search(rf"round {round} goes on without client 2: (lost for|refused)", run.command.stdout)
    clients = [int(row["clients"]) for row in rows(run.folder / "metrics.csv")]
    assert clients == [4] * round + [3] * (61 - round)
    lost = [(row["expected"], row["absent"], row["lost"]) for row in rows(run.folder / "metrics.csv")]
    assert lost == [("4", "0", "0")] * round + [("4", "0", "1")] * (61 - round)
    assert run.summary["partial_rounds"] == list(range(round, 61)) and run.summary["best_round"] < round
    assert "of 3 of 4 clients" in run.command.stdout
    assert f"of fewer clients, neither best nor last: {round} to 60" in run.command.stdout
    assert run.summary["completed"] and run.summary["rounds"] == 60
    # It was started again, and has nothing to go on with.
    refused = wait_for_event(run.folder, "refused")
    assert refused["reason"] == "client 2 has no saved state to go on with; use --checkpoint-every."
    # The kernel's word on the others; of what was under way to the lost one it knows the bounds.
    audit = run.summary["audit"]
    assert audit["connections"] == 5 and audit["differences"] == []
    assert all(item["client"] == 2 for item in audit["cut"]) and audit["agree"] + len(audit["cut"]) == 5


def test_a_round_without_quorum_ends_the_run_with_a_sentence(running: Callable[..., Run]) -> None:
    run = running(*SOON, "--set", "cluster.quorum=0.75")
    first, _ = hold(run, 0)
    os.kill(run.command.role("client-00003"), signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    assert run.command.wait() == EXIT_LACKS_CLIENTS
    assert not run.command.left()
    reason = run.summary["reason"]
    found = re.fullmatch(
        rf"round (\d+) lacks 2 of 4 clients \(client 0: {GONE}, client 3: {GONE}\), "
        r"and cluster.quorum = 0.75 must answer.",
        reason,
    )
    assert found, reason
    assert f"stopped early: {reason}" in run.command.stdout
    assert len(rows(run.folder / "metrics.csv")) == int(found.group(1))


def test_a_client_that_is_killed_before_its_first_answer_begins_again(
    run_changed: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    """It has nothing to lose yet, so no checkpoint is needed."""
    kill = 'if client == 2 and not os.path.exists("killed"): open("killed", "w").close(); os.kill(os.getpid(), 9)'
    run = run_changed(client=kill).succeed()
    assert wait_for_event(run.folder, "restored", client=2)["round"] == -1
    assert bits(run.folder) == bits(reference())


def test_without_being_told_to_a_run_does_not_go_on_with_fewer(running: Callable[..., Run]) -> None:
    run = running(*SOON, "--checkpoint-every", "1000000")
    os.kill(hold(run, 2)[0], signal.SIGKILL)
    assert run.command.wait() == EXIT_LACKS_CLIENTS
    assert re.fullmatch(
        rf"round \d+ lacks 1 of 4 clients \(client 2: {GONE}\), and cluster.quorum = 1 must answer.",
        run.summary["reason"],
    )
    assert not run.summary["resumable"] and "--resume" not in run.command.stdout


def test_a_loss_that_does_not_heal_ends_with_the_way_to_go_on(
    hand_driven_server: Callable[..., tuple[str, Run]],
) -> None:
    address, run = hand_driven_server("--clients", "2", "--checkpoint-every", "1", *SOON)
    with HandmadeClient(address, 0) as one, HandmadeClient(address, 1) as other:
        for client in (one, other):
            client.join()
        for client in (one, other):
            work, down = client.next_work()
            client.answer(work, client.do(work, down))
        wait_for_event(run.folder, "checkpoint", round=0)
        work, down = one.next_work()
        other.socket.close()
        one.answer(work, one.do(work, down))
        assert one.next_work() is None
    assert run.command.wait() == EXIT_LACKS_CLIENTS
    assert re.search(rf"go on with: .+ --resume {run.folder}", run.command.stdout)
    assert len(rows(run.folder / "metrics.csv")) == 1, "half a round is no round"


def test_when_all_clients_die_with_nothing_saved_the_run_ends(running: Callable[..., Run]) -> None:
    run = running(*SOON)
    os.kill(run.command.role("clients"), signal.SIGKILL)
    assert run.command.wait() == EXIT_LACKS_CLIENTS
    assert not run.command.left()
    assert re.match(r"round \d+ lacks [1-4] of 4 clients", run.summary["reason"])


@pytest.mark.parametrize("again", [1, 2])
def test_a_host_that_is_killed_is_started_again_with_its_clients(
    again: int, cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    run = cluster("--rounds", "12", "--checkpoint-every", "1")
    for number in range(again):
        wait_for_event(run.folder, "checkpoint", round=3 * number)
        os.kill(run.command.role("clients"), signal.SIGKILL)
        wait_for_event(run.folder, "checkpoint", round=3 * number + 3)
    run.succeed()
    assert bits(run.folder) == bits(reference("--rounds", "12"))
    assert all(row["lost"] == "0" for row in rows(run.folder / "metrics.csv"))


def test_a_client_that_hangs_is_late_and_leaves_no_process_behind(cluster: Callable[..., Run]) -> None:
    run = cluster("--rounds", "60", "--set", "cluster.deadline_seconds=2", *FEWER)
    wait_for_event(run.folder, "round_finished", round=0)
    _, round = hold(run, 1)
    late = wait_for_event(run.folder, "left_out", client=1, round=round)
    assert late["reason"].startswith("late (")
    os.kill(run.command.role("client-00001"), signal.SIGCONT)
    run.succeed()
    assert not run.command.left()


@pytest.mark.parametrize(
    ("number", "whom"),
    [
        (signal.SIGINT, "group"),
        (signal.SIGTERM, "launcher"),
        (signal.SIGUSR1, "launcher"),
        (signal.SIGUSR1, "group"),  # as Slurm warns every process of a step
    ],
)
def test_ctrl_c_ends_the_run_with_its_results_so_far(
    number: signal.Signals, whom: str, running: Callable[..., Run]
) -> None:
    run = running()
    (run.command.send_to_all if whom == "group" else run.command.send)(number)
    assert run.command.wait() == 1
    assert not run.command.left()
    assert "Traceback" not in run.command.stdout + run.command.stderr
    summary = run.summary
    assert not summary["completed"] and summary["reason"].startswith("the run was stopped")
    finished = [event["round"] for event in events_of(run.folder, "round_finished")]
    assert [int(row["round"]) for row in rows(run.folder / "metrics.csv")] == finished
    assert summary["rounds"] == len(finished) >= 3
    assert f"stopped early: {summary['reason']}" in run.command.stdout
    assert summary["audit"]["agree"] == summary["audit"]["connections"] >= 4
    assert (run.folder / "final.safetensors").exists() and (run.folder / "ledger.csv").exists()


def test_more_ctrl_c_ends_it_now(running: Callable[..., Run]) -> None:
    """As people do when nothing happens: again and again, here because a process does not listen any more."""
    run = running()
    os.kill(run.command.role("server"), signal.SIGSTOP)
    os.kill(run.command.role("client-00002"), signal.SIGSTOP)

    def press_again() -> bool:
        with contextlib.suppress(ProcessLookupError):
            run.command.send_to_all(signal.SIGINT)
        return run.command.code is not None

    wait_for(press_again, "Ctrl-C does not end the run")
    assert run.command.wait() == 2
    assert run.command.stderr.startswith("error: the server was killed by signal 9 (SIGKILL).\ngo on with: ")
    run.command.wait_until_gone()


def test_ctrl_c_while_clients_are_joining_leaves_nothing(cluster: Callable[..., Run]) -> None:
    run = cluster(*ENDLESS)
    held = run.command.role("client-00003")
    os.kill(held, signal.SIGSTOP)
    wait_for_event(run.folder, "started")
    run.command.send_to_all(signal.SIGINT)
    os.kill(held, signal.SIGCONT)
    assert run.command.wait() in (1, 2, 130)  # it depends on how far the launcher had come
    assert not run.command.left()


def test_a_run_whose_clients_never_come_says_who_is_missing(
    hand_driven_server: Callable[..., tuple[str, Run]], tmp_path: Path
) -> None:
    _, run = hand_driven_server("--set", "cluster.join_seconds=0.3")
    assert run.command.wait() == EXIT_LACKS_CLIENTS
    assert run.summary["reason"] == (
        "4 of 4 clients did not join within 0.3 s: 0, 1, 2, 3; start them, or raise cluster.join_seconds."
    )


def test_a_client_that_comes_while_the_run_ends_is_told_so(
    hand_driven_server: Callable[..., tuple[str, Run]],
) -> None:
    address, run = hand_driven_server()
    with HandmadeClient(address, 0) as member, HandmadeClient(address, 1) as late:
        member.join()
        wait_for_event(run.folder, "client_ready", client=0)
        run.command.send(signal.SIGINT)
        stop = member.receive().message  # and does not hang up yet
        late.say_hello()
        assert late.receive().message == stop == messages.Stop(reason="the run was stopped (Ctrl-C)")
    assert run.command.wait() == 1
    assert not run.summary["completed"]
