"""A method or a client that breaks its contract is stopped at the border, by name, and nothing is left running."""

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest
from commands import Run, events_of, rows, wait_for_event
from handmade import HandmadeClient

from fedsim.errors import ContractError
from nodes.border import check_metrics
from protocol import messages

SEND_WEIGHTS = 'arrays["weights"] = np.ones(9, np.float32)'


def why_it_stopped(run: Run) -> str:
    """It exits with 1, says why, keeps its results and leaves nothing running."""
    assert run.command.wait() == 1
    assert not run.command.left()
    assert "Traceback" not in run.command.stdout + run.command.stderr
    assert not run.summary["completed"]
    reason: str = run.summary["reason"]
    assert f"stopped early: {reason}" in run.command.stdout
    return reason


def test_the_runner_itself_changes_nothing(run_changed: Callable[..., Run]) -> None:
    assert run_changed().succeed().summary["method"] == "bad"


def test_a_client_that_sends_what_is_not_declared_stops_the_run(run_changed: Callable[..., Run]) -> None:
    run = run_changed(client=f"if client == 2: {SEND_WEIGHTS}")
    assert why_it_stopped(run) == (
        "client 2 failed in round 0: client 2, round 0, up: field 'weights' is not in the contract "
        "(declared: class_ids, prototypes)"
    )
    assert not run.ledger(client=2, message="result")


def test_when_all_clients_fail_at_once_the_run_still_ends_well(run_changed: Callable[..., Run]) -> None:
    reason = why_it_stopped(run_changed("--slots", "4", client=SEND_WEIGHTS))
    assert reason.endswith("up: field 'weights' is not in the contract (declared: class_ids, prototypes)")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('arrays["prototypes"] = arrays["prototypes"][:, :2]', "field 'prototypes' has shape"),
        ('arrays["prototypes"] = arrays["prototypes"].astype(np.float64)', "field 'prototypes' has dtype float64"),
        ('arrays["prototypes"][:] = np.nan', "field 'prototypes' holds"),
        ('del arrays["class_ids"]', "field 'class_ids' is declared but missing"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_client_half_with_a_bug_is_named(line: str, complaint: str, run_changed: Callable[..., Run]) -> None:
    reason = why_it_stopped(run_changed(client=f"if client == 1: {line}"))
    assert reason.startswith("client 1 failed in round 0: ") and complaint in reason


def test_a_server_half_that_sends_what_is_not_declared_is_named(run_changed: Callable[..., Run]) -> None:
    run = run_changed(server='step.down["weights"] = np.ones(9, np.float32)')
    assert why_it_stopped(run) == (
        "server, round 1, down: field 'weights' is not in the contract (declared: class_ids, prototypes)"
    )


def test_a_server_half_with_a_bug_ends_everything(run_changed: Callable[..., Run]) -> None:
    run = run_changed(server="1 / 0")
    reason = why_it_stopped(run)
    assert reason == "the server failed: ZeroDivisionError: division by zero"
    for client in range(4):
        assert reason in (run.folder / "logs" / f"client-0000{client}.log").read_text()
    assert "bad.py, line " in run.command.stdout
    assert "ZeroDivisionError" in (run.folder / "logs" / "server.log").read_text()


def test_the_border_is_the_same_without_processes(run_changed: Callable[..., Run]) -> None:
    run = run_changed("--in-process", client=f"if client == 2: {SEND_WEIGHTS}")
    assert run.command.wait() == 1
    sentence, log = run.command.stderr.splitlines()
    assert sentence == (
        "error: client 2 failed in round 0: client 2, round 0, up: field 'weights' is not in the contract "
        "(declared: class_ids, prototypes)"
    )
    assert log.endswith("traceback.log")


# ------------------------------------------------------------------------ a client that lies over the wire

LIES: dict[str, tuple[dict[str, np.ndarray | None], str]] = {
    "undeclared": ({"weights": np.ones(9, np.float32)}, "field 'weights' is not in the contract"),
    "missing": ({"class_ids": None}, "field 'class_ids' is declared but missing"),
    "shape": (
        {"prototypes": np.ones((6, 4), np.float32)},
        "field 'prototypes' has shape (6, 4), declared (n K) with K",
    ),
    "dtype": ({"prototypes": np.ones((6, 3))}, "field 'prototypes' has dtype float64, declared float32"),
    "not finite": ({"prototypes": np.full((6, 3), np.inf, np.float32)}, "field 'prototypes' holds 18 non-finite"),
}
METRIC_LIES: dict[str, dict[str, float]] = {
    "infinite": {"correct": 0.0, "tested": math.inf},
    "not a number": {"correct": math.nan, "tested": 3.0},
    "more than all": {"correct": 9.0, "tested": 3.0},
    "less than none": {"correct": -1.0, "tested": 3.0},
    "half a sample": {"correct": 0.5, "tested": 3.0},
    "incomplete": {"tested": 3.0},
    "of a further test": {"correct": 1.0, "tested": 3.0, "global_correct": 9.0, "global_tested": 3.0},
    "incomplete further test": {"correct": 1.0, "tested": 3.0, "global_correct": 2.0},
}


def play_with_a_liar(
    server: tuple[str, Run], lie: Callable[[HandmadeClient, messages.Work, object], None]
) -> tuple[Run, str]:
    """Client 3 lies in round 1, the others are honest to the end; returns what client 3 was told."""
    address, run = server
    with contextlib.ExitStack() as stack:
        *honest, liar = (stack.enter_context(HandmadeClient(address, client)) for client in range(4))
        for client in (*honest, liar):
            client.join()
        for round in range(4):
            for client in honest if round > 1 else (*honest, liar):
                work = client.next_work()
                assert work is not None and work[0].round == round
                report = client.do(*work)
                if client is liar and round == 1:
                    lie(client, work[0], report)
                    refusal = client.receive().message
                    assert isinstance(refusal, messages.Refusal), refusal
                    client.socket.close()
                else:
                    client.answer(work[0], report)
        for client in honest:
            assert client.next_work() is None
    return run.succeed(), refusal.reason


def assert_only_the_liar_is_missing(run: Run, reason: str) -> None:
    assert next(events_of(run.folder, "refused"))["reason"] == reason
    assert wait_for_event(run.folder, "lost", client=3)["reason"] == reason
    assert [row["clients"] for row in rows(run.folder / "metrics.csv")] == ["4", "3", "3", "3"]
    assert run.summary["completed"]
    assert all(item["client"] == 3 for item in run.summary["audit"]["differences"])


@pytest.mark.parametrize("lie", LIES)
def test_a_client_that_lies_over_the_wire_is_refused_and_the_others_go_on(
    lie: str, hand_driven_server: Callable[..., tuple[str, Run]]
) -> None:
    changes, complaint = LIES[lie]
    honest = {"prototypes": np.ones((6, 3), np.float32), "class_ids": np.arange(6, dtype=np.int32)}
    arrays = {name: array for name, array in (honest | changes).items() if array is not None}
    run, reason = play_with_a_liar(
        hand_driven_server("--set", "cluster.rejoin_seconds=0.2", "--set", "cluster.quorum=0.5"),
        lambda client, work, report: client.answer(work, report, arrays=arrays),
    )
    assert reason.startswith(f"client 3, round 1, up: {complaint}")
    assert_only_the_liar_is_missing(run, reason)


@pytest.mark.parametrize("lie", METRIC_LIES)
def test_results_must_be_numbers_of_samples(lie: str) -> None:
    with pytest.raises(ContractError, match=r"^client 3, round 1, up: metrics .* are not whole numbers"):
        check_metrics(METRIC_LIES[lie], "client 3, round 1, up")


def test_results_may_be_empty_or_honest() -> None:
    for metrics in ({}, {"loss": math.nan}, {"correct": 0.0, "tested": 0.0}, {"correct": 3.0, "tested": 3.0}):
        check_metrics(metrics, "here")


@pytest.mark.parametrize("lie", ["infinite", "incomplete"])
def test_a_client_with_impossible_results_is_refused_and_the_others_go_on(
    lie: str, hand_driven_server: Callable[..., tuple[str, Run]]
) -> None:
    run, reason = play_with_a_liar(
        hand_driven_server("--set", "cluster.rejoin_seconds=0.2", "--set", "cluster.quorum=0.5"),
        lambda client, work, report: client.answer(work, report, metrics=METRIC_LIES[lie]),
    )
    assert reason.startswith("client 3, round 1, up: metrics ")
    assert_only_the_liar_is_missing(run, reason)


def test_a_client_that_says_it_failed_stops_the_run(
    hand_driven_server: Callable[..., tuple[str, Run]],
) -> None:
    address, run = hand_driven_server()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(HandmadeClient(address, client)) for client in range(4)]
        for client in clients:
            client.join()
        clients[1].next_work()
        clients[1].socket.send(messages.Failure(run=clients[1].run, round=0, error="out of memory"))
        assert clients[0].next_work() is not None
        stop = clients[0].receive().message  # the others are told; who failed has ended
        assert stop == messages.Stop(reason="client 1 failed in round 0: out of memory")
    assert why_it_stopped(run) == "client 1 failed in round 0: out of memory"
