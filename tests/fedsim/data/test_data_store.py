import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedsim.data import Dataset, store
from fedsim.data.dataset import fingerprint_of
from fedsim.errors import UserError


def copies(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "decoded").glob("*") if path.suffix != ".lock")


def test_a_second_process_maps_the_copy_and_decodes_nothing(write_npz, cache, monkeypatch):
    path = str(write_npz())
    first = store.open_dataset(path).dataset
    monkeypatch.setattr(store, "_fill", None)
    again = store.open_dataset(path).dataset
    assert isinstance(again.inputs, np.memmap) and again.inputs.filename == first.inputs.filename
    assert np.array_equal(again.inputs, first.inputs) and np.array_equal(again.labels, first.labels)
    assert len(copies(cache)) == 1


def test_a_changed_source_is_decoded_anew(write_npz, cache):
    path = write_npz()
    before = store.open_dataset(str(path)).dataset
    write_npz(x_train=np.zeros((15, 4, 6, 3), np.uint8))
    os.utime(path, ns=(1, 1))
    after = store.open_dataset(str(path)).dataset
    assert before.inputs[:15].any() and not after.inputs[:15].any()
    assert len(copies(cache)) == 2


def test_what_a_dead_process_left_is_cleared_away(write_npz, cache):
    path = str(write_npz())
    store.open_dataset(path)
    (name,) = copies(cache)
    finished = cache / "decoded" / name
    unfinished = finished.with_suffix(".unfinished")
    finished.rename(unfinished)
    (unfinished / "inputs.npy").write_bytes(b"half an image")
    dataset = store.open_dataset(path).dataset
    assert copies(cache) == [name] and dataset.inputs.shape == (21, 4, 6, 3)


def test_writing_to_a_mapped_array_changes_no_other_process(write_npz):
    path = str(write_npz())
    mine, theirs = store.open_dataset(path).dataset, store.open_dataset(path).dataset
    before = int(theirs.inputs[0, 0, 0, 0])
    mine.inputs[0, 0, 0, 0] = 255 - before
    assert theirs.inputs[0, 0, 0, 0] == before == store.open_dataset(path).dataset.inputs[0, 0, 0, 0]


def test_a_full_disk_is_noticed_before_anything_is_written(write_npz, cache, monkeypatch):
    path = str(write_npz())
    monkeypatch.setattr(store.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(
        UserError, match=r"own needs 0 MiB in .* but 0 MiB are free; make room or set FEDSIM_CACHE"
    ):
        store.open_dataset(path)
    assert copies(cache) == []


def test_a_cache_that_cannot_be_written_is_named(write_npz, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"the cache folder .*file/decoded cannot be written .*; set FEDSIM_CACHE"):
        store.open_dataset(str(write_npz()))


def test_the_cache_folder_follows_the_environment(monkeypatch):
    from fedsim.data.cache import cache_folder

    monkeypatch.delenv("FEDSIM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert cache_folder() == Path("/some/cache/fedsim")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/fedsim")


TOGETHER = """
import os, sys, time
import numpy as np
from fedsim.data import store

source, log, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
real_fill = store._fill

def slow_fill(source, image_size, folder):
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\\n")
    if os.path.getsize(log) == len(f"{os.getpid()}\\n"):
        os.kill(os.getpid(), 9)  # the first one dies in the middle
    time.sleep(0.2)  # the others must all be waiting by now
    return real_fill(source, image_size, folder)

store._fill = slow_fill
children = []
for _ in range(number):
    child = os.fork()
    if not child:
        dataset = store.open_dataset(source).dataset
        os._exit(0 if dataset.inputs.sum() == int(sys.argv[4]) else 1)
    children.append(child)
print(sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.process
def test_many_processes_at_once_decode_once_even_if_one_is_killed(write_npz, tmp_path, cache):
    path = write_npz()
    with np.load(path) as archive:
        total = int(archive["x_train"].sum()) + int(archive["x_test"].sum())
    arguments = [str(path), str(tmp_path / "log"), "12", str(total)]
    done = subprocess.run(
        [sys.executable, "-c", TOGETHER, *arguments],
        cwd=Path(store.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == str([-9, *[0] * 11]), done.stderr
    assert len((tmp_path / "log").read_text().split()) == 2  # the one that died, and one after it
    assert len(copies(cache)) == 1


def test_the_fingerprint_is_that_of_the_samples_and_not_of_the_file(write_npz, tmp_path):
    first = store.open_dataset(str(write_npz())).dataset
    again = store.open_dataset(str(write_npz("copy"))).dataset
    assert len(first.fingerprint) == 32 and first.fingerprint == again.fingerprint
    assert first.fingerprint == fingerprint_of(first), "what is stored is what the samples give"
    images, labels = np.array(first.inputs), np.array(first.labels)
    images[3, 0, 0, 0] ^= 1
    changed = [
        Dataset("own", images, first.labels, 3, first.num_train),
        Dataset("own", first.inputs, np.roll(labels, 1), 3, first.num_train),
        Dataset("own", first.inputs, first.labels, 3, first.num_train - 1),
        Dataset("own", first.inputs, first.labels, 4, first.num_train),
        Dataset("own", first.inputs[::-1], first.labels, 3, first.num_train),
        Dataset("own", first.inputs.reshape(21, 6, 4, 3), first.labels, 3, first.num_train),
    ]
    assert len({first.fingerprint, *(dataset.fingerprint for dataset in changed)}) == 1 + len(changed)


def test_the_fingerprint_is_the_same_on_every_machine():
    """Worked out once, by hand: sha256 of the sizes, then of type, shape and bytes of inputs and labels."""
    inputs, labels = np.array([[1.5], [2.0]], np.float32), np.array([0, 1])
    content = b"2/1/<f4(2, 1)" + struct.pack("<2f", 1.5, 2.0) + b"/<i8(2,)" + struct.pack("<2q", 0, 1)
    assert Dataset("two", inputs, labels, 2, 1).fingerprint == hashlib.sha256(content).hexdigest()[:32]
    swapped = Dataset("two", inputs.astype(">f4"), labels.astype(">i8"), 2, 1)
    assert swapped.fingerprint == Dataset("two", inputs, labels, 2, 1).fingerprint
