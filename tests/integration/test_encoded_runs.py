"""Payloads in encodings, in real processes: the same bits however a run is carried out, and the kernel's bytes."""

import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PROJECT, Run, Start, bits, events_of, rows, wait_for_event

needs_zstd = pytest.mark.skipif(
    importlib.util.find_spec("zstandard") is None, reason="the extra zstd is not installed"
)
ENCODINGS = [
    "float16",
    "bfloat16",
    "int8",
    "topk:2",
    *(pytest.param(name, marks=needs_zstd) for name in ("zstd", "int8+zstd")),
]
Cluster = Callable[..., Run]
Reference = Callable[..., Path]


def coded(encoding: str, *more: str) -> tuple[str, ...]:
    settings = (f"wire.prototypes={encoding}", *more)
    return tuple(word for setting in settings for word in ("--set", setting))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_cluster_gives_the_bits_of_one_process_and_the_kernel_counts_fewer_bytes(
    encoding: str, cluster: Cluster, reference: Reference
) -> None:
    run = cluster(*coded(encoding)).succeed()
    assert bits(run.folder) == bits(reference(*coded(encoding)))
    assert (bits(run.folder) == bits(reference())) == (encoding == "zstd")
    audit = run.summary["audit"]
    assert audit["agree"] == audit["checked"] == 4
    sent = [row for row in rows(run.folder / "ledger.csv") if row["payload"] == "prototypes"]
    assert all(int(row["decoded_bytes"]) == 4 * int(row["elements"]) > 0 for row in sent)
    fixed = {
        "float16": lambda n: 6 * n,
        "bfloat16": lambda n: 6 * n,
        "int8": lambda n: 7 * n,
        "topk:2": lambda n: 10 * n,
    }
    if encoding in fixed:
        assert all(int(row["payload_bytes"]) == fixed[encoding](int(row["elements"]) // 3) for row in sent)


def test_a_run_without_settings_has_the_ledger_that_it_always_had(cluster: Cluster) -> None:
    run = cluster().succeed()
    columns = ["round", "client", "direction", "purpose", "message", "payload", "frames", "elements"]
    assert list(rows(run.folder / "ledger.csv")[0]) == [*columns, "payload_bytes", "message_bytes", "wire_bytes"]
    assert "wire" not in (run.folder / "config.toml").read_text()
    assert "decoded_bytes" not in (run.folder / "summary.json").read_text()


@pytest.mark.parametrize(
    ("encoding", "more"),
    [*((encoding, ()) for encoding in ENCODINGS if isinstance(encoding, str)),
     ("int8", ("wire.error_feedback=true", "wire.ways=up")),
     pytest.param("int8+zstd", (), marks=needs_zstd)],
)  # fmt: skip
def test_killed_and_resumed_gives_the_same_bits(
    encoding: str, more: tuple[str, ...], cluster: Cluster, python: Start, reference: Reference
) -> None:
    """Rounding draws again what it drew, and what error feedback owes is in the clients' checkpoints."""
    options = (*coded(encoding, *more), "--rounds", "8")
    run = cluster(*options, "--checkpoint-every", "1")
    wait_for_event(run.folder, "round_finished", round=3)
    run.command.send_to_all(signal.SIGKILL)
    run.command.wait_until_gone()
    Run(python(PROJECT / "run_cluster.py", "--resume", run.folder), run.folder).succeed()
    assert len(list(events_of(run.folder, "started"))) == 2
    assert bits(run.folder) == bits(reference(*options))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (coded("int4"), "error: there is no encoding 'int4'; did you mean int8?"),
        (("--set", "wire.index=int8"), "error: wire.index = 'int8' would break fedproto: numbers of classes"),
        (("--set", "wire.logits=topk"), "error: wire.logits = 'topk' has no effect: fedproto sends no logits"),
    ],
)
def test_bad_settings_end_before_anything_is_started(
    options: tuple[str, ...], reason: str, cluster: Cluster
) -> None:
    run = cluster(*options)
    assert run.command.wait() == 2
    assert run.command.stderr.startswith(reason) and run.command.stderr.count("\n") == 1
    assert not run.folder.exists()
