"""The repair applies to one error only, and declares exactly what is missing."""

import importlib
from types import ModuleType

import pytest
import torch

from fedsim import compat

MISSING = "operator torchvision::nms does not exist"


class RecordingLibrary:
    made = []

    def __init__(self, namespace, kind):
        self.schemas = []
        RecordingLibrary.made.append((namespace, kind, self.schemas))

    def define(self, schema):
        self.schemas.append(schema)


@pytest.fixture
def importing(monkeypatch):
    """Let `import torchvision` raise the given errors one after the other, then succeed."""
    RecordingLibrary.made = []
    monkeypatch.setattr(compat, "_library", None)
    monkeypatch.setattr(torch.library, "Library", RecordingLibrary)
    module = ModuleType("torchvision")

    def arrange(*errors):
        pending = list(errors)

        def import_module(name):
            assert name == "torchvision"
            if pending:
                raise pending.pop(0)
            return module

        monkeypatch.setattr(importlib, "import_module", import_module)
        return module

    return arrange


def test_a_sound_torchvision_is_left_alone(importing):
    module = importing()
    assert compat.import_torchvision() is module
    assert RecordingLibrary.made == []


def test_missing_operators_are_declared_and_kept(importing):
    module = importing(RuntimeError(MISSING))
    assert compat.import_torchvision() is module
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    assert RecordingLibrary.made == [("torchvision", "DEF", [f"nms{arguments}", f"qnms{arguments}"])]
    assert isinstance(compat._library, RecordingLibrary)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ImportError("no module named torchvision")])
def test_other_errors_pass(importing, error):
    importing(error)
    with pytest.raises(type(error), match=str(error)):
        compat.import_torchvision()
    assert RecordingLibrary.made == []


def test_models_can_be_built_with_the_real_one():
    first = compat.import_torchvision()
    assert first.models.resnet18 is compat.import_torchvision().models.resnet18
