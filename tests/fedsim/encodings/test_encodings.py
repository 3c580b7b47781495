"""Every encoding against another formulation, at the edges of its range, and against bytes it did not make."""

import importlib.util
import random

import numpy as np
import pytest

from fedsim import config, encodings
from fedsim.contract import Contract, Field, Payload, class_ids
from fedsim.encodings.base import Encoding, decoded
from fedsim.errors import CodingError, UnknownName, UserError

needs_zstd = pytest.mark.skipif(
    importlib.util.find_spec("zstandard") is None, reason="the extra zstd is not installed"
)
FIXED = ("float16", "bfloat16", "int8", "topk", "topk:0.5", "topk:3")
COMPRESSED = tuple(
    pytest.param(name, marks=needs_zstd) for name in ("zstd", "float16+zstd", "int8+zstd", "topk:3+zstd")
)
F4, F8 = np.dtype("float32"), np.dtype("float64")
SHAPES = [(7, 12), (1, 1), (3, 300), (4, 3, 5, 5), (0, 8)]


def made(name: str) -> Encoding:
    found = encodings.make(name)
    assert found is not None
    return found


def draws(seed: int = 1):
    return lambda: np.random.default_rng(seed)


def normal(shape: tuple[int, ...], dtype: np.dtype = F4, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(sum(shape) + 1).standard_normal(shape)).astype(dtype)


def travelled(name: str, array: np.ndarray, seed: int = 1) -> np.ndarray:
    encoding = made(name)
    return decoded(encoding, encoding.encode(array, draws(seed)), array.shape, array.dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*FIXED, *COMPRESSED])
def test_what_comes_back_has_the_shape_and_the_type(name: str, shape: tuple[int, ...]) -> None:
    for dtype in (F4, F8):
        array = normal(shape, dtype)
        back = travelled(name, array)
        assert back.shape == shape and back.dtype == dtype
        # Errors are at most a step of the row's largest value for int8; topk loses what it drops.
        if not name.startswith("topk"):
            np.testing.assert_allclose(back, array, atol=float(np.abs(array).max(initial=0)) / 127)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_size_is_known_beforehand(name: str, shape: tuple[int, ...]) -> None:
    for dtype in (F4, F8):
        frame = made(name).encode(normal(shape, dtype), draws())
        assert len(frame) == made(name).num_bytes(shape, dtype)


def test_sizes_by_hand() -> None:
    sizes = {name: made(name).num_bytes((100, 512), F4) for name in FIXED}
    assert sizes == {
        "float16": 102_400,
        "bfloat16": 102_400,
        "int8": 51_200 + 400,
        "topk": 100 * 51 * (4 + 2),
        "topk:0.5": 100 * 256 * 6,
        "topk:3": 100 * 3 * 6,
    }
    assert made("int8").num_bytes((2500,), F4) == 2500 + 3 * 4, "a vector is rows of 1,024"
    assert made("topk").num_bytes((5, 10), F4) == 5 * (4 + 1), "of ten numbers one is kept, at a place of one byte"


def test_float16_is_numpy_s_and_bfloat16_torch_s() -> None:
    import torch

    array = normal((50, 40), scale=300.0)
    np.testing.assert_array_equal(travelled("float16", array), array.astype(np.float16).astype(np.float32))
    theirs = torch.from_numpy(array).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(travelled("bfloat16", array), theirs)


def test_int8_is_one_of_the_two_nearest_levels_and_right_on_average() -> None:
    array = normal((6, 40))
    step = np.abs(array).max(axis=1, keepdims=True).astype(np.float64) / 127
    many = np.stack([travelled("int8", array, seed) for seed in range(400)]).astype(np.float64)
    assert (np.abs(many - array) <= step * (1 + 1e-5)).all()
    levels = np.unique(np.round(many / step), axis=0)
    assert ((levels.max(axis=0) - levels.min(axis=0)) <= 1).all()
    # Unbiased: the mean of 400 draws with a deviation of at most half a step.
    assert (np.abs(many.mean(axis=0) - array) < 5 * 0.5 * step / np.sqrt(400)).all()


def test_int8_keeps_extremes_zeros_and_rows_of_zeros_as_they_are() -> None:
    largest = np.finfo(np.float32).max
    array = np.array([[0, 0, 0], [3, -3, 0], [largest, -largest, 0], [1e-45, 0, -1e-45]], np.float32)
    np.testing.assert_array_equal(travelled("int8", array), array)


def test_int8_of_many_numbers_is_that_of_its_rows() -> None:
    """What is worked on at once must not be seen in the result: scales are each row's own."""
    array = normal((300, 1000)) * np.logspace(-3, 3, 300, dtype=np.float32)[:, None]
    steps = np.abs(array).max(axis=1, keepdims=True) / 127
    assert (np.abs(travelled("int8", array) - array) <= steps * 1.001).all()
    vector = array.reshape(-1)[:2500]
    steps = np.repeat([np.abs(vector[start : start + 1024]).max() for start in (0, 1024, 2048)], 1024)[:2500] / 127
    assert (np.abs(travelled("int8", vector) - vector) <= steps * 1.001).all()


def test_another_stream_rounds_otherwise_and_the_same_one_alike() -> None:
    array = normal((20, 50))
    first, again, other = (made("int8").encode(array, draws(seed)) for seed in (1, 1, 2))
    assert first == again and first != other


def test_topk_keeps_the_largest_magnitudes_and_of_equal_ones_the_first() -> None:
    array = np.array([[1, -5, 2, 4, 0], [3, 3, -3, 3, 3], [0, 0, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(
        travelled("topk:2", array), np.array([[0, -5, 0, 4, 0], [3, 3, 0, 0, 0], [0, 0, 0, 0, 0]])
    )
    array = normal((9, 300))
    kept = np.sort(np.abs(array), axis=1)[:, -30:]  # another way to the same numbers
    np.testing.assert_array_equal(np.sort(np.abs(travelled("topk", array)), axis=1)[:, -30:], kept)
    assert (np.count_nonzero(travelled("topk", array), axis=1) == 30).all()


@needs_zstd
def test_zstd_loses_nothing_and_shortens_what_is_alike() -> None:
    for array in (normal((30, 64)), np.arange(50, dtype=np.int32), np.zeros((20, 512), np.float32)):
        np.testing.assert_array_equal(travelled("zstd", array), array)
    assert len(made("zstd").encode(np.zeros((20, 512), np.float32), draws())) < 100
    array = normal((30, 64))
    np.testing.assert_array_equal(travelled("int8+zstd", array), travelled("int8", array))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("float16", 7e4, "holds 1 of 4 values beyond 65504, the largest float16; use bfloat16 or int8"),
        ("bfloat16", 3.4e38, "holds 1 of 4 values beyond 3.38953e\\+38, the largest bfloat16"),
    ],
)
def test_values_beyond_the_range_are_refused_and_not_changed(name: str, value: float, reason: str) -> None:
    with pytest.raises(CodingError, match=reason):
        made(name).encode(np.array([[1, 2, 3, value]], np.float32), draws())
    with pytest.raises(CodingError, match="beyond"):
        made("int8").encode(np.array([1e300]), draws())


# ----------------------------------------------------------------------------------------------- hostile frames


@pytest.mark.parametrize("name", [*FIXED, *COMPRESSED])
def test_whatever_comes_is_an_array_of_the_shape_or_an_error(name: str) -> None:
    rng, encoding, shape = random.Random(name), made(name), (5, 40)
    valid = bytes(encoding.encode(normal(shape), draws()))
    outcomes = {"array": 0, "error": 0}
    for _ in range(1500):
        data = bytearray(valid)
        match rng.randrange(4):
            case 0:
                data = bytearray(rng.randbytes(len(valid)))
            case 1:
                data = data[: rng.randrange(len(data) + 1)]
            case 2:
                data += rng.randbytes(rng.randrange(1, 9))
            case _:
                for _ in range(rng.randrange(1, 6)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = decoded(encoding, bytes(data), shape, F4)
        except CodingError:
            outcomes["error"] += 1
        else:
            assert found.shape == shape and found.dtype == F4
            outcomes["array"] += 1
    assert outcomes["error"] > 300, outcomes


@pytest.mark.parametrize("name", FIXED)
def test_a_frame_of_another_length_is_refused_before_anything_is_made_of_it(name: str) -> None:
    with pytest.raises(CodingError, match=r"bytes of .* for its shape, but 8 came"):
        decoded(made(name), bytes(8), (1 << 30, 1 << 10), F4)


def test_positions_must_ascend_and_stay_inside() -> None:
    encoding = made("topk:2")
    for positions in ([3, 3], [2, 1], [1, 5]):
        data = np.zeros(2, np.float32).tobytes() + bytes(positions)
        with pytest.raises(CodingError, match="not ascending numbers below 5"):
            encoding.decode(data, (1, 5), F4)


@needs_zstd
def test_a_bomb_is_refused_by_what_it_announces() -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    assert len(bomb) < 1 << 15
    with pytest.raises(CodingError, match="needs 80 bytes for its shape, its zstd frame holds 268,435,456"):
        decoded(made("zstd"), bomb, (2, 10), F4)
    silent = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    endless = silent.compress(bytes(1 << 20)) + silent.flush()
    with pytest.raises(CodingError, match="needs 80 bytes"):
        decoded(made("zstd"), endless, (2, 10), F4)
    with pytest.raises(CodingError, match="is no zstd frame"):
        decoded(made("zstd"), zstandard.ZstdCompressor().compress(bytes(80)) + b"more", (2, 10), F4)


# --------------------------------------------------------------------------------------------- what may be chosen

UP = {
    "prototypes": Field(Payload.PROTOTYPES, "n K"),
    "class_ids": class_ids("n"),
    "counts": Field(Payload.COUNTS, "n", "int32"),
    "margins": Field(Payload.MARGINS, "n"),
    "pixels": Field(Payload.IMAGES, "n w", "uint8"),
    "weights": Field(Payload.PARAMETERS, "rows columns"),
}
CONTRACT = Contract(up=UP, down={"prototypes": Field(Payload.PROTOTYPES, "C K")})


def choose(**wire: object) -> encodings.Chosen:
    return encodings.choose(CONTRACT, config.Wire(**wire), "own")


def test_a_setting_means_all_fields_of_its_kind_or_those_of_one_way() -> None:
    def named(chosen: encodings.Chosen) -> dict[str, dict[str, str]]:
        return {way: {n: e.name for n, e in fields.items()} for way, fields in chosen.items() if fields}

    both = {"up": {"prototypes": "int8"}, "down": {"prototypes": "int8"}}
    assert named(choose(prototypes="int8")) == both
    assert named(choose(prototypes="topk:0.02", ways="up")) == {"up": {"prototypes": "topk:0.02"}}
    assert named(choose()) == named(choose(prototypes="plain")) == {}


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        ({"index": "int8"}, "wire.index = 'int8' would break own: numbers of classes or samples and counts must"),
        ({"counts": "float16"}, "counts must arrive as they are \\(field 'counts', int32\\)"),
        ({"images": "bfloat16"}, "uint8 is no type that it can shorten"),
        ({"margins": "topk"}, "an array of the shape \\(n\\) has no rows of which it could keep a part"),
        ({"parameters": "topk"}, "weights do not survive that most of them arrive as zeros"),
        ({"logits": "int8"}, "wire.logits = 'int8' has no effect: own sends no logits; it sends counts, images"),
        ({"margins": "int8", "ways": "down"}, "own sends no margins down; it sends prototypes down"),
        ({"ways": "up"}, "wire.ways = 'up' has no effect without an encoding"),
        ({"error_feedback": True}, "wire.error_feedback has no effect: nothing that clients send up"),
        ({"prototypes": "int8", "ways": "down", "error_feedback": True}, "wire.error_feedback has no effect"),
    ],
)
def test_what_would_break_a_method_or_change_nothing_is_refused(wire: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        choose(**wire)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int4", "there is no encoding 'int4'; did you mean int8"),
        ("", "there is no encoding ''; known: bfloat16, float16, int8, plain, topk, zstd"),
        ("int8+float16", "float16 cannot work on what int8 makes; only zstd goes on top"),
        ("int8:3", "the encoding int8 takes no number"),
        ("topk:0", "topk:0 is not valid: give the share of a row"),
        ("topk:nan", "topk:nan is not valid"),
        ("topk:1.5", "topk:1.5 is not valid"),
        ("topk:many", "topk:many is not valid"),
    ],
)
def test_bad_settings_are_refused_when_the_experiment_is_built(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        config.build([{"wire": {"prototypes": text}}])


@needs_zstd
def test_zstd_goes_on_top_once() -> None:
    with pytest.raises(UserError, match="and once"):
        made("zstd+zstd")
    with pytest.raises(UserError, match="cannot work on what zstd makes"):
        made("zstd+int8")


def test_a_kind_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"there is no option 'wire.protoypes'; did you mean wire.prototypes\?"):
        config.build([{"wire": {"protoypes": "int8"}}])


def test_without_settings_an_experiment_knows_nothing_of_encodings() -> None:
    """What is sent to clients and written to config.toml is what it was before there were any."""
    plain = config.build([])
    assert b"wire" not in config.to_json(plain) and "wire" not in config.to_toml(plain)
    assert config.build([{"wire": {"prototypes": "plain", "ways": "both"}}]) == plain
    coded = config.build([{"wire": {"prototypes": "int8"}}])
    assert config.from_json(config.to_json(coded)) == coded != plain


def test_without_the_package_zstd_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UserError, match=r"needs the package zstandard.*pip install 'fedsim-htfl\[zstd\]'"):
        encodings.make("int8+zstd")


def test_every_encoding_says_what_it_does() -> None:
    described = encodings.described()
    assert set(described) == {"plain", "float16", "bfloat16", "int8", "topk", "zstd"}
    assert all(text.startswith(f"{name}: ") for name, text in described.items())
