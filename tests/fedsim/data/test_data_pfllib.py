"""Folders that PFLlib and HtFLlib generate, written here as their scripts write them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.data import store
from fedsim.errors import UserError

SIZES = [(6, 2), (9, 3), (3, 1)]  # training and test samples of three clients


def write_folder(
    folder: Path, images: bool = True, num_classes: int = 4
) -> list[dict[str, dict[str, np.ndarray]]]:
    random = np.random.default_rng(0)
    clients, statistics = [], []
    for client, sizes in enumerate(SIZES):
        parts = {}
        for part, size in zip(("train", "test"), sizes, strict=True):
            if images:
                pixels = random.integers(0, 256, (size, 3, 8, 6)).astype(np.float32)
                x = (pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
            else:
                x = random.normal(size=(size, 5)).astype(np.float32)
            y = random.integers(0, num_classes, size)
            parts[part] = {"x": x, "y": y}
            path = folder / part / f"{client}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                np.savez_compressed(file, data=parts[part])
        labels = np.concatenate([parts["train"]["y"], parts["test"]["y"]])
        statistics.append([[int(label), int((labels == label).sum())] for label in np.unique(labels)])
        clients.append(parts)
    config = {
        "num_clients": len(SIZES),
        "num_classes": num_classes,
        "non_iid": True,
        "balance": False,
        "partition": "dir",
        "Size of samples for labels in clients": statistics,
        "alpha": 0.1,
        "batch_size": 10,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return clients


@pytest.mark.parametrize("images", [True, False])
def test_clients_get_exactly_their_own_files(tmp_path, federation, images):
    clients = write_folder(tmp_path / "Cifar10", images)
    made = federation(dataset=str(tmp_path / "Cifar10"), clients=3)
    assert made.dataset.inputs.dtype == (np.uint8 if images else np.float32)
    assert made.input_shape == ((3, 8, 6) if images else (5,))
    for client, parts in enumerate(clients):
        data = made.client(client)
        for subset, written in ((data.train, parts["train"]), (data.test, parts["test"])):
            ((x, y),) = subset.batches(100)
            assert torch.equal(x, torch.from_numpy(written["x"]))
            assert y.tolist() == written["y"].tolist()


def test_counts_are_those_of_config_json(tmp_path, federation):
    write_folder(tmp_path / "data")
    config = json.loads((tmp_path / "data" / "config.json").read_text())
    made = federation(dataset=str(tmp_path / "data"), clients=config["num_clients"])
    for client, stated in enumerate(config["Size of samples for labels in clients"]):
        data = made.client(client)
        counts = data.class_counts + np.bincount(data.test.labels, minlength=4)
        assert [[label, count] for label, count in enumerate(counts.tolist()) if count] == stated


def test_floats_that_were_never_bytes_stay_floats(tmp_path):
    write_folder(tmp_path / "data")
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 6)).astype(np.float32)
    y = json.loads((tmp_path / "data" / "config.json").read_text())
    del y["Size of samples for labels in clients"]
    (tmp_path / "data" / "config.json").write_text(json.dumps(y))
    np.savez(tmp_path / "data" / "test" / "0.npz", data={"x": x, "y": np.array([0, 1])})
    dataset = store.open_dataset(str(tmp_path / "data")).dataset
    assert dataset.inputs.dtype == np.float32 and dataset.input_shape == (3, 8, 6)
    assert np.array_equal(dataset.inputs[18:20], x)


def test_the_number_of_clients_must_match(tmp_path, federation):
    write_folder(tmp_path / "data")
    with pytest.raises(
        UserError, match=r"data is a ready-made partition for 3 clients, not for 4; set run\.clients"
    ):
        federation(dataset=str(tmp_path / "data"), clients=4).client(0)
    with pytest.raises(UserError, match=r"gives all samples to clients; unset data\.public_samples"):
        _ = federation(dataset=str(tmp_path / "data"), clients=3, public_samples=2).public


@pytest.mark.parametrize(
    ("option", "value", "default"),
    [("partition", "iid", "dirichlet"), ("beta", 0.5, "0.1"), ("train_fraction", 0.5, "0.75")],
)
def test_what_a_ready_made_partition_would_ignore_is_refused(tmp_path, federation, option, value, default):
    write_folder(tmp_path / "data")
    with pytest.raises(UserError, match=rf"so data\.{option} = {value} has no effect; leave it at {default}\."):
        federation(dataset=str(tmp_path / "data"), clients=3, **{option: value}).client(0)


def test_files_that_do_not_fit_config_json_are_refused(tmp_path):
    folder = tmp_path / "data"
    clients = write_folder(folder)
    np.savez(folder / "train" / "1.npz", data={key: value[:5] for key, value in clients[1]["train"].items()})
    with pytest.raises(UserError, match=r"client 1 holds 12 samples of \d classes, but its files hold 8 of \d"):
        store.open_dataset(str(folder))
    (folder / "test" / "2.npz").unlink()
    with pytest.raises(UserError, match=r"speaks of 3 clients but .*test/2\.npz is missing"):
        store.open_dataset(str(folder))


def test_a_client_file_with_a_label_out_of_range_is_refused(tmp_path):
    clients = write_folder(tmp_path / "data")
    clients[2]["train"]["y"][0] = 4
    np.savez(tmp_path / "data" / "train" / "2.npz", data=clients[2]["train"])
    with pytest.raises(UserError, match=r"train/2\.npz has 1 labels out of range, the first is 4; with 4 classes"):
        store.open_dataset(str(tmp_path / "data"))
