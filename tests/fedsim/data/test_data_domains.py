"""Feature shift: folders or files of the same classes as domains, one for each client; and few shots."""

import numpy as np
import pytest
from PIL import Image

from fedsim.config import Data, Experiment, Run, Train
from fedsim.data import Federation, store
from fedsim.errors import UserError


def federation(clients, **data):
    return Federation(Experiment(run=Run(clients=clients), data=Data(**data), train=Train(batch_size=1)))


def write_tree(folder, shade, classes, num=6, side=8):
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(num):
            Image.new("RGB", (side, side), (shade, number, 0)).save(folder / name / f"{number}.png")


def test_each_client_has_one_domain(tmp_path, cache):
    write_tree(tmp_path / "office" / "amazon", 10, ["bike", "mug"])
    write_tree(tmp_path / "office" / "webcam", 200, ["bike", "mug", "pen"])
    made = federation(2, dataset=f"domains:{tmp_path / 'office'}", partition="natural")
    assert made.dataset.class_names == ["bike", "mug", "pen"]
    assert [made.client_name(client) for client in range(2)] == ["amazon", "webcam"]
    for client, (shade, classes) in enumerate([(10, {0, 1}), (200, {0, 1, 2})]):
        data = made.client(client)
        shades = made.dataset.inputs[np.concatenate([data.train.indices, data.test.indices])][:, 0, 0, 0]
        assert set(shades.tolist()) == {shade}
        assert set(data.train.labels.tolist()) | set(data.test.labels.tolist()) == classes


def test_domains_may_be_arrays_with_a_test_set_each(tmp_path, cache):
    for name, offset in (("a", 0.0), ("b", 5.0)):
        np.savez(
            tmp_path / f"{name}.npz",
            x_train=np.full((4, 3), offset, np.float32), y_train=[0, 1, 0, 1],
            x_test=np.full((2, 3), offset + 1, np.float32), y_test=[0, 1],
        )  # fmt: skip
    stored = store.open_dataset(f"domains:{tmp_path}")
    assert stored.dataset.inputs[:, 0].tolist() == [0] * 4 + [5] * 4 + [1] * 2 + [6] * 2
    assert stored.groups.tolist() == [0] * 4 + [1] * 4 + [0] * 2 + [1] * 2
    assert stored.dataset.num_train == 8


def test_names_of_folders_may_have_dots(tmp_path, cache):
    for shade, name in enumerate(["hospital.A", "hospital.B", "hospital"]):
        write_tree(tmp_path / "sites" / name, 10 + shade, ["ill", "well"])
    made = federation(3, dataset=f"domains:{tmp_path / 'sites'}", partition="natural")
    assert [made.client_name(client) for client in range(3)] == ["hospital", "hospital.A", "hospital.B"]
    assert np.bincount(made.dataset.inputs[:, 0, 0, 0]).tolist() == [0] * 10 + [12, 12, 12]


def test_a_folder_and_a_file_of_one_name_are_refused(tmp_path, cache):
    write_tree(tmp_path / "a", 10, ["bike", "mug"])
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 8, 8, 3), np.uint8), y=[0, 1, 0, 1])
    with pytest.raises(UserError) as caught:
        store.open_dataset(f"domains:{tmp_path}")
    assert str(caught.value) == f"{tmp_path} holds a folder a and a.npz, one domain's name twice; rename one."


def test_domains_that_cannot_be_used(tmp_path, cache):
    write_tree(tmp_path / "one" / "amazon", 1, ["bike", "mug"])
    with pytest.raises(UserError, match="holds 1 domains; it needs two or more folders"):
        store.open_dataset(f"domains:{tmp_path / 'one'}")
    write_tree(tmp_path / "one" / "large", 1, ["bike", "mug"], side=16)
    with pytest.raises(UserError, match=r"samples of the domains in .* differ .* set data.image_size"):
        store.open_dataset(f"domains:{tmp_path / 'one'}")
    assert store.open_dataset(f"domains:{tmp_path / 'one'}", image_size=8).dataset.input_shape == (3, 8, 8)
    with pytest.raises(UserError, match="there is no folder"):
        store.open_dataset("domains:./nowhere")


def test_few_shots_of_each_class_are_trained_on_and_all_tested_on(cache):
    usual, few = (federation(4, dataset="digits", beta=1.0, few_shot=shots) for shots in (0, 3))
    for client in range(4):
        all_train, train = usual.client(client).train, few.client(client).train
        assert few.client(client).test.indices.tolist() == usual.client(client).test.indices.tolist()
        for label in range(10):
            expected = all_train.indices[all_train.labels == label][:3].tolist()
            assert train.indices[train.labels == label].tolist() == expected
        kept = [row for row in all_train.indices.tolist() if row in set(train.indices.tolist())]
        assert train.indices.tolist() == kept, "in the order drawn"
