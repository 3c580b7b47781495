import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.sources.unpickle import read_object_npz, read_pickle


def through(value: object, protocol: int = 4) -> object:
    return read_pickle(io.BytesIO(pickle.dumps(value, protocol)))


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "f8", "?"])
def test_arrays_in_containers_come_back_as_they_were(protocol, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    if protocol == 2:
        # Python 3 spells bytes in protocol 2 as a call; what Python 2 wrote is in the test below.
        with pytest.raises(pickle.UnpicklingError, match=r"_codecs\.encode"):
            through(array, protocol)
        return
    tree = through({"a": [array, np.asfortranarray(array)], "b": (1, 2.5, "text", None, True)}, protocol)
    assert tree["b"] == (1, 2.5, "text", None, True)
    for back in tree["a"]:
        assert back.dtype == array.dtype and np.array_equal(back, array)


def test_what_python_2_wrote_is_read():
    """A batch as in CIFAR: protocol 2, byte strings as keys, as type codes and as pixels."""
    pixels = bytes(range(200, 206))
    python2 = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89U\x06" + pixels + b"tbU\x06labels](K\x07K\x08eu."
    )
    batch = read_pickle(io.BytesIO(python2))
    assert batch["labels"] == [7, 8]
    assert batch["data"].tolist() == [[200, 201, 202], [203, 204, 205]]


class Harmful:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_something_is_refused_and_nothing_runs(tmp_path):
    harm = tmp_path / "harm"
    with pytest.raises(pickle.UnpicklingError, match=r"it names posix\.mkdir, which no array needs"):
        through({"x": np.zeros(2), "y": Harmful(harm)})
    assert not harm.exists()
    pickle.loads(pickle.dumps(Harmful(harm)))  # the same pickle does harm in the usual reader
    assert harm.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array(["text"]),
        np.array([1 + 2j]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
        np.array([{"a": 1}, {"b": 2}], dtype=object),
        np.float64(1.5),
        {1, 2}.__class__,
    ],
    ids=["text", "complex", "records", "objects", "scalar", "class"],
)
def test_other_things_than_arrays_of_numbers_are_refused(value):
    with pytest.raises(pickle.UnpicklingError):
        through({"value": value})


def test_bytes_that_do_not_fill_the_shape_are_refused():
    content = pickle.dumps(np.arange(6, dtype=np.uint8).reshape(2, 3), 4)
    shape = pickle.dumps((2, 3), 4)[11:15]  # BININT1 2 BININT1 3
    with pytest.raises(ValueError, match="cannot reshape"):
        read_pickle(io.BytesIO(content.replace(shape, b"K\x02K\x09")))


def test_the_object_of_an_npz_is_read_without_numpys_pickle_support(tmp_path):
    path = tmp_path / "0.npz"
    np.savez_compressed(path, data={"x": np.ones((2, 1), np.float32), "y": np.array([3, 4])})
    content = read_object_npz(path, "data")
    assert content["x"].tolist() == [[1.0], [1.0]] and content["y"].tolist() == [3, 4]
    np.savez(path, data=np.zeros(3))
    with pytest.raises(ValueError, match=r"array of float64 and shape \(3,\), not a single object"):
        read_object_npz(path, "data")
