"""Operations counted against sums by hand, and FedTGP's tables 8 and 12."""

import pytest

from fedsim.config import Model
from fedsim.models import architecture, flops


def profile(group, shape=(3, 32, 32), num_classes=100, **options):
    return flops.profile_group(Model(group=group, **options), shape, num_classes)[0]


def test_cnn_by_hand():
    multiply_adds = 28 * 28 * 32 * (5 * 5 * 3) + 10 * 10 * 64 * (5 * 5 * 32) + 1600 * 512 + 512 * 100
    found = profile("CNN")
    assert found.forward_flops == 2 * multiply_adds
    assert found.num_parameters == 924_708
    assert (found.backbone_dim, found.feature_dim, found.head) == (512, 512, "512 → 100")


def test_attention_is_counted():
    width, hidden, tokens, layers = 768, 3072, 5, 12  # four patches and the class token
    patches = 4 * width * (16 * 16 * 3)
    per_layer = tokens * (4 * width * width + 2 * width * hidden) + 2 * tokens * tokens * width
    head = 512 * 768 + 768 * 100
    found = profile("ViT-B/16")
    assert found.forward_flops == 2 * (patches + layers * per_layer + head)
    assert found.head == "512 → 768 Tanh → 100"


def test_a_projection_costs_operations_and_parameters_but_pooling_does_not():
    pooled, projected = profile("ResNet50"), profile("ResNet50", feature_mapping="project")
    assert projected.forward_flops - pooled.forward_flops == 2 * 2048 * 512
    assert projected.num_parameters - pooled.num_parameters == 2048 * 512 + 512


def test_table_12_follows_from_table_8_times_four():
    forward = [flops.PUBLISHED_FLOPS[architecture(Model(group="HtFE8"), client)] for client in range(8)]
    assert flops.round_flops(forward, 20, 1) == pytest.approx(24.692e9)
    every_method = flops.round_flops(forward, 20, 4)
    auxiliary = flops.round_flops(forward[:1], 20, 4)
    assert round(every_method / 1e9, 2) == 98.77
    assert round(auxiliary / 1e9, 2) == 1.04
    assert round((every_method + auxiliary) / 1e9, 2) == 99.81
