"""Methods with public samples as real processes: the same bits as in one process, and the ledger's formula."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Run, bits, events_of, rows

NUM_CLIENTS, NUM_CLASSES, FEATURE_DIM, NUM_ROUNDS, NUM_PUBLIC = 3, 10, 8, 2, 60
IMAGE = 28 * 28

DIGITS = (
    *("--dataset", "digits", "--model-group", "MLP", "--feature-dim", str(FEATURE_DIM)),
    *("--rounds", str(NUM_ROUNDS), "--clients", str(NUM_CLIENTS)),
    *("--partition", "pathological", "--classes-per-client", "6"),
    *("--set", f"data.public_samples={NUM_PUBLIC}", "--set", "data.samples_per_class=30"),
)
SERVER = ("--set", "method.server_model=MLP", "--set", "method.server_epochs=2")
METHODS = {
    "fedprotokd": (*DIGITS, "--method", "fedprotokd", *SERVER, "--set", "method.prototype_epochs=3"),
    "fedpkd": (*DIGITS, "--method", "fedpkd", *SERVER),
    "fed2pkd": (*DIGITS, "--method", "fed2pkd"),
}
SENT = ("--set", "method.public_data=sent", "--set", "method.public_dtype=uint8")


@pytest.mark.parametrize("method", METHODS)
def test_a_cluster_gives_the_bits_of_the_run_in_one_process(
    method: str, cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    run = cluster(*METHODS[method]).succeed()
    assert bits(run.folder) == bits(reference(*METHODS[method]))


def test_every_element_of_fedprotokd(
    cluster: Callable[..., Run],
    reference: Callable[..., Path],
    classes_held: Callable[[Run], list[int]],
) -> None:
    """Up Σᵢ (N_p C + C_i K), down M (N_p C + C K) a round, and the public images once, apart from these."""
    run = cluster(*METHODS["fedprotokd"], *SENT).succeed()
    held = classes_held(run)
    assert 0 < sum(held) <= NUM_CLIENTS * 6
    for round in range(NUM_ROUNDS):
        up = run.booked("elements", purpose="method", direction="up", round=round)
        assert up == sum(NUM_PUBLIC * NUM_CLASSES + classes * FEATURE_DIM for classes in held)
    for round in range(1, NUM_ROUNDS + 1):  # with the evaluation after the last round
        down = run.booked("elements", purpose="method", direction="down", round=round)
        assert down == NUM_CLIENTS * (NUM_PUBLIC * NUM_CLASSES + NUM_CLASSES * FEATURE_DIM)
    assert run.booked("elements", purpose="setup", direction="down") == NUM_CLIENTS * NUM_PUBLIC * IMAGE
    assert run.booked("elements", purpose="setup", direction="up") == 0
    # Sent or known: the same images, so the same results.
    assert bits(run.folder) == bits(reference(*METHODS["fedprotokd"]))


def test_the_server_s_model_is_in_the_timings(cluster: Callable[..., Run]) -> None:
    run = cluster(*METHODS["fedprotokd"]).succeed()
    timed = rows(run.folder / "server_timings.csv")
    finished = {event["round"]: event["seconds"] for event in events_of(run.folder, "round_finished")}
    for round in range(NUM_ROUNDS):
        parts = {row["part"]: row for row in timed if int(row["round"]) == round}
        assert parts.keys() == {"aggregation", "prototypes", "server model", "evaluation"}
        assert all(float(row["seconds"]) > 0 for row in parts.values())
        assert float(parts["server model"]["cpu_seconds"]) > 0
        assert sum(float(row["seconds"]) for row in parts.values()) < finished[round]
    assert len(timed) == 4 * NUM_ROUNDS  # and nothing in the round that only evaluates


def test_server_and_clients_are_in_the_summary(reference: Callable[..., Path]) -> None:
    folder = reference(*METHODS["fedprotokd"])
    further = json.loads((folder / "summary.json").read_text())["further_accuracies"]
    by_prototype = {"prototype_accuracy", "trained_prototype_accuracy"}
    assert further.keys() == {"server_accuracy", "trained_accuracy", *by_prototype}
    for name, found in further.items():
        known = {int(row["round"]): float(row[name]) for row in rows(folder / "metrics.csv") if row[name]}
        assert found["best"] == max(known.values()) == known[found["best_round"]]
        assert found["last"] == known[max(known)]


def test_server_and_clients_are_in_the_metrics(reference: Callable[..., Path]) -> None:
    *played, last = rows(reference(*METHODS["fedprotokd"]) / "metrics.csv")
    assert all(0 <= float(row["server_accuracy"]) <= 1 for row in played)
    assert [bool(row["trained_accuracy"]) for row in (*played, last)] == [False, True, True]
    *played, last = rows(reference(*METHODS["fed2pkd"]) / "metrics.csv")
    assert [bool(row["global_accuracy"]) for row in (*played, last)] == [False, True, True]
