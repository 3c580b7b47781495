"""Files without a name: what is written is read, and the copy of one is a safetensors file."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load

from fedsim.errors import UserError
from nodes.client import nameless
from nodes.client.nameless import Nameless

DTYPES = ["f8", "f4", "f2", "?", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", ">f4"]
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=9),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
)


def same(ours: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> bool:
    little = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in others.items()}
    return ours.keys() == little.keys() and all(
        (ours[name].dtype, ours[name].shape, ours[name].tobytes()) == (item.dtype, item.shape, item.tobytes())
        for name, item in little.items()
    )


@given(ARRAYS)
def test_what_is_written_is_read_also_by_safetensors(arrays: dict[str, np.ndarray]) -> None:
    file = Nameless.of(arrays)
    try:
        assert same(file.arrays(), arrays)
        assert same(load(bytes(file.content())), arrays)
        assert os.fstat(file.descriptor).st_size == len(file.content())
    finally:
        file.close()


def test_a_reader_may_write_and_nobody_sees_it() -> None:
    file = Nameless.of({"x": np.zeros(3, np.float32), "strided": np.arange(6).reshape(2, 3).T})
    file.arrays()["x"][:] = 7
    assert file.arrays()["x"].tolist() == [0, 0, 0]
    assert file.arrays()["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]
    file.close()


def test_without_room_in_memory_it_lies_on_disk_and_leaves_nothing(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nameless, "available_bytes", lambda: 0)
    file = Nameless.of({"x": np.arange(4)}, tmp_path)
    assert os.fstat(file.descriptor).st_dev == tmp_path.stat().st_dev
    assert file.arrays()["x"].tolist() == [0, 1, 2, 3] and list(tmp_path.iterdir()) == []
    file.close()


def test_a_full_disk_is_said_with_the_size(monkeypatch) -> None:
    monkeypatch.setattr(nameless, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(UserError, match=r"3 MiB cannot be kept in memory: No space left; make room"):
        Nameless.of({"x": np.zeros(3 << 20, np.uint8)})
