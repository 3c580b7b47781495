"""The run folder: complete, reloadable, and its ledger adds up to what the method's contract says."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import METHODS, PROJECT, TINY, Run, Shell, Start, bits, events, events_of, rows, start_run
from safetensors.numpy import load_file

from fedsim.results.folder import RunFolder
from nodes.cli._experiment import build_experiment

NUM_CLIENTS, NUM_CLASSES, FEATURE_DIM, NUM_ROUNDS = 4, 6, 3, 3
HALF = (*METHODS["fedtgp"], "--participation", "0.5")
LAST_ROUND = NUM_ROUNDS  # one more exchange after the last training, so that the last aggregation is tested


@pytest.fixture(scope="module")
def finished(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("finished")
    with shell.commands(folder) as start:
        return start_run(start, folder / "run", *METHODS["fedtgp"]).succeed()


@pytest.fixture(scope="module")
def half_taking_part(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two of four clients train in a round; the other two are only asked how good they are now."""
    folder = tmp_path_factory.mktemp("half")
    with shell.commands(folder) as start:
        return start_run(start, folder / "run", *HALF).succeed()


def test_all_files_are_there(finished: Run) -> None:
    assert {path.name for path in finished.folder.iterdir()} == {
        *("config.toml", "partition.csv", "metrics.csv", "clients.csv", "timings.csv", "ledger.csv"),
        "server_timings.csv",
        *("events.jsonl", "metrics.tfevents"),
        *("final.safetensors", "summary.json", "records", "logs"),
    }
    assert {path.name for path in (finished.folder / "logs").iterdir()} == {
        "server.log",
        "clients.log",
        *(f"client-0000{client}.log" for client in range(NUM_CLIENTS)),
    }
    assert len(list((finished.folder / "records").iterdir())) == NUM_ROUNDS


def test_the_config_reloads_to_the_same_experiment(finished: Run) -> None:
    typed = [*TINY, *METHODS["fedtgp"]]
    pairs = list(zip(typed[::2], typed[1::2], strict=True))
    settings = tuple(value for name, value in pairs if name == "--set")
    named = {name[2:].replace("-", "_"): value for name, value in pairs if name != "--set"}
    numbers = {name: int(value) if value.isdigit() else value for name, value in named.items()}
    asked_for = build_experiment(None, None, settings, **numbers)
    assert RunFolder.open(finished.folder).experiment() == asked_for


def test_the_config_gives_the_same_run_again(finished: Run, python: Start, tmp_path: Path) -> None:
    run_cluster, config = PROJECT / "run_cluster.py", finished.folder / "config.toml"
    again = Run(python(run_cluster, "--config", config, "--out", "again"), tmp_path / "again").succeed()
    assert bits(again.folder) == bits(finished.folder)
    assert (again.folder / "config.toml").read_text() == (finished.folder / "config.toml").read_text()


def test_metrics_have_a_row_for_every_round_and_one_for_the_last_evaluation(finished: Run) -> None:
    metrics = rows(finished.folder / "metrics.csv")
    assert [row["round"] for row in metrics] == ["0", "1", "2", "3"]
    assert [row["train_loss"] != "" for row in metrics] == [True, True, True, False]
    # Without prototypes nobody can be tested in the first round.
    assert [row["accuracy"] != "" for row in metrics] == [False, True, True, True]
    clients = rows(finished.folder / "clients.csv")
    assert [(row["round"], row["client"]) for row in clients] == [
        (str(round), str(client)) for round in range(LAST_ROUND + 1) for client in range(NUM_CLIENTS)
    ]
    for row in metrics[1:]:
        of_round = [client for client in clients if client["round"] == row["round"]]
        assert int(row["correct"]) == sum(int(client["correct"]) for client in of_round)
        assert float(row["accuracy"]) == int(row["correct"]) / sum(int(client["tested"]) for client in of_round)


def test_the_final_knowledge_is_one_prototype_a_class(finished: Run) -> None:
    final = load_file(finished.folder / "final.safetensors")
    assert {name: array.shape for name, array in final.items()} == {"prototypes": (NUM_CLASSES, FEATURE_DIM)}
    assert np.isfinite(final["prototypes"]).all()


def test_up_goes_one_vector_for_each_class_that_a_client_holds(
    finished: Run, classes_held: Callable[[Run], list[int]]
) -> None:
    held = classes_held(finished)
    for round in range(NUM_ROUNDS):
        for client in range(NUM_CLIENTS):
            sent = finished.booked("elements", direction="up", purpose="method", round=round, client=client)
            assert sent == FEATURE_DIM * held[client]


def test_down_go_all_prototypes_to_all_clients_from_the_second_round_to_the_last_evaluation(
    finished: Run,
) -> None:
    assert finished.booked("elements", direction="down", round=0) == 0
    for round in range(1, LAST_ROUND + 1):
        down = finished.booked("elements", direction="down", purpose="method", round=round)
        assert down == NUM_CLIENTS * NUM_CLASSES * FEATURE_DIM
    assert finished.booked("elements", direction="up", round=LAST_ROUND) == 0


def test_every_level_of_the_ledger_adds_up_to_the_summary(finished: Run) -> None:
    for purpose, ways in finished.summary["traffic"].items():
        for way, levels in ways.items():
            wanted = {"direction": way} | ({} if purpose == "total" else {"purpose": purpose})
            chosen = finished.ledger(**wanted)
            assert levels == {name: sum(int(row[name]) for row in chosen) for name in levels}
    for row in finished.ledger():
        assert int(row["payload_bytes"]) <= int(row["message_bytes"]) <= int(row["wire_bytes"])
        if row["payload"] == "prototypes":
            assert int(row["payload_bytes"]) == 4 * int(row["elements"])


def test_the_kernel_agrees_on_every_connection(finished: Run) -> None:
    audit = finished.summary["audit"]
    assert (audit["connections"], audit["checked"], audit["agree"]) == (NUM_CLIENTS,) * 3
    assert audit["differences"] == []
    assert finished.summary["audit_passed"] and finished.summary["completed"]
    line = f"the kernel agrees to the byte on {NUM_CLIENTS} of {NUM_CLIENTS} connections, in both directions"
    assert line in finished.command.stdout


def test_the_kernel_agrees_with_keys(cluster: Callable[..., Run]) -> None:
    summary = cluster("--curve").succeed().summary
    assert summary["audit"]["agree"] == summary["audit"]["connections"] >= NUM_CLIENTS


def test_the_events_tell_the_story_in_order(finished: Run) -> None:
    kinds = [event["event"] for event in events(finished.folder)]
    assert kinds[0] == "started" and kinds[-1] == "finished"
    assert kinds.count("client_ready") == NUM_CLIENTS
    assert kinds.count("round_finished") == NUM_ROUNDS + 1
    assert next(events_of(finished.folder, "joined"))["clients"] == NUM_CLIENTS
    told = next(events_of(finished.folder, "finished"))["summary"]
    assert told == {name: value for name, value in finished.summary.items() if name != "provenance"}
    for round in range(NUM_ROUNDS + 1):
        assert len(list(events_of(finished.folder, "answered", round=round))) == NUM_CLIENTS


def test_who_only_evaluates_is_booked_as_evaluation(half_taking_part: Run) -> None:
    run = half_taking_part
    for round in range(LAST_ROUND + 1):
        trained = {int(row["client"]) for row in run.ledger(round=round, purpose="method")}
        evaluated = {int(row["client"]) for row in run.ledger(round=round, purpose="evaluation")}
        assert len(trained) == len(evaluated) == 2 and trained | evaluated == set(range(NUM_CLIENTS))
        per_client = NUM_CLASSES * FEATURE_DIM if round > 0 else 0
        for purpose in ("method", "evaluation"):
            assert run.booked("elements", round=round, direction="down", purpose=purpose) == 2 * per_client
        assert run.booked("elements", round=round, direction="up", purpose="evaluation") == 0
        sent_up = run.booked("elements", round=round, direction="up", purpose="method")
        assert (sent_up > 0) == (round < LAST_ROUND)
    cohorts = [
        frozenset(
            int(row["client"])
            for row in rows(run.folder / "clients.csv")
            if row["round"] == str(round) and row["loss"]
        )
        for round in range(NUM_ROUNDS)
    ]
    assert all(len(cohort) == 2 for cohort in cohorts) and len(set(cohorts)) > 1
    assert run.summary["audit"]["agree"] == NUM_CLIENTS


def test_partial_participation_gives_the_bits_of_the_run_in_one_process(
    half_taking_part: Run, reference: Callable[..., Path]
) -> None:
    assert bits(half_taking_part.folder) == bits(reference(*HALF))


def test_saving_checkpoints_changes_no_result(cluster: Callable[..., Run], reference: Callable[..., Path]) -> None:
    """Clients that are asked for nothing but to save have no part in the round."""
    options = ("--participation", "0.5", "--set", "run.evaluate_every=2", "--rounds", "4")
    saved = cluster(*options, "--checkpoint-every", "1").succeed()
    assert bits(saved.folder) == bits(reference(*options))


def test_a_run_in_one_process_leaves_the_same_files_but_those_of_the_wire(reference: Callable[..., Path]) -> None:
    names = {path.name for path in reference().iterdir()}
    assert names == {
        *("config.toml", "partition.csv", "metrics.csv", "clients.csv", "timings.csv", "events.jsonl"),
        "server_timings.csv",
        "metrics.tfevents",
        *("final.safetensors", "summary.json", "records", "logs"),
    }
    summary = json.loads((reference() / "summary.json").read_text())
    assert summary["completed"] and "traffic" not in summary
