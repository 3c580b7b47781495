"""A run folder made by hand: three clients, two rounds of training and the last evaluation, easy to check.

Clients hold classes {0, 1}, {1} and {0, 1, 2}; a prototype has two numbers; the messages are a few bytes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedsim.config import build
from fedsim.learning.stopwatch import Spent
from fedsim.results.folder import RunFolder

TRAIN_MC = np.array([[6, 3, 0], [0, 9, 0], [4, 4, 4]])
TEST_MC = np.array([[2, 2, 0], [0, 4, 0], [2, 2, 1]])
CORRECT = {0: (0, 0, 0), 1: (1, 2, 1), 2: (3, 4, 2)}
"""Round -> right answers of each client, of 4, 4 and 5."""
TESTED = (4, 4, 5)
SECONDS = {"receive": 0.125, "evaluate": 0.25, "train": 1.0, "upload": 0.125, "round_trip": 2.0}
ROUND_SECONDS = 5.0
SERVER_PARTS = {"prototypes": Spent(0.375, 0.75), "aggregation": Spent(0.125, 0.125)}
CLASSES_HELD = ((0, 1), (1,), (0, 1, 2))
UP_BYTES, DOWN_BYTES, HEADER_BYTES, HANDSHAKE_BYTES = 100, 400, 10, 50
"""On the wire, of one message."""


def make_run(
    path: Path,
    *,
    method: str = "fedproto",
    dataset: str = "spiral",
    wire: bool = True,
    settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    correct: Mapping[int, tuple[int, ...]] = MappingProxyType(CORRECT),
) -> Path:
    """`wire=False`: as a run in one process. `correct`: another result than CORRECT."""
    layer = {"run": {"clients": 3, "rounds": 2}, "data": {"dataset": dataset}, "method": {"name": method}}
    folder = RunFolder.create(path, build([layer, settings]))
    folder.write_partition(TRAIN_MC, TEST_MC)
    events = [{"event": "started", "time": 100.0}]
    for round, right in correct.items():
        trains = round < 2
        _add_round(folder, round, right, trains=trains, wire=wire)
        said = {"event": "round_finished", "time": 105.0 + 5 * round, "round": round, "seconds": ROUND_SECONDS}
        events.append(said)
    (folder.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = {
        "architectures": ["CNN1", "CNN2"],
        "completed": True,
        "reason": "the run is complete",
        "seconds": 12.5,
    }
    if wire:
        folder.write_ledger(_ledger())
        summary["audit"] = {"connections": 3, "checked": 3, "agree": 3, "cut": [], "differences": []}
    folder.write_summary(summary)
    return path


def _add_round(folder: RunFolder, round: int, correct: tuple[int, ...], *, trains: bool, wire: bool) -> None:
    tested = TESTED if round else (0, 0, 0)  # before the first aggregation there is nothing to test
    shares = [right / of for right, of in zip(correct, tested, strict=True) if of]
    row = {
        "round": round,
        "accuracy": sum(correct) / 13 if shares else None,
        "pooled_accuracy": sum(correct) / 13 if shares else None,
        "client_mean_accuracy": sum(shares) / 3 if shares else None,
        "correct": sum(correct),
        "tested": sum(tested),
        "clients": 3,
        "expected": 3,
        "absent": 0,
        "lost": 0,
        "train_loss": 2.0 - round if trains else None,
    }
    if trains:
        row |= {"server_loss_first": 4.0, "server_loss": 3.0 - round, "margin_max": 2.0, "margin_mean": 1.5}
        folder.add_records(round, _records(round))
        folder.add_server_timings(round, SERVER_PARTS)
    folder.add_metrics(row)
    metrics = {
        client: {"correct": correct[client], "tested": tested[client]} | ({"loss": 1.5 + client} if trains else {})
        for client in range(3)
    }
    folder.add_client_metrics(round, metrics)
    seconds = SECONDS if trains else {"receive": 0.125, "evaluate": 0.25, "round_trip": 0.5}
    if not wire:
        seconds = {name: value for name, value in seconds.items() if name != "round_trip"}
    folder.add_timings(round, dict.fromkeys(range(3), seconds))


def _records(round: int) -> dict[str, np.ndarray]:
    """Margins of clients: 1, 1 | none | 2, 2, 4; of the global prototypes 1, 2, 3, which clients use tenfold."""
    ids = np.array([0, 0, 1, 2, 2, 2], np.int32)
    classes = np.array([0, 1, 1, 0, 1, 2], np.int32)
    return {
        "client_margins": np.array([1, 1, np.nan, 2, 2, 4], np.float32),
        "client_ids": ids,
        "client_classes": classes,
        "client_prototypes": np.stack([classes + 0.1 * ids, classes + round - 0.1 * ids], 1).astype(np.float32),
        "global_margins": np.array([1, 2, 3], np.float32),
        "global_prototypes": np.array([[0, 0], [1, 1], [2, 2]], np.float32),
        "global_classes": np.arange(3, dtype=np.int64),
        "prototype_scale": np.array(10, np.float32),
        # As of a method with public samples and a margin for each class; nobody holds class 2 at first.
        "class_margins": np.array([1 + round, 2, 3 if round else np.nan], np.float32),
        "public_features": np.array([[0, 0.5], [1, 1.5], [2, 2.5], [0.5, 0]], np.float16) * (1 + round),
        "public_labels": np.array([0, 1, 2, 0], np.int32),
    }


def _ledger() -> list[dict[str, int | str]]:
    """Handshakes; in rounds 0 and 1 prototypes up, in rounds 1 and 2 prototypes down, always with a header."""
    rows = []

    def add(round: int, client: int, way: str, purpose: str, message: str, payload: str, size: int) -> None:
        elements = 2 * len(CLASSES_HELD[client]) if payload == "prototypes" else 0
        rows.append(
            {"round": round, "client": client, "direction": way, "purpose": purpose, "message": message}
            | {"payload": payload, "frames": 1, "elements": elements, "payload_bytes": 4 * elements}
            | {"message_bytes": size - 2, "wire_bytes": size}
        )

    for client in range(3):
        for way in ("up", "down"):
            add(-1, client, way, "control", "handshake", "handshake", HANDSHAKE_BYTES)
        for round in range(3):
            add(round, client, "down", "method", "work", "header", HEADER_BYTES)
            add(round, client, "up", "method", "result", "header", HEADER_BYTES)
            if round > 0:
                add(round, client, "down", "method", "work", "prototypes", DOWN_BYTES)
            if round < 2:
                add(round, client, "up", "method", "result", "prototypes", UP_BYTES)
    return rows
