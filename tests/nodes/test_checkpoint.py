"""State on disk: the same bits come back, and whatever moment the machine stops at, one whole set is there."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedsim.errors import UserError
from nodes import checkpoint
from nodes.checkpoint import Checkpoints, Manifest, StateFiles, client_files, write_atomically

STATES_ID = "0f3a"
STATES = {
    "scalar": np.array(7, np.int64),
    "numpy scalar": np.float32(0.1),
    "no rows": np.zeros((0, 512), np.float32),
    "flags": np.array([True, False, True]),
    "counts": np.array([2**62, -1], np.int64),
    "bytes": np.arange(256, dtype=np.uint8),
    "halves": np.array([[1.5, -0.0]], np.float16),
    "doubles": np.array([np.pi, np.inf, -np.inf, np.nan]),
    "every second": np.arange(10, dtype=np.int32)[::2],
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
}


def manifest(round: int, **client_rounds: int) -> Manifest:
    history = [{"round": r, "accuracy": None if r == 0 else 0.1 * r, "clients": 2} for r in range(round + 1)]
    ledger = [{"round": 0, "client": 1, "direction": "up", "wire_bytes": 2**40}]
    return Manifest(round=round, client_rounds=client_rounds, history=history, ledger=ledger, states=STATES_ID)


def state_of(round: int) -> dict[str, np.ndarray]:
    return {"weights": np.full((3, 2), round, np.float32), "steps": np.array(round)}


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Crash(Exception):
    """The machine stops here."""


# ------------------------------------------------------------------------------------------- one node's states


def test_every_bit_comes_back(tmp_path):
    files = StateFiles(tmp_path / "node")
    files.save(3, STATES)
    loaded = files.load(3)
    assert set(loaded) == set(STATES)
    for name, array in STATES.items():
        assert loaded[name].dtype == array.dtype, name
        assert loaded[name].shape == array.shape, name
        assert loaded[name].tobytes() == array.tobytes(), name


def test_an_empty_state_is_a_state(tmp_path):
    files = StateFiles(tmp_path)
    files.save(0, {})
    assert files.load(0) == {}


def test_what_was_loaded_may_be_changed(tmp_path):
    files = StateFiles(tmp_path)
    files.save(0, state_of(0))
    files.load(0)["weights"][:] = 9.0
    assert not files.load(0)["weights"].any()


def test_what_is_not_to_be_kept_goes(tmp_path):
    files = StateFiles(tmp_path)
    for round in (9, 10, 999_999, 1_000_000):
        files.save(round, state_of(round))
    files.keep_only(10, 1_000_000, 7)  # one that is not there does not matter
    assert files_in(tmp_path) == ["round-000010.safetensors", "round-1000000.safetensors"]
    assert files.load(1_000_000)["steps"] == 1_000_000


def test_a_round_that_is_played_again_replaces_its_file(tmp_path):
    files = StateFiles(tmp_path)
    for value, round in ((1, 4), (2, 9), (3, 9)):
        files.save(round, state_of(value))
    assert files_in(tmp_path) == ["round-000004.safetensors", "round-000009.safetensors"]
    assert files.load(9)["steps"] == 3 and files.load(4)["steps"] == 1


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("keep")
    (tmp_path / "round-x.safetensors").write_text("keep")
    files = StateFiles(tmp_path)
    files.save(3, state_of(3))
    files.keep_only()
    assert files_in(tmp_path) == ["notes.txt", "round-x.safetensors"]


def test_what_a_killed_process_had_written_by_half_goes_with_the_next_state(tmp_path, monkeypatch):
    """Each would take as much room as a state, and nobody would ever name it again."""

    def stop(*args, **options):
        raise Crash

    mine, other = (client_files(tmp_path, STATES_ID, client) for client in (3, 4))
    for process in (101, 102):
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint.os, "getpid", lambda number=process: number)
            patched.setattr(checkpoint.os, "fsync", stop)
            for files in (mine, other):
                with pytest.raises(Crash):
                    files.save(process, state_of(0))
    assert len(files_in(mine.folder)) == 1 and len(files_in(other.folder)) == 1
    mine.save(5, state_of(5))
    assert files_in(mine.folder) == ["round-000005.safetensors"] and mine.load(5)["steps"] == 5
    assert files_in(other.folder) == [".round-000102.safetensors.102"], "that one may be at work"


def test_each_client_of_each_run_has_a_folder_of_its_own(tmp_path):
    for client in (3, 12345):
        client_files(tmp_path, STATES_ID, client).save(0, state_of(client))
    client_files(tmp_path, "1e2d", 3).save(0, state_of(99))
    assert files_in(tmp_path / STATES_ID) == ["client-00003", "client-12345"]
    assert client_files(tmp_path, STATES_ID, 3).load(0)["steps"] == 3


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", None])
def test_a_broken_state_is_one_sentence(tmp_path, content):
    files = StateFiles(tmp_path)
    if content is not None:
        (tmp_path / "round-000002.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"^the saved state .*round-000002.safetensors cannot be read: ") as error:
        files.load(2)
    assert "\n" not in str(error.value)


def test_a_state_that_was_cut_short_is_one_sentence(tmp_path):
    files = StateFiles(tmp_path)
    files.save(2, STATES)
    path = tmp_path / "round-000002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cannot be read"):
        files.load(2)


# ------------------------------------------------------------------------------------------------ whole sets


def test_a_set_comes_back_as_it_was(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    written = manifest(4, **{"0": 4, "1": 2})
    checkpoints.save(written, state_of(4))
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded[0] == written
    assert loaded[1]["steps"] == 4


def test_a_folder_without_a_manifest_has_no_checkpoint(tmp_path):
    client_files(tmp_path, STATES_ID, 0).save(4, state_of(4))
    StateFiles(tmp_path / "server").save(4, state_of(4))
    assert Checkpoints(tmp_path).load() is None


def save_set(folder: Path, round: int) -> None:
    """As a run does: the clients first, then the server's state, then the manifest."""
    last = Checkpoints(folder).load()
    for client in range(2):
        files = client_files(folder, STATES_ID, client)
        files.save(round, state_of(100 * client + round))
        files.keep_only(round, last[0].client_rounds[str(client)] if last else -1)
    Checkpoints(folder).save(manifest(round, **{"0": round, "1": round}), state_of(round))


def whole_set(folder: Path) -> int:
    """The round of the newest set, all files of which are there and right."""
    loaded = Checkpoints(folder).load()
    assert loaded is not None
    newest, server = loaded
    assert server["steps"] == newest.round
    for client, round in newest.client_rounds.items():
        assert client_files(folder, STATES_ID, int(client)).load(round)["steps"] == 100 * int(client) + round
    return newest.round


@pytest.mark.parametrize("step", ["open", "fsync", "rename", "unlink"])
def test_a_crash_at_any_moment_leaves_a_whole_set(tmp_path, monkeypatch, step):
    """Stop before every single system call of the kind, in turn, until the set gets through."""
    owner = os if step == "fsync" else Path
    real = getattr(owner, step)
    num_crashes = 0
    while True:
        folder = tmp_path / str(num_crashes)
        for round in (1, 3):
            save_set(folder, round)
        calls_left = num_crashes

        def stop(*args, **options):
            nonlocal calls_left
            if calls_left == 0:
                raise Crash
            calls_left -= 1
            return real(*args, **options)

        monkeypatch.setattr(owner, step, stop)
        try:
            save_set(folder, 5)
        except Crash:
            finished = False
        else:
            finished = True
        monkeypatch.setattr(owner, step, real)
        if finished:
            assert whole_set(folder) == 5
            break
        assert whole_set(folder) in (3, 5)
        save_set(folder, 5)  # what a resumed run does when it gets there again
        assert whole_set(folder) == 5
        num_crashes += 1
    assert num_crashes >= 3  # at least once for each of the clients and the server


def test_a_crash_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def stop(*args, **options):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.os, "fsync", stop)
        with pytest.raises(Crash):
            write_atomically(path, b"the new and longer content")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"round": 3}', b'{"round": "x", "surprise": 1}', b"\xff"])
def test_a_broken_manifest_is_one_sentence(tmp_path, text):
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(UserError, match=r"manifest.json is not a checkpoint manifest: ") as error:
        Checkpoints(tmp_path).load()
    assert "\n" not in str(error.value)


def test_a_manifest_whose_state_is_gone_is_one_sentence(tmp_path):
    Checkpoints(tmp_path).save(manifest(4), state_of(4))
    (tmp_path / "server" / "round-000004.safetensors").unlink()
    with pytest.raises(UserError, match=r"round-000004\.safetensors cannot be read"):
        Checkpoints(tmp_path).load()
