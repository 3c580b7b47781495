import numpy as np
import torch

from fedsim.data import ClientData, Dataset, Subset


def images(number: int = 23, height: int = 3, width: int = 5, channels: int = 2) -> Dataset:
    shape = (number, height, width, channels)
    inputs = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Dataset("some", inputs, np.arange(number) % 4, num_classes=6, num_train=number)


def test_every_byte_becomes_the_float_that_the_usual_transforms_give():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    dataset = Dataset("bytes", pixels, np.zeros(1, dtype=np.int64), num_classes=1, num_train=1)
    ((x, _),) = Subset(dataset, np.array([0])).batches(1)
    usual = (torch.arange(256).float() / 255 - 0.5) / 0.5
    assert torch.equal(x.flatten(), usual)
    assert x.shape == (1, 1, 16, 16)


def test_batches_hold_the_rows_in_order_with_channels_first():
    dataset = images()
    rows = np.array([7, 3, 3, 22, 0])
    batches = list(Subset(dataset, rows).batches(2))
    assert [len(x) for x, _ in batches] == [2, 2, 1]
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    assert dataset.input_shape == (2, 3, 5) == tuple(x.shape[1:])
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    assert y.tolist() == [3, 3, 3, 2, 0]
    for row, image in zip(rows, x, strict=True):
        assert image[1, 2, 4].item() == np.float32(dataset.inputs[row, 2, 4, 1]) / np.float32(127.5) - 1


def test_drop_last_leaves_out_the_short_batch():
    sizes = [len(x) for x, _ in Subset(images(), np.arange(23)).batches(5, drop_last=True)]
    assert sizes == [5, 5, 5, 5]
    assert list(Subset(images(), np.arange(4)).batches(5, drop_last=True)) == []


def test_order_permutes_samples_and_labels_together():
    subset = Subset(images(), np.arange(23))
    order = np.random.default_rng(1).permutation(23)
    straight_x, straight_y = (torch.cat(part) for part in zip(*subset.batches(4), strict=True))
    x, y = (torch.cat(part) for part in zip(*subset.batches(4, order=order), strict=True))
    assert torch.equal(x, straight_x[order]) and torch.equal(y, straight_y[order])


def test_batches_do_not_depend_on_how_they_are_converted_together(monkeypatch):
    subset = Subset(images(), np.arange(23))
    together = list(subset.batches(4))
    monkeypatch.setattr("fedsim.data.dataset.CHUNK_BYTES", 1)
    for (x, y), (single_x, single_y) in zip(together, subset.batches(4), strict=True):
        assert torch.equal(x, single_x) and torch.equal(y, single_y)


def test_changing_a_batch_changes_neither_the_data_nor_the_labels():
    dataset = images()
    subset = Subset(dataset, np.arange(23))
    before, labels = dataset.inputs.copy(), subset.labels.copy()
    for x, y in subset.batches(4):
        x.zero_()
        y.zero_()
    assert np.array_equal(dataset.inputs, before) and np.array_equal(subset.labels, labels)


def test_floats_are_passed_on_as_they_are():
    points = np.array([[1.5, -9.0], [0.25, 3.0], [7.0, 8.0]], dtype=np.float32)
    dataset = Dataset("points", points, np.array([0, 1, 0]), num_classes=2, num_train=3)
    ((x, y),) = Subset(dataset, np.array([2, 0])).batches(8)
    assert dataset.input_shape == (2,)
    assert x.tolist() == [[7.0, 8.0], [1.5, -9.0]] and y.tolist() == [0, 0]


def test_labels_of_an_unlabelled_subset_cannot_be_read():
    subset = Subset(images(), np.arange(6), labelled=False)
    assert subset.labels.tolist() == [-1] * 6
    assert [y.tolist() for _, y in subset.batches(4)] == [[-1] * 4, [-1] * 2]


def test_client_data_counts_its_training_classes():
    dataset = images()  # the label of row i is i mod 4
    data = ClientData(train=Subset(dataset, np.array([1, 5, 3])), test=Subset(dataset, np.array([0])))
    assert data.class_counts.tolist() == [0, 2, 0, 1, 0, 0]
    assert data.classes.tolist() == [1, 3]
