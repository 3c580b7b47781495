"""Snapshots are read without running them: what is refused, with which sentence, and that nothing happened."""

import copyreg
import functools
import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import stylegan_snapshots as snapshots
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stylegan_snapshots import Call, Network

from fedsim.errors import UserError
from fedsim.generators import load

MARK = "RAN"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path_factory, monkeypatch):
    """A hostile file below makes a folder when it is run; nothing may be there afterwards."""
    folder = tmp_path_factory.mktemp("empty")
    monkeypatch.chdir(folder)
    yield
    assert not list(folder.iterdir())


def refusal(path) -> str:
    """Why a file is refused: the part of the sentence that differs from file to file."""
    with pytest.raises(UserError) as caught:
        load(path)
    sentence = str(caught.value)
    beginning, end = f"{path} is not a StyleGAN snapshot that can be used: ", "; nothing in it was run."
    assert sentence.startswith(beginning) and sentence.endswith(end), sentence
    return sentence.removeprefix(beginning).removesuffix(end)


def raw(tmp_path, content: bytes):
    path = tmp_path / "file.pkl"
    path.write_bytes(content)
    return path


class Hostile:
    """What a plain unpickler would run."""

    def __reduce__(self):
        return os.mkdir, (MARK,)


def test_the_hostile_object_is_one(tmp_path):
    """Otherwise the tests below would show nothing."""
    pickle.loads(pickle.dumps(Hostile()))
    assert Path(MARK).is_dir()
    Path(MARK).rmdir()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_gives_the_same_network(tmp_path, protocol):
    network = snapshots.stylegan3(num_labels=3, family="xl")
    one = load(snapshots.write(tmp_path / "one.pkl", network, 4))
    other = load(snapshots.write(tmp_path / "other.pkl", network, protocol))
    latents = one.draw(2, torch.Generator().manual_seed(0))
    assert torch.equal(latents, other.draw(2, torch.Generator().manual_seed(0)))
    assert torch.equal(one.images(latents), other.images(latents))


def test_strides_and_offsets_of_weights_are_honoured(tmp_path):
    network = snapshots.stylegan3()
    expected = load(snapshots.write(tmp_path / "plain.pkl", network))
    weight = network["synthesis.L0.weight"].data
    # The same numbers, channels last, at the end of a longer storage.
    storage = torch.zeros(7 + weight.numel())
    view = storage[7:].as_strided(weight.shape, (36, 1, 12, 4))
    view.copy_(weight)
    network["synthesis.L0"].state["_parameters"]["weight"] = view
    found = load(snapshots.write(tmp_path / "strided.pkl", network))
    assert torch.equal(found.synthesis.layers[0].weight_OIkk, expected.synthesis.layers[0].weight_OIkk)


def test_foreign_parts_of_the_discriminator_are_stepped_over(tmp_path):
    discriminator = Network(
        "ProjectedDiscriminator",
        modules={"model": Call("timm.models.efficientnet", "EfficientNet", 1, {"a": 2})},
        forward=Call("dill._dill", "_create_function", Call("dill._dill", "_create_code", b"code")),
        names=Call("dill._dill", "_get_attr", Call("dill._dill", "_import_module", "torch.nn"), "x"),
        attribute=Call("dill._dill", "_get_attr", Call("timm.layers", "Act"), "forward"),
        builtin=Call("__builtin__", "__dict__"),
        partial=functools.partial(torch.nn.functional.relu, 1),
        dtype=torch.float32,
    )
    generator = load(snapshots.write(tmp_path / "with_d.pkl", snapshots.stylegan3(), D=discriminator))
    assert generator.image_shape == (3, 8, 8)


def test_weights_outside_the_generator_are_not_decoded(tmp_path):
    discriminator = Network("Discriminator", weight=Call("torch.storage", "_load_from_bytes", b"no storage"))
    generator = load(snapshots.write(tmp_path / "file.pkl", snapshots.stylegan3(), D=discriminator))
    assert generator.image_shape == (3, 8, 8)


@pytest.mark.parametrize("place", ["G_ema", "D"])
def test_foreign_calls_are_refused(tmp_path, place):
    generator, others = snapshots.stylegan3(), {}
    if place == "D":
        others["D"] = Hostile()
    else:
        generator.state["extra"] = Hostile()
    path = snapshots.write(tmp_path / "file.pkl", generator, **others)
    assert f"{os.mkdir.__module__}.mkdir" in refusal(path)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("__builtin__", "exec"),
        ("os", "system"),
        ("subprocess", "Popen"),
        ("pickle", "loads"),
        ("numpyx", "array"),
    ],
)
def test_names_outside_networks_are_refused(tmp_path, module, name):
    generator = snapshots.stylegan3()
    generator.state["extra"] = Call(module, name, f"__import__('os').mkdir('{MARK}')")
    assert f"{module}.{name}" in refusal(snapshots.write(tmp_path / "file.pkl", generator))


@pytest.mark.parametrize(
    "call",
    [
        Call("torch.serialization", "os.mkdir", MARK),
        Call("numpy.testing._private.utils", "runstring", f"import os; os.mkdir('{MARK}')", {}),
        Call("torch", "load", "anything"),
        Call("functools", "partial", os.mkdir.__name__),
    ],
)
def test_names_of_known_packages_do_nothing_and_are_refused_in_the_generator(tmp_path, call):
    generator = snapshots.stylegan3()
    generator["mapping"].state["extra"] = call
    reason = refusal(snapshots.write(tmp_path / "file.pkl", generator))
    assert ".".join(call.function) in reason and "does not know" in reason


def test_dill_cannot_fetch_a_function(tmp_path):
    generator = snapshots.stylegan3()
    function = Call("dill._dill", "_get_attr", Call("dill._dill", "_import_module", "os"), "mkdir")
    generator.state["extra"] = function
    assert "os.mkdir" in refusal(snapshots.write(tmp_path / "file.pkl", generator))


def legacy_storage(count: int, data: bytes, description: object = None) -> bytes:
    """`torch.save` of one storage before zip archives, by hand."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            return thing[1:] if isinstance(thing, tuple) and thing[:1] == ("persistent",) else None

    file = io.BytesIO()
    description = description or ("persistent", "storage", torch.FloatStorage, "key", "cuda:0", count, None)
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, description, ["key"]):
        Pickler(file, 2).dump(part)
    return file.getvalue() + struct.pack("<q", count) + data


def with_bias(content: bytes) -> Network:
    """A generator in which one bias of three numbers is rebuilt from these bytes."""
    generator = snapshots.stylegan3()
    storage = Call("torch.storage", "_load_from_bytes", content)
    tensor = Call("torch._utils", "_rebuild_tensor_v2", storage, 0, (3,), (1,), False, {})
    generator["synthesis.L2"].state["_parameters"]["bias"] = tensor
    return generator


def test_a_storage_written_by_hand_is_read(tmp_path):
    content = legacy_storage(3, np.array([1, 2, 3], "<f4").tobytes())
    generator = load(snapshots.write(tmp_path / "file.pkl", with_bias(content)))
    assert generator.synthesis.layers[2].bias_O.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps(Hostile(), 2), "mkdir"),
        (legacy_storage(3, bytes(12), Hostile()), "mkdir"),
        (legacy_storage(3, bytes(11)), "11 bytes for 3 numbers"),
        (legacy_storage(2, bytes(8)), "needs 3 numbers but its data have 2"),
        (legacy_storage(3, bytes(12))[:-40], "damaged"),
        (legacy_storage(3, np.array([1, np.inf, 0], "<f4").tobytes()), "infinite"),
        (pickle.dumps(1, 2) * 5, "unknown layout"),
        (b"", "damaged"),
    ],
)
def test_bytes_that_are_no_weights_are_refused(tmp_path, content, words):
    reason = refusal(snapshots.write(tmp_path / "file.pkl", with_bias(content)))
    assert "G_ema.synthesis.L2.bias" in reason and words in reason


def test_a_snapshot_cannot_change_the_reader(tmp_path):
    """BUILD writes attributes on whatever it is given; the stand-ins must not keep any."""
    for name in ("_reconstruct_persistent_obj", "_rebuild_tensor_v2"):
        module = "torch_utils.persistence" if name.startswith("_reconstruct") else "torch._utils"
        poison = b"\x80\x04" + f"c{module}\n{name}\n".encode() + b"N}\x8c\x05_callN\x8c\x08__call__Nu\x86b."
        assert refusal(raw(tmp_path, poison))
    for name in ("numpy\nndarray", "collections\nOrderedDict", "torch.nn.modules.sparse\nEmbedding"):
        assert refusal(raw(tmp_path, b"\x80\x04c" + name.encode() + b"\nN}\x8c\x08__init__Ns\x86b."))
    assert load(snapshots.write(tmp_path / "good.pkl", snapshots.stylegan3())).latent_dim == snapshots.W_DIM


def test_the_state_of_a_tensor_cannot_be_written_afterwards(tmp_path):
    """A size that was not checked could reach memory outside of the weights."""
    content = legacy_storage(3, np.array([1, 2, 3], "<f4").tobytes())
    generator = with_bias(content)
    tensor = generator["synthesis.L2"].state["_parameters"]["bias"]
    tensor.state = [None, -5, (3,), (1,)]
    loaded = load(snapshots.write(tmp_path / "file.pkl", generator))
    assert loaded.synthesis.layers[2].bias_O.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x80\x04", "its 2 bytes are damaged or incomplete"),
        (b"no pickle at all", "damaged"),
        (pickle.dumps([1]), "it holds a list"),
        (pickle.dumps({"G": 1, "D": 2}), "no G_ema, only ['G', 'D']"),
        (pickle.dumps({"G_ema": 1}), "its G_ema is a int"),
        (snapshots.dumps((Call("dnnlib.tflib.network", "Network"),) * 3), "a TensorFlow snapshot"),
    ],
)
def test_other_files_are_refused_with_a_reason(tmp_path, content, words):
    assert words in refusal(raw(tmp_path, content))


def test_another_version_of_the_format_is_refused(tmp_path):
    generator = snapshots.stylegan3()
    generator.version = 7
    reason = refusal(snapshots.write(tmp_path / "file.pkl", generator))
    assert "version 7" in reason and "only 6 is known" in reason


def test_an_unknown_structure_is_named(tmp_path):
    generator = Network("FastGAN", modules={"init": Network("InitLayer"), "main": Network("Main")})
    assert "a FastGAN made of init, main" in refusal(snapshots.write(tmp_path / "file.pkl", generator))
    generator = snapshots.stylegan3()
    generator.state["_modules"]["synthesis"] = Network("Decoder", modules={"up": Network("Up")})
    assert "a Decoder made of up" in refusal(snapshots.write(tmp_path / "file.pkl", generator))


@pytest.mark.parametrize(
    ("path", "name", "value", "words"),
    [
        ("synthesis.L0", "in_channels", 9, "G_ema.synthesis.L0.in_channels is 9 where 4 belongs"),
        ("synthesis.L0", "conv_kernel", 2, "L0.weight has the shape (5, 4, 3, 3) where (5, 4, 2, 2) belongs"),
        ("synthesis.L0", "padding", [1, 2, 3], "L0.padding is [1, 2, 3] where 4 whole numbers"),
        ("synthesis.L0", "padding", [9, 8, 9, 6], "L0.out_size is [14, 14] where [14, 13] belongs"),
        ("synthesis.L1", "up_factor", "4", "L1.up_factor is '4' where a whole number"),
        ("synthesis.L1", "conv_clamp", float("nan"), "L1.conv_clamp is nan"),
        ("synthesis", "layer_names", ["L0", "L7"], "G_ema.synthesis (SynthesisNetwork) has no L7"),
        ("synthesis", "output_scale", True, "output_scale is True where a number"),
        ("synthesis.input", "size", [14, 10**9], "size is [14, 1000000000]"),
        ("mapping", "num_ws", 5, "G_ema.mapping.num_ws is 5 where 4 belongs"),
        ("mapping", "num_layers", 3, "G_ema.mapping (MappingNetwork) has no fc2"),
        ("mapping.fc0", "activation", "gelu", "G_ema.mapping.fc0.activation is 'gelu'"),
        ("mapping", "_buffers", 3, "G_ema.mapping._buffers is a int where a dictionary belongs"),
    ],
)
def test_parts_that_do_not_fit_are_named(tmp_path, path, name, value, words):
    generator = snapshots.stylegan3()
    generator[path].state[name] = value
    assert words in refusal(snapshots.write(tmp_path / "file.pkl", generator))


def test_only_the_skip_architecture_of_stylegan2_is_known(tmp_path):
    generator = snapshots.stylegan2()
    generator["synthesis.b8"].state["architecture"] = "resnet"
    reason = refusal(snapshots.write(tmp_path / "file.pkl", generator))
    assert "G_ema.synthesis.b8" in reason and "'resnet'" in reason


def test_a_damaged_index_does_not_fill_the_memory(tmp_path):
    """LONG_BINPUT of 2³² − 2: the unpickler in C would make a table of 64 GiB. BYTEARRAY8 of as many bytes."""
    assert "it holds a list" in refusal(raw(tmp_path, b"\x80\x04]r\xfe\xff\xff\xff."))
    assert "damaged" in refusal(raw(tmp_path, b"\x80\x05\x96" + struct.pack("<Q", 2**36) + b"short"))


def test_registered_names_are_refused(tmp_path):
    """EXT1 looks its number up in a table of the process, not by name."""
    copyreg.add_extension("os", "mkdir", 200)
    try:
        assert "under 200" in refusal(raw(tmp_path, b"\x80\x04\x82\xc8\x8c\x03" + MARK.encode() + b"\x85R."))
    finally:
        copyreg.remove_extension("os", "mkdir", 200)


def test_an_endless_text_is_cut(tmp_path):
    """Each of forty lists holds the one before it twice."""
    nested = []
    for _ in range(40):
        nested = [nested, nested]
    generator = snapshots.stylegan3()
    generator["synthesis"].state["output_scale"] = nested
    assert "G_ema.synthesis.output_scale is [[" in refusal(snapshots.write(tmp_path / "file.pkl", generator))


FAMILIES = {"stylegan2": snapshots.stylegan2, "stylegan3": snapshots.stylegan3}
GOOD = {name: snapshots.dumps({"D": None, "G_ema": make()}) for name, make in FAMILIES.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_load_or_are_refused(tmp_path, data):
    """Cut off anywhere, or with a few bytes changed: a generator or a sentence, never another exception."""
    content = bytearray(GOOD[data.draw(st.sampled_from(sorted(GOOD)))])
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        generator = load(raw(tmp_path, bytes(content)))
    except UserError as error:
        assert "file.pkl is not a StyleGAN snapshot" in str(error)
    else:
        assert generator.latent_dim == snapshots.W_DIM
