"""The worked example of docs/adding-a-method.md is a method, as it stands there."""

import re
import sys

import numpy as np
import pytest
import torch
from commands import PROJECT

from fedsim import methods
from fedsim.method import Upload


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Makes the page's own text a method that is found by name."""
    page = (PROJECT / "docs" / "adding-a-method.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "fedmean.py").write_text(code)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "fedsim.methods.fedmean", raising=False)
    yield code
    sys.modules.pop("fedsim.methods.fedmean", None)


def test_it_plays_rounds_and_does_what_it_says(toy, example):
    assert len([line for line in example.splitlines() if line]) < 60
    some, alone = toy("fedmean", pull=0.5), toy("local")
    first, later = some.play(2)
    losses = [client["loss"] for client in first]
    assert losses == [client["loss"] for client in alone.play(1)[0]]  # nothing to be pulled to yet
    sent = [client.upload()["mean"] for client in some.clients]
    np.testing.assert_allclose(some.down["mean"], np.mean(sent, axis=0), rtol=1e-6)
    assert all(client["tested"] > 0 and np.isfinite(client["loss"]) for client in later)
    assert some.steps[1].metrics["mean_norm"] == pytest.approx(np.linalg.norm(some.down["mean"]))


def test_clients_that_dropped_or_were_late_have_no_part_in_its_mean(toy, example):
    some = toy("fedmean")
    mean = np.array([1, 0, -1, 2], np.float32)
    uploads = [Upload(0, 36, {}), Upload(1, 24, {"mean": mean}), Upload(2, 12, {"mean": 3 * mean})]
    assert some.server.aggregate(0, uploads).down["mean"].tolist() == (2 * mean).tolist()
    assert some.server.aggregate(1, uploads[:1]).down == {}
    client = some.clients[0]
    client.receive(1, {"mean": mean})
    client.receive(2, {})
    assert client.target_K is None, "a client that was restored in this moment knows no more"


def test_what_fedsim_new_writes_is_the_same(example):
    template = (PROJECT / "fedsim" / "templates" / "method.py").read_text()
    assert template.replace("NAME", "my_method").replace("FILE", "my_method.py") == example


def test_its_loss_pulls_to_the_common_mean(toy, example):
    client = toy("fedmean", pull=2.0, num_samples={0: 6}).clients[0]
    client.receive(1, {"mean": np.array([1, 0, -1, 2], np.float32)})
    inputs, labels = next(client.data.train.batches(6))
    with torch.no_grad():
        features = client.model.features(inputs)
        expected = torch.nn.functional.cross_entropy(client.model.head(features), labels)
        expected += 2 * (features - torch.tensor([1.0, 0, -1, 2])).square().mean()
    assert client.train(1)["loss"] == pytest.approx(expected.item(), rel=1e-5)
