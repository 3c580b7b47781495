"""Every model at every supported size: exact parameter counts, shapes, heads, stems, and what is left out."""

import subprocess
import sys
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsim import models
from fedsim.compat import import_torchvision
from fedsim.config import Model
from fedsim.errors import UserError
from fedsim.models import groups, sensors, text
from fedsim.seeds import Streams

IMAGES = [(1, 28, 28), (3, 32, 32), (3, 64, 64)]
VITS = {"ViT-B/16", "ViT-B/32"}


@cache
def meta_model(group, shape=(3, 32, 32), num_classes=10, client=0, **options):
    """Shapes without memory or arithmetic, so that the largest models cost milliseconds; batch statistics and
    gradients would double that."""
    with torch.device("meta"):
        return models.build(Model(group=group, **options), client, shape, num_classes).eval()


def num_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_of_the_four_layer_cnn_on_cifar100():
    assert num_parameters(meta_model("CNN", (3, 32, 32), 100)) == 924_708


def test_parameters_of_htcnn8():
    found = [num_parameters(meta_model("HtCNN8", (1, 28, 28), 10, client)) for client in range(8)]
    assert found == [2_365_770, 582_026, 2_628_426, 844_682, 5_250_378, 1_631_626, 5_513_034, 1_894_282]


@pytest.mark.parametrize(
    ("name", "imagenet_parameters", "classifier_inputs"),
    [
        # torchvision's documented counts with 1000 classes; GoogLeNet's without its auxiliary classifiers.
        ("ResNet18", 11_689_512, 512),
        ("ResNet34", 21_797_672, 512),
        ("ResNet50", 25_557_032, 2048),
        ("ResNet101", 44_549_160, 2048),
        ("ResNet152", 60_192_808, 2048),
        ("GoogLeNet", 6_624_904, 1024),
        ("MobileNetV2", 3_504_872, 1280),
        ("ShuffleNetV2", 2_278_604, 1024),
        ("EfficientNetB0", 5_288_548, 1280),
    ],
)
def test_the_classifier_is_all_that_torchvision_models_lose(name, imagenet_parameters, classifier_inputs):
    model = meta_model(name)
    assert num_parameters(model.extractor) == imagenet_parameters - 1000 * (classifier_inputs + 1)
    assert model.backbone_dim == classifier_inputs


@torch.no_grad()
def check_shapes(model, shape):
    raw = model.extractor[0](torch.empty(2, *shape, device="meta"))
    assert raw.shape == (2, model.backbone_dim)
    features = model.extractor[1](raw)
    assert features.shape == (2, model.feature_dim) == (2, 512)
    assert model.head(features).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name in sorted(groups.MODELS.keys() - text.MODELS.keys() - sensors.MODELS.keys())
        for shape in IMAGES
        if not (name in VITS and shape[1] == 28)
    ],
)
def test_features_and_logits_have_the_agreed_shapes(name, shape):
    model = meta_model(name, shape, num_classes=7)
    assert model.name == name
    check_shapes(model, shape)


@pytest.mark.parametrize("shape", IMAGES[:2])
@pytest.mark.parametrize(
    "name", ["ResNet8", "ResNet18", "GoogLeNet", "MobileNetV2", "ShuffleNetV2", "EfficientNetB0"]
)
def test_shapes_are_the_same_with_another_stem(name, shape):
    check_shapes(meta_model(name, shape, num_classes=7, cifar_stem=True), shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("CNN", (1, 28, 28)),
        ("CNN", (3, 32, 32)),
        ("MLP", (3, 32, 32)),
        ("ResNet8", (1, 28, 28)),
        ("MobileNetV2", (1, 28, 28)),
        ("ResNet18", (3, 32, 32)),
    ],
)
def test_models_train_on_real_numbers(name, shape):
    torch.manual_seed(0)
    model = models.build(Model(group=name, feature_dim=48), 0, shape, 5)
    functional.cross_entropy(model(torch.randn(4, *shape)), torch.tensor([0, 1, 2, 4])).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.is_contiguous()  # methods may flatten parameters whatever the layout of activations


def test_logits_are_the_head_of_the_features():
    torch.manual_seed(0)
    model = models.build(Model(group="ResNet4"), 0, (1, 28, 28), 5).eval()
    images = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(model(images), model.head(model.features(images)), rtol=0, atol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_cnn_is_convolution_relu_pooling_by_the_book(channels):
    torch.manual_seed(0)
    model = models.build(Model(group="CNN4"), 0, (channels, 28, 28), 10)
    weights = list(model.parameters())
    hand_weights = [weight.detach().clone().requires_grad_() for weight in weights]
    images, labels = torch.randn(6, channels, 28, 28), torch.arange(6)

    maps = images
    for weight, bias in zip(hand_weights[0:4:2], hand_weights[1:4:2], strict=True):
        maps = functional.max_pool2d(functional.relu(functional.conv2d(maps, weight, bias)), 2)
    hidden = maps.flatten(1)
    for weight, bias in zip(hand_weights[4:8:2], hand_weights[5:8:2], strict=True):
        hidden = functional.relu(functional.linear(hidden, weight, bias))
    logits = functional.linear(hidden, *hand_weights[8:])
    functional.cross_entropy(logits, labels).backward()
    functional.cross_entropy(model(images), labels).backward()

    torch.testing.assert_close(model(images), logits)
    for weight, hand_weight in zip(weights, hand_weights, strict=True):
        torch.testing.assert_close(weight.grad, hand_weight.grad, rtol=1e-4, atol=1e-6)


def test_mlp_is_five_layers_and_keeps_negative_features():
    torch.manual_seed(0)
    model = models.build(Model(group="MLP", feature_dim=2), 0, (2,), 6)
    shapes = [tuple(weight.shape) for weight in model.parameters() if weight.dim() == 2]
    assert shapes == [(64, 2), (64, 64), (64, 64), (64, 64), (2, 64), (6, 2)]
    features = model.features(torch.randn(500, 2) * 10)
    assert features.shape == (500, 2)
    assert (features < 0).any()


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_small_resnets_compute_what_torchvision_would(num_stages):
    resnet = import_torchvision().models.resnet
    torch.manual_seed(0)
    ours = models.build(Model(group=f"ResNet{2 + 2 * num_stages}"), 0, (3, 32, 32), 10).extractor[0]
    theirs = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1])
    for stage in range(num_stages + 1, 5):
        setattr(theirs, f"layer{stage}", nn.Identity())
    theirs.fc = nn.Identity()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images))


def test_what_stays_of_each_classifier():
    def dropouts(name):
        return [layer.p for layer in meta_model(name).modules() if isinstance(layer, nn.Dropout)]

    assert dropouts("GoogLeNet") == [0.2]
    assert dropouts("MobileNetV2") == [0.2]
    assert dropouts("EfficientNetB0") == []
    googlenet = meta_model("GoogLeNet").extractor[0][1]
    assert googlenet.aux1 is None
    assert googlenet.aux2 is None


@pytest.mark.parametrize(("cifar_stem", "side"), [(False, 1), (True, 4)])
@pytest.mark.parametrize("name", ["ResNet10", "ResNet18"])
def test_the_cifar_stem_keeps_four_pixels_of_a_cifar_image(name, cifar_stem, side):
    backbone = meta_model(name, cifar_stem=cifar_stem).extractor[0]
    last_stage = backbone.stages if name == "ResNet10" else backbone.layer4
    sides = []
    last_stage.register_forward_hook(lambda module, inputs, output: sides.append(tuple(output.shape[2:])))
    backbone(torch.empty(2, 3, 32, 32, device="meta"))
    assert sides == [(side, side)]


def test_vision_transformers_fit_the_image_and_have_their_own_head():
    for name, num_patches in (("ViT-B/16", 4), ("ViT-B/32", 1)):
        model = meta_model(name, num_classes=10)
        assert model.extractor[0].encoder.pos_embedding.shape == (1, num_patches + 1, 768)
        assert [type(layer) for layer in model.head] == [nn.Linear, nn.Tanh, nn.Linear]
        assert model.head[0].weight.shape == (768, 512)
        assert model.head[2].weight.shape == (10, 768)
    gray = meta_model("ViT-B/16", (1, 64, 64))
    assert gray.extractor[0].conv_proj.weight.shape == (768, 1, 16, 16)


@pytest.mark.parametrize("name", ["CNN", "ResNet18", "ResNet8", "GoogLeNet", "ViT-B/32"])
def test_image_models_refuse_vectors(name):
    with pytest.raises(UserError, match=r"takes images, but .* is 2 numbers; use model.group = MLP"):
        meta_model(name, (2,))


@pytest.mark.parametrize(
    ("name", "side", "limit"),
    [("CNN1", 5, "at least 6x6"), ("CNN", 15, "at least 16x16"), ("GoogLeNet", 14, "at least 15x15")],
)
def test_the_smallest_image_of_each_model(name, side, limit):
    with pytest.raises(UserError, match=rf"model {name} takes .*{limit} pixels, not {side}x{side}"):
        meta_model(name, (3, side, side))
    model = meta_model(name, (3, side + 1, side + 1))
    assert model(torch.empty(2, 3, side + 1, side + 1, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 64)])
def test_vision_transformers_refuse_images_that_do_not_fall_into_patches(shape):
    with pytest.raises(UserError, match=rf"multiples of 16 pixels, not {shape[1]}x{shape[2]}"):
        meta_model("ViT-B/16", shape)


def test_weights_come_from_the_stream_alone():
    def weights(seed, client):
        with Streams(seed).seeded("model", client=client):
            return models.build(Model(group="ResNet4"), 0, (1, 28, 28), 10).state_dict()

    torch.manual_seed(5)
    first = weights(1, 3)
    torch.manual_seed(6)
    again = weights(1, 3)
    assert all(torch.equal(first[name], again[name]) for name in first)
    for other in (weights(1, 4), weights(2, 3)):
        assert not torch.equal(first["head.weight"], other["head.weight"])


def test_training_twice_gives_the_same_bits():
    def trained():
        torch.manual_seed(0)
        model = models.build(Model(group="CNN2"), 0, (1, 28, 28), 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        images = torch.randn(10, 1, 28, 28)
        for _ in range(5):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), torch.arange(10)).backward()
            optimizer.step()
        return list(model.parameters())

    assert all(torch.equal(one, other) for one, other in zip(trained(), trained(), strict=True))


@pytest.mark.process
def test_small_models_do_not_import_torchvision():
    code = (
        "import sys; from fedsim import models; from fedsim.config import Model\n"
        "for group in ('HtCNN8', 'MLP', 'ResNet8'): models.build(Model(group=group), 0, (1, 28, 28), 10)\n"
        "print('torchvision' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
