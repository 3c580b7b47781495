"""A whole run in one thread: the real server and real clients, all but the network, against the oracle."""

from collections import Counter
from typing import Any

import pytest
from commands import bits, events, rows

from fedsim import config
from fedsim.results.folder import RunFolder

POINTS = {
    "data": {"dataset": "spiral", "samples_per_class": 20},
    "model": {"group": "MLP", "feature_dim": 3},
    "run": {"clients": 3, "rounds": 2, "participation": 0.7},
    "cluster": {"server_threads": 1},
}


@pytest.mark.parametrize("method", ["fedproto", "fedgen"])  # without and with a set-up
def test_a_run_over_the_doubles_gives_the_bits_of_the_oracle(play, oracle, method: str) -> None:
    experiment = config.build([POINTS, {"method": {"name": method}}])
    assert bits(play(experiment)) == bits(oracle(experiment))


@pytest.mark.parametrize(
    ("method", "trained"),
    [({"name": "fedproto"}, {0, 1}), ({"name": "fedl2g", "warm_up_rounds": 1}, {1})],
)
def test_a_client_that_trains_no_batch_has_no_loss_and_no_part_in_the_mean(
    play, oracle, method: dict[str, Any], trained: set[int]
) -> None:
    """Client 2 has 19 samples, and batches are of 20; in FedL2G's warm-up nobody trains."""
    less = {"run": {"participation": 1.0}, "data": {"beta": 0.1}, "train": {"batch_size": 20}}
    experiment = config.build([POINTS, {"method": method}, less])
    folder = play(experiment)
    assert bits(folder) == bits(oracle(experiment))

    losses = {(int(row["round"]), int(row["client"])): row["loss"] for row in rows(folder / "clients.csv")}
    expected = {(round, client) for round in trained for client in (0, 1)}
    assert {key for key, loss in losses.items() if loss} == expected
    for row in rows(folder / "metrics.csv"):
        told = [float(losses[int(row["round"]), client]) for client in (0, 1) if int(row["round"]) in trained]
        assert (float(row["train_loss"]) if row["train_loss"] else None) == (sum(told) / 2 if told else None)


@pytest.mark.parametrize("method", ["fedproto", "fedgen", "fedtgp"])
def test_who_counts_is_decided_by_the_virtual_clock_alone(play, oracle, method: str) -> None:
    """With links, devices, a deadline, drop-outs and clients that come and go: the same log, the same bits."""
    world = {
        "link": "4g:1,3g:1",
        "device": "gflops=1:1,gflops=0.0005:1",
        "deadline_seconds": 0.4,
        "availability": "on=2s off=1s",
        "wait": False,
    }
    run = {"clients": 6, "rounds": 4, "participation": 1.0, "drop_rate": 0.2}
    experiment = config.build([POINTS, {"method": {"name": method}, "run": run, "world": world}])
    played, expected = play(experiment), oracle(experiment)

    assert bits(played) == bits(expected)
    assert (played / "world.csv").read_bytes() == (expected / "world.csv").read_bytes()
    rulings = rows(played / "world.csv")
    assert {row["outcome"] for row in rulings} == {"counts", "late", "dropped", "away"}
    dropped = Counter(row["round"] for row in rulings if row["outcome"] == "dropped")
    assert all(int(row["dropped"] or 0) == dropped[row["round"]] for row in rows(played / "metrics.csv"))
    said = [(e["round"], e["client"], e["reason"]) for e in events(played) if e["event"] == "absent"]
    assert said == [(int(r["round"]), int(r["client"]), r["outcome"]) for r in rulings if r["outcome"] != "counts"]
    assert not any(int(row["lost"]) for row in rows(played / "metrics.csv")), "planned absence is no loss"


def test_the_ledger_of_a_run_over_the_doubles_is_that_of_a_run_over_sockets(play, cluster) -> None:
    """To the byte, with all handshakes and all that only clients without a network could leave out."""
    run = cluster().succeed()
    experiment = RunFolder.open(run.folder).experiment()
    assert rows(play(experiment) / "ledger.csv") == rows(run.folder / "ledger.csv")


def test_answers_that_are_lost_with_the_connection_change_no_bit(play, oracle) -> None:
    """In every round the client is asked again, and answers again without working twice."""
    experiment = config.build([POINTS, {"method": {"name": "fedproto"}}])
    folder = play(experiment, cut=1)
    assert bits(folder) == bits(oracle(experiment))
    ready, *happened = [event for event in events(folder) if event.get("client") == 1]
    assert ready["event"] == "client_ready"
    assert [(event["event"], event["round"]) for event in happened] == [
        (kind, round) for round in range(3) for kind in ("asked", "lost", "returned", "asked", "answered")
    ]
