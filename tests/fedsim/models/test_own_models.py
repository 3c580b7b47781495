"""Models from elsewhere: taken apart into features and a head, refused with a sentence where that cannot be."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from fedsim import models
from fedsim.config import Model
from fedsim.errors import UserError
from fedsim.models import flops, groups
from fedsim.models.base import SplitModel
from fedsim.seeds import Streams

NETS = '''
import torch
from torch import nn

LEFT_OVER = torch.rand(3)  # drawn while the file is imported


class Small(nn.Module):
    """Ends in a linear layer, which is neither its last attribute nor its last module."""

    def __init__(self, num_classes, in_channels=1):
        super().__init__()
        self.classifier = nn.Linear(32, num_classes)
        self.conv = nn.Conv2d(in_channels, 8, 3, stride=4)
        self.norm = nn.BatchNorm2d(8)
        self.hidden = nn.LazyLinear(32)

    def forward(self, images):
        maps = torch.relu(self.norm(self.conv(images)))
        return self.classifier(torch.relu(self.hidden(maps.flatten(1))))


def wide(input_shape, num_classes, width=16):
    size = torch.Size(input_shape).numel()
    body = (nn.Flatten(), nn.Linear(size, width), nn.Tanh(), nn.Dropout(0.5))
    return nn.Sequential(*body, nn.Linear(width, num_classes))


class Named(nn.Module):
    """Says what its features and its head are."""

    def __init__(self, num_classes, input_shape, feature_dim):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), feature_dim))
        last = nn.Linear(5, num_classes, bias=False)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(feature_dim, 5), nn.ReLU(), last)

    def features(self, inputs):
        return self.body(inputs)

    def forward(self, inputs):
        return self.head(self.features(inputs))


class Fixed(Named):
    def __init__(self, num_classes, input_shape):
        super().__init__(num_classes, input_shape, feature_dim=7)


class NoLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 10, 28)

    def forward(self, images):
        return self.conv(images).flatten(1)


class MoreBehind(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(784, num_classes), nn.LogSoftmax(dim=1))


class ForLarger(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(32 * 32, num_classes))


class ForNothing(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(3, num_classes))


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("not today")


class Talkative(nn.Module):
    """Gives more than logits while it trains."""

    def __init__(self, num_classes):
        super().__init__()
        self.fc = nn.Linear(784, num_classes)

    def forward(self, images):
        logits = self.fc(images.flatten(1))
        return (logits, logits) if self.training else logits


class Looks(nn.Module):
    """Looks at numbers, which the meta device does not have."""

    def __init__(self, num_classes):
        super().__init__()
        self.fc = nn.Linear(784, num_classes)

    def forward(self, images):
        return self.fc(images.flatten(1) if images.sum().item() < 1e9 else images)


def seven():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 7))


def a_pair(num_classes):
    class Pair(nn.Module):
        def forward(self, images):
            return images, images
    return Pair()


def number():
    return 3


def wants(depth):
    return nn.Linear(depth, 1)


ready = nn.Linear(784, 10)
CONSTANT = 3
'''
DIGITS, CLASSES, K = (1, 28, 28), 10, 12


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path / "nets.py"


def build(name: str, shape=DIGITS, classes=CLASSES, **settings) -> SplitModel:
    config = Model(group=name if ":" in name else f"./nets.py:{name}", **{"feature_dim": K, **settings})
    with Streams(1).seeded(f"model-init/{models.architecture(config, 0)}"):
        return models.build(config, 0, shape, classes)


def check(name: str, shape=DIGITS, **settings) -> SplitModel:
    """As before a run: shapes alone."""
    with torch.device("meta"):
        return build(name, shape, **settings)


def refused(name: str, shape=DIGITS, **settings) -> str:
    with pytest.raises(UserError) as caught:
        check(name, shape, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    [("Small", DIGITS, 32), ("Small", (3, 40, 20), 32), ("wide", (6,), 16), ("Named", (6,), K)],
)
def test_a_model_comes_apart_into_features_and_head(name, shape, dim):
    model = build(name, shape)
    batch = torch.rand(3, *shape)
    assert model.backbone_dim == dim and model.name == f"nets.py:{name}"
    assert model.features(batch).shape == (3, K) and model.training
    assert torch.equal(model.eval()(batch), model.head(model.features(batch))) and model(batch).shape == (
        3,
        CLASSES,
    )


def test_the_last_linear_layer_gives_way_to_the_head_of_the_zoo():
    model = build("Small", feature_mapping="project")
    assert str(model.head) == str(build("CNN2:256").head[0]).replace("256", "10")
    names = {name for name, _ in model.named_parameters()}
    assert not [name for name in names if "classifier" in name]
    assert {"extractor.1.weight", "extractor.0.hidden.weight"} <= names


def test_a_head_that_is_named_is_kept():
    model = build("Named")
    assert [type(layer).__name__ for layer in model.head] == ["ReLU", "Linear", "ReLU", "Linear"]
    assert len(list(model.parameters())) == len(model.state_dict()) == 5, "nothing is there twice"
    assert type(build("Named", relu_logits=True).head[1]) is nn.ReLU


def test_a_head_that_is_named_must_take_k_features():
    assert refused("Fixed") == (
        "the head of nets.py:Fixed takes 7 features, but model.feature_dim is 12; set it to 7, or let the model "
        "take feature_dim as an argument and give its head as many."
    )
    assert check("Fixed", feature_dim=7).backbone_dim == 7


def test_a_check_needs_no_memory_and_draws_nothing():
    before = torch.random.get_rng_state()
    assert {parameter.device.type for parameter in check("Small").parameters()} == {"meta"}
    with torch.device("meta"):
        models.build(Model(group="./nets.py:wide"), 0, DIGITS, CLASSES)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_first_weights_depend_on_the_name_and_on_nothing_else(nets, tmp_path, monkeypatch):
    first = build("wide").state_dict()
    (tmp_path / "elsewhere").mkdir()
    nets.rename(tmp_path / "elsewhere" / "nets.py")
    monkeypatch.chdir(tmp_path / "elsewhere")
    torch.manual_seed(99)
    again = build("wide").state_dict()  # imported here, inside the stream, and there it was not
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["extractor.0.1.weight"], build("wide", feature_dim=3).state_dict()["head.weight"])


def test_own_models_stand_in_groups_like_any_other():
    config = Model(group="CNN1,./nets.py:Small, torchvision:mobilenet_v3_small ,CNN2:64")
    names = ["CNN1", "nets.py:Small", "torchvision:mobilenet_v3_small", "CNN2:64"]
    assert [models.architecture(config, client) for client in range(4)] == names
    assert [entry.group for entry in groups.entries(config.group)][1] == "./nets.py:Small"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "NoLinear",
            "nets.py:NoLinear does not end in a linear layer, so its features cannot be told from its head",
        ),
        ("MoreBehind", "nets.py:MoreBehind does not end in a linear layer"),
        (
            "seven",
            "nets.py:seven gives 7 outputs, but there are 10 classes; let it take num_classes as an argument.",
        ),
        (
            "ForLarger",
            "nets.py:ForLarger cannot take images of 28x28, but of 32x32 it can; set data.image_size=32",
        ),
        ("ForNothing", "nets.py:ForNothing cannot take samples of 1x28x28 (RuntimeError: mat1 and mat2"),
        ("Raises", "./nets.py:Raises cannot be made (line 77, ValueError: not today); mend it and try again."),
        ("a_pair", "nets.py:a_pair gives a tuple for 2 samples instead of (2, 10); let it return logits."),
        ("Talkative", "the features of nets.py:Talkative are a tuple while it trains and (2, 784) otherwise"),
        ("number", "./nets.py:number returns int, not a torch.nn.Module; return the network."),
        ("CONSTANT", "./nets.py:CONSTANT is no torch.nn.Module; give such a class, or a function that makes one."),
        ("ready", "./nets.py:ready is a network already, and every client needs its own; give its class"),
        ("wants", "./nets.py:wants wants 'depth', which nobody gives; give it a default value, or use one of"),
        ("Smal", "there is no object in ./nets.py called 'Smal'; did you mean Small?"),
        ("./no.py:Small", "there is no file "),
        ("no_such_module:Small", "Python finds no module no_such_module;"),
    ],
)
def test_what_is_wrong_with_a_model_is_one_sentence(name, complaint):
    assert refused(name).startswith(complaint)


def test_a_hidden_layer_is_still_asked_for_by_a_number():
    with pytest.raises(UserError, match="'CNN2:big' wants a number of units after the colon"):
        groups.entries("CNN2:big")


def test_parameters_and_operations_of_own_models_are_counted():
    (profile,) = flops.profile_group(Model(group="./nets.py:wide", feature_dim=K), DIGITS, CLASSES)
    assert profile.num_parameters == 784 * 16 + 16 + K * CLASSES + CLASSES
    assert profile.forward_flops == 2 * (784 * 16 + K * CLASSES)
    (unknown,) = flops.profile_group(Model(group="./nets.py:Looks", feature_dim=K), DIGITS, CLASSES)
    assert unknown.forward_flops is None and unknown.num_parameters == K * CLASSES + CLASSES


# ------------------------------------------------------------------------------------------------ libraries


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "swin_t", "squeezenet1_0"])
def test_models_of_torchvision_by_their_names(name):
    if name == "squeezenet1_0":  # ends in a convolution
        assert "does not end in a linear layer" in refused(f"torchvision:{name}", (1, 64, 64))
        return
    model = check(f"torchvision:{name}", (1, 64, 64))
    assert model.name == f"torchvision:{name}" and model.backbone_dim in (1024, 768)


def test_unknown_models_of_torchvision():
    assert refused("torchvision:mobilenet_v9") == (
        "there is no model in torchvision called 'mobilenet_v9'; did you mean mobilenet_v2?"
    )
    assert refused("torchvision:resnet18", (6,)).startswith(
        "model torchvision:resnet18 takes images, but a sample of"
    )


@pytest.fixture
def timm(monkeypatch):
    """In the place of timm: what fedsim asks of it."""
    module = ModuleType("timm")
    module.calls = []

    def create_model(name, *, pretrained, num_classes, in_chans):
        module.calls.append((name, pretrained, num_classes, in_chans))
        return nn.Sequential(
            nn.Conv2d(in_chans, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
        )

    module.create_model, module.list_models = create_model, lambda: ["tiny_net", "large_net"]
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


def test_models_of_timm_by_their_names(timm):
    model = build("timm:tiny_net", (3, 32, 32))
    assert model.name == "timm:tiny_net" and model.backbone_dim == 4
    assert timm.calls == [("tiny_net", False, 10, 3)]
    assert refused("timm:tiny_nett") == "there is no model in timm called 'tiny_nett'; did you mean tiny_net?"


def test_timm_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    complaint = refused("timm:tiny_net")
    assert complaint.startswith("timm:tiny_net needs timm (import of timm halted")
    assert complaint.endswith("; run: pip install 'fedsim-htfl[zoo]'.")
