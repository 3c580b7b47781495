"""Models of texts and signals: sizes worked out by hand, padding that is not seen, cuts, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from fedsim import models
from fedsim.config import Model
from fedsim.data.inputs import InputShape, example_batch
from fedsim.errors import UserError
from fedsim.models import groups
from fedsim.models.flops import profile_group
from fedsim.models.text import reversed_texts, sinusoids

NEWS, HAR, WORDS = InputShape((20,), "tokens", 32_000), InputShape((9, 1, 128), "signal"), InputShape((5000,))
K, V, C = 512, 32_000, 4
TINY = InputShape((7,), "tokens", 20)

HEAD = K * C + C
EMBEDDING = V * K
LSTM_LAYER = 4 * (K * K + K * K + 2 * K)  # four gates, each with weights of input and state and two biases
GRU_LAYER = 3 * (K * K + K * K + 2 * K)
ENCODER_LAYER = (3 * K * K + 3 * K) + (K * K + K) + (2048 * K + 2048) + (K * 2048 + K) + 2 * (2 * K)
TEXT_SIZES = {
    "fastText": EMBEDDING + K * K + K + HEAD,
    "LogisticRegression": EMBEDDING + HEAD,
    "LSTM": EMBEDDING + 2 * LSTM_LAYER + HEAD,
    "BiLSTM": EMBEDDING + 2 * LSTM_LAYER + 2 * K * K + K + HEAD,
    "GRU": EMBEDDING + 2 * GRU_LAYER + HEAD,
    **{
        f"Transformer-{heads}x{layers}": EMBEDDING + layers * ENCODER_LAYER + HEAD
        for heads, layers in [
            *((8, layers) for layers in (1, 2, 4, 8, 16)),
            *((heads, 4) for heads in (1, 2, 4, 16)),
            *((both, both) for both in (1, 2, 16)),
        ]
    },
}
SIX = 6 * 512 + 6
CONV_1, CONV_2 = 9 * 32 * 9 + 32, 32 * 64 * 9 + 64


def connected(dim):
    return dim * 1024 + 1024 + 1024 * 512 + 512 + SIX


# Steps left of 128 by hand: stride 1: 120, 60, 52, 26. Stride 2: 60, 30, 11, 5. Stride 3: 40, 20, 4, 2.
# HARCNN3, stride 1: 124, 62, 58, 29, 25, 12; stride 2: 62, 31, 14, 7, 2, 1.
SENSOR_SIZES = {
    "HARCNN": CONV_1 + CONV_2 + connected(64 * 26),
    "HARCNN-s2": CONV_1 + CONV_2 + connected(64 * 5),
    "HARCNN-s3": CONV_1 + CONV_2 + connected(64 * 2),
    "HARCNN1": CONV_1 + connected(32 * 60),
    "HARCNN1-s2": CONV_1 + connected(32 * 30),
    "HARCNN1-s3": CONV_1 + connected(32 * 20),
    "HARCNN3": (9 * 32 + 32 * 64 + 64 * 128) * 5 + 32 + 64 + 128 + connected(128 * 12),
    "HARCNN3-s2": (9 * 32 + 32 * 64 + 64 * 128) * 5 + 32 + 64 + 128 + connected(128 * 1),
}
TWO = 2 * 512 + 2
MLP_SIZES = {
    "MLP-100": 5000 * 100 + 100 + TWO,
    "MLP-200-100": 5000 * 200 + 200 + 200 * 100 + 100 + TWO,
    "MLP-500-100": 5000 * 500 + 500 + 500 * 100 + 100 + TWO,
    "MLP-1000-500-100": 5000 * 1000 + 1000 + 1000 * 500 + 500 + 500 * 100 + 100 + TWO,
    "MLP-1000-500-200-100": 5000 * 1000 + 1000 + 1000 * 500 + 500 + 500 * 200 + 200 + 200 * 100 + 100 + TWO,
}
TRANSFORMERS = {
    "HtFE-txt-5-1": [(8, 1), (8, 2), (8, 4), (8, 8), (8, 16)],
    "HtFE-txt-5-2": [(1, 4), (2, 4), (4, 4), (8, 4), (16, 4)],
    "HtFE-txt-5-3": [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16)],
}
MEMBERS = {
    "HtFE-txt-2": ["fastText", "LogisticRegression"],
    "HtFE-txt-4": ["fastText", "LogisticRegression", "LSTM", "BiLSTM"],
    **{
        group: [f"Transformer-{heads}x{layers}" for heads, layers in sizes]
        for group, sizes in TRANSFORMERS.items()
    },
    "HtFE-txt-6": ["fastText", "LSTM", "BiLSTM", "Transformer-8x2", "LogisticRegression", "GRU"],
    "HtFE-sen-2": ["HARCNN", "HARCNN-s2"],
    "HtFE-sen-3": ["HARCNN", "HARCNN-s2", "HARCNN-s3"],
    "HtFE-sen-5": ["HARCNN", "HARCNN-s2", "HARCNN-s3", "HARCNN1", "HARCNN3"],
    "HtFE-sen-8": list(SENSOR_SIZES),
    "MLPs": ["MLP-100", "MLP-500-100", "MLP-1000-500-100", "MLP-1000-500-200-100"],
    "MLP_1layer": ["MLP-200-100", "MLP-500-100"],
    "MLP_layers": ["MLP-500-100", "MLP-1000-500-100", "MLP-1000-500-200-100"],
}


@pytest.mark.parametrize("group", MEMBERS)
def test_parameters_of_all_groups_are_the_sums_worked_out_by_hand(group):
    shape, classes, sizes = next(
        task
        for prefix, task in {
            "HtFE-txt": (NEWS, C, TEXT_SIZES), "HtFE-sen": (HAR, 6, SENSOR_SIZES), "MLP": (WORDS, 2, MLP_SIZES)
        }.items()
        if group.startswith(prefix)
    )  # fmt: skip
    found = profile_group(Model(group=group), shape, classes)
    assert {profile.name: profile.num_parameters for profile in found} == {
        name: sizes[name] for name in MEMBERS[group]
    }
    assert [profile.name for profile in found] == MEMBERS[group]
    assert all(profile.forward_flops for profile in found)


def test_the_five_image_networks_and_the_names_that_others_know():
    five = [entry.name for entry in groups.entries("HtFE-img-5")]
    assert five == ["GoogLeNet", "MobileNetV2", "ResNet18", "ResNet34", "ResNet50"]
    for name in ("2", "3", "4", "8", "9", "8-HtC4"):
        assert groups.entries(f"HtFE-img-{name}") == groups.entries(f"HtFE{name}")


def build(name, shape=TINY, classes=3, **options):
    torch.manual_seed(0)
    return models.build(Model(group=name, **{"feature_dim": 8, **options}), 0, shape, classes)


TEXTS = torch.tensor([[2, 5, 9, 4, 0, 0, 0], [2, 7, 3, 3, 11, 6, 5], [2, 8, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("name", ["fastText", "LogisticRegression", "LSTM", "BiLSTM", "GRU", "Transformer-2x2"])
def test_what_stands_behind_the_end_of_a_text_is_not_seen(name):
    model = build(name).eval()
    together = model.features(TEXTS)
    for row, text in enumerate(TEXTS):
        alone = model.features(text[text != 0][None])
        torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_last_state_is_that_of_packed_texts(kind):
    model = build(kind.__name__).eval()
    part = model.extractor[0]
    packed = pack_padded_sequence(
        part.embedding(TEXTS), torch.tensor([4, 7, 2]), batch_first=True, enforce_sorted=False
    )
    hidden = part.layers(packed)[1]
    last = hidden[0][-1] if kind is nn.LSTM else hidden[-1]
    torch.testing.assert_close(model.features(TEXTS), last.relu() if kind is nn.LSTM else last)


def test_both_ways_is_what_a_bidirectional_lstm_makes_of_packed_texts():
    part = build("BiLSTM").eval().extractor[0]
    both = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
    for name, weight in part.forwards.named_parameters():
        getattr(both, name).data.copy_(weight)
        getattr(both, f"{name}_reverse").data.copy_(getattr(part.backwards, name))
    packed = pack_padded_sequence(
        part.embedding(TEXTS), torch.tensor([4, 7, 2]), batch_first=True, enforce_sorted=False
    )
    hidden = both(packed)[1][0]
    torch.testing.assert_close(part(TEXTS), part.join(torch.cat([hidden[0], hidden[1]], dim=1)))
    assert reversed_texts(TEXTS)[0].tolist() == [4, 9, 5, 2, 0, 0, 0]


def test_positions_are_sines_and_cosines():
    table = sinusoids(5, 4)
    steps = torch.arange(5.0)
    expected = torch.stack([steps.sin(), steps.cos(), (steps / 100).sin(), (steps / 100).cos()], dim=1)
    torch.testing.assert_close(table, expected)


def test_the_published_cut_of_texts_ends_in_a_log_softmax():
    for name, is_cut in {"fastText": 1, "LogisticRegression": 1, "LSTM": 1, "GRU": 1, "BiLSTM": 0}.items():
        right, published = (
            build(name, feature_cut=cut).eval().features(TEXTS) for cut in ("corrected", "published")
        )
        torch.testing.assert_close(published, right.log_softmax(dim=1) if is_cut else right)


def test_the_published_cut_of_signals_leaves_the_connected_layers_out():
    model = build("HARCNN", HAR, 6, feature_dim=512, feature_cut="published")
    convolutions = sum(parameter.numel() for parameter in model.extractor.parameters())
    assert convolutions == CONV_1 + CONV_2
    assert (model.backbone_dim, model.features(example_batch(2, HAR)).shape) == (1664, (2, 512))


def test_signals_of_one_sensor_may_be_flat_and_several_are_strided():
    flat = build("HARCNN1", InputShape((4, 40)), 3, feature_dim=512)
    deep = build("HARCNN1", InputShape((4, 1, 40), "signal"), 3, feature_dim=512)
    batch = torch.randn(2, 4, 40)
    torch.testing.assert_close(flat.features(batch), deep.features(batch[:, :, None]))
    # PAMAP2: rows 3, 2, 1 and steps 256: 248, 124, 116, 58.
    assert (
        build("HARCNN", InputShape((9, 3, 256), "signal"), 12, feature_dim=512).extractor[0][8].in_features
        == 64 * 58
    )


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("CNN", NEWS, "takes images, but a sample of this dataset is 20 tokens; use model.group = HtFE-txt-4."),
        ("ResNet18", HAR, "a sample of this dataset is signals of 9x1x128; use model.group = HtFE-sen-2."),
        ("CNN", (2,), "a sample of this dataset is 2 numbers; use model.group = MLP, or, if they are pixels"),
        ("LSTM", (3, 32, 32), "LSTM takes texts, but a sample of this dataset is images of 3x32x32; use"),
        ("HARCNN", NEWS, "model HARCNN takes signals, but a sample of this dataset is 20 tokens"),
        ("HARCNN", (1, 28, 28), "a sample of this dataset is images of 1x28x28; use model.group = HtCNN8."),
        ("MLP", NEWS, "model MLP takes numbers, but a sample of this dataset is 20 tokens"),
        ("MLP-100", NEWS, "takes numbers"),
        ("timm:resnet18", NEWS, "takes images"),
        ("hf:./nowhere", HAR, "takes texts"),
        ("hf:./nowhere", NEWS, "names no Hugging Face folder"),
        ("HARCNN", InputShape((9, 1, 20), "signal"), "takes signals of at least 28 steps, not 20"),
        ("Transformer-8x2", TINY, None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(name, shape, message):
    if message is None:
        with pytest.raises(
            UserError, match=r"has 8 heads, which must divide its 12 features; set model.feature_dim"
        ):
            build(name, shape, feature_dim=12)
        return
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        build(name, shape)


def test_own_models_are_told_the_vocabulary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["import torch.nn as nn", "class Net(nn.Module):"]
    source = [
        "    def __init__(self, vocabulary, num_classes):",
        "        super().__init__()",
        "        self.embedding, self.out = nn.Embedding(vocabulary, 6), nn.Linear(6, num_classes)",
        "    def forward(self, tokens):",
        "        return self.out(self.embedding(tokens).mean(dim=1))",
    ]
    (tmp_path / "nets.py").write_text("\n".join([*lines, *source]) + "\n")
    model = build("./nets.py:Net", feature_dim=6)
    assert model(TEXTS).shape == (3, 3)
