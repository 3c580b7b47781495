"""Names, who gets what, how features become K, and the heads of HtC4."""

import math

import pytest
import torch
from torch import nn

from fedsim import models
from fedsim.config import Model
from fedsim.errors import UnknownName, UserError

RESNETS = ["ResNet18", "ResNet34", "ResNet50", "ResNet101", "ResNet152"]
HTFE8 = ["CNN", "GoogLeNet", "MobileNetV2", *RESNETS]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("HtFE2", ["CNN", "ResNet18"]),
        ("HtFE3", ["ResNet10", "ResNet18", "ResNet34"]),
        ("HtFE4", ["CNN", "GoogLeNet", "MobileNetV2", "ResNet18"]),
        ("HtFE8", HTFE8),
        ("HtFE9", ["ResNet4", "ResNet6", "ResNet8", "ResNet10", *RESNETS]),
        ("HtM10", [*HTFE8, "ViT-B/16", "ViT-B/32"]),
        ("HtCNN8", [f"CNN{number}" for number in range(1, 9)]),
        ("Ht0", ["ResNet8", "MobileNetV2", "ShuffleNetV2", "EfficientNetB0"]),
        ("FedProtoKD", RESNETS),
        ("ResNet34", ["ResNet34"]),
        ("CNN2", ["CNN2"]),
        (" cnn , resnet_18,HTFE2", ["CNN", "ResNet18", "CNN", "ResNet18"]),
        ("vit_b_16", ["ViT-B/16"]),
    ],
)
def test_client_i_gets_entry_i_mod_x(group, expected):
    config = Model(group=group)
    for client in range(2 * len(expected) + 1):
        assert models.architecture(config, client) == expected[client % len(expected)]


@pytest.mark.parametrize("spelling", ["htcnn8", "HTCNN8", "HtCNN8"])
def test_case_does_not_matter(spelling):
    assert models.architecture(Model(group=spelling), 1) == "CNN2"


def test_an_architecture_is_itself_a_group():
    for group in models.group_names():
        name = models.architecture(Model(group=group), 3)
        assert models.architecture(Model(group=name), 0) == name


def test_htfe8_htc4_pairs_extractor_i_mod_8_with_head_i_mod_4():
    heads = ["", ":512", ":256", ":128"]
    for client in range(20):
        assert models.architecture(Model(group="HtFE8-HtC4"), client) == HTFE8[client % 8] + heads[client % 4]


@pytest.mark.parametrize("bad", ["HtFE7", "", "CNN,NoSuchNet", "CNN9", "CNN,"])
def test_unknown_names_are_refused(bad):
    with pytest.raises(UnknownName, match="there is no model group"):
        models.architecture(Model(group=bad), 0)


@pytest.mark.parametrize("bad", ["CNN:wide", "CNN:0", "CNN:-3", "HtFE8:256"])
def test_heads_that_make_no_sense_are_refused(bad):
    with pytest.raises(UserError, match=bad):
        models.architecture(Model(group=bad), 0)


def head_layers(client, **options):
    with torch.device("meta"):
        head = models.build(Model(group="Res34-HtC4", **options), client, (3, 32, 32), 100).head
    layers = [head] if isinstance(head, nn.Linear) else list(head)
    return [layer.out_features if isinstance(layer, nn.Linear) else type(layer).__name__ for layer in layers]


def test_htc4_heads():
    heads = [head_layers(client) for client in range(4)]
    assert heads == [[100], [512, "ReLU", 100], [256, "ReLU", 100], [128, "ReLU", 100]]


def test_htc4_heads_as_published_cut_negative_logits():
    assert head_layers(0, relu_logits=True) == [100, "ReLU"]
    assert head_layers(2, relu_logits=True) == [256, "ReLU", 100, "ReLU"]
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    logits = {
        relu: models.build(Model(group="CNN:16", relu_logits=relu), 0, (3, 32, 32), 10)(images)
        for relu in (False, True)
    }
    assert logits[False].min() < 0
    assert logits[True].min() == 0


@pytest.mark.parametrize(
    ("name", "backbone_dim", "feature_dim"),
    [
        ("CNN", 512, 512),  # the identity
        ("CNN", 512, 64),  # eight values per bin
        ("ResNet4", 64, 512),  # values repeat
        ("MobileNetV2", 1280, 512),  # bins overlap
        ("CNN", 512, 100),
    ],
)
def test_pooled_features_are_means_over_bins(name, backbone_dim, feature_dim):
    torch.manual_seed(0)
    model = models.build(Model(group=name, feature_dim=feature_dim), 0, (3, 32, 32), 10).eval()
    images = torch.randn(2, 3, 32, 32)
    raw_BD = model.extractor[0](images)
    assert raw_BD.shape == (2, backbone_dim)
    bins = [
        slice(column * backbone_dim // feature_dim, math.ceil((column + 1) * backbone_dim / feature_dim))
        for column in range(feature_dim)
    ]
    by_hand_BK = torch.stack([raw_BD[:, bin].mean(dim=1) for bin in bins], dim=1)
    torch.testing.assert_close(model.features(images), by_hand_BK)
    assert not list(model.extractor[1].parameters())


@pytest.mark.parametrize(
    ("group", "feature_mapping", "projects"),
    [
        ("FedProtoKD", "published", True),
        ("FedProtoKD", "pool", False),
        ("HtFE9", "published", False),
        ("HtFE9", "project", True),
        ("FedProtoKD,CNN", "published", True),
    ],
)
def test_projection_is_learnt_for_every_size(group, feature_mapping, projects):
    config = Model(group=group, feature_mapping=feature_mapping)
    for client in (0, 2):
        with torch.device("meta"):
            model = models.build(config, client, (3, 32, 32), 10)
        shapes = [tuple(weight.shape) for weight in model.extractor[1].parameters()]
        assert shapes == ([(512, model.backbone_dim), (512,)] if projects else [])
