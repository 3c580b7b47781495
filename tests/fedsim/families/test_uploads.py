"""What clients pack and servers stack: rows by class, means of them, and means of whole vectors."""

import numpy as np
import pytest
import torch
from toys import CPU

from fedsim import assembly, config
from fedsim.equations.class_vectors import ClassMeans, ClassVectors
from fedsim.errors import ContractError
from fedsim.families.uploads import class_means, mean_of, mean_per_class, pack, stack_uploads
from fedsim.method import Upload


def upload(client: int, rows: list[list[float]], ids: list[int], **more) -> Upload:
    arrays = {
        "prototypes": np.array(rows, np.float32).reshape(len(ids), -1 if rows else 2),
        "class_ids": np.array(ids, np.int32),
    }
    return Upload(client, 10, arrays | {name: np.array(value) for name, value in more.items()})


# ------------------------------------------------------------------------------------------- on a client


def test_class_means_are_those_of_any_output_in_evaluation_mode(toy):
    client = toy("local", dropout=0.5).clients[2]  # 33 samples in batches of 6: an epoch covers 30
    means = class_means(client.context, lambda inputs: 2 * client.model(inputs), dim=5)
    inputs, labels = next(client.data.train.batches(30))
    with torch.no_grad():
        expected = 2 * client.model.eval()(inputs)
    assert means.weights_C.tolist() == torch.bincount(labels, minlength=5).tolist()
    for class_id in (0, 1, 2, 3):
        torch.testing.assert_close(means.means().vectors_CK[class_id], expected[labels == class_id].mean(dim=0))


def test_without_an_output_they_are_prototypes(toy):
    client = toy("local").clients[0]
    prototypes, same = (class_means(client.context, *given).means() for given in ((), (client.model.features, 4)))
    assert torch.equal(prototypes.vectors_CK, same.vectors_CK) and prototypes.present_C.sum() == 3


def test_packed_are_the_classes_that_there_are():
    vectors = ClassVectors.from_rows(np.array([[1, 2], [3, 4]], np.float32), np.array([3, 1]), 5)
    arrays = pack(vectors, torch.tensor([9.0, 7, 0, 2, 0]), name="logits")
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "logits": [[3, 4], [1, 2]],
        "class_ids": [1, 3],
        "counts": [7, 2],
    }
    assert arrays["counts"].dtype == np.int32
    assert set(pack(vectors)) == {"prototypes", "class_ids"}


def test_what_is_packed_and_stacked_is_what_it_was():
    means = ClassMeans(4, 2)
    means.add(torch.tensor([[1.0, 1], [3, 5], [0, 8]]), torch.tensor([2, 2, 0]))
    arrays = pack(means.means(), means.weights_C)
    stacked = stack_uploads([Upload(7, 3, arrays)], "prototypes", 2, 4, CPU)
    assert stacked.vectors_NK.tolist() == [[0, 8], [2, 3]] and stacked.labels_N.tolist() == [0, 2]
    assert stacked.counts_N.tolist() == [1, 2] and stacked.clients_N.tolist() == [7, 7]


# ------------------------------------------------------------------------------------------- on the server


def test_mean_over_the_clients_that_hold_a_class():
    uploads = [upload(0, [[1, 1], [4, 0]], [0, 2]), upload(1, [], []), upload(5, [[3, 5]], [0])]
    means = mean_per_class(stack_uploads(uploads, "prototypes", 2, 4, CPU), 4)
    assert means.vectors_CK.tolist() == [[2, 3], [0, 0], [4, 0], [0, 0]]
    assert means.present_C.tolist() == [True, False, True, False]


def test_weighted_mean_is_not_divided_by_the_number_of_clients():
    uploads = [
        upload(0, [[1, 1]], [0], counts=np.array([30], np.int32)),
        upload(1, [[5, 9]], [0], counts=np.array([10], np.int32)),
    ]
    means = mean_per_class(stack_uploads(uploads, "prototypes", 2, 1, CPU), 1)
    assert means.vectors_CK.tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize("wrong", [-1, 4])
def test_class_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(ContractError, match=rf"client 3: field 'class_ids' must lie in 0\.\.3.*{wrong}"):
        stack_uploads([upload(3, [[1, 1]], [wrong])], "prototypes", 2, 4, CPU)


def test_more_prototypes_than_classes_are_refused():
    rows = [[1, 1], [2, 2], [3, 3]]
    with pytest.raises(ContractError, match=r"client 3: .* names a class twice \(3 rows for at most 2 classes\)"):
        stack_uploads([upload(3, rows, [0, 1, 1])], "prototypes", 2, 2, CPU)


def test_clients_count_by_their_samples_or_alike():
    vectors = [np.array([1, 2], np.float32), np.array([5, 0], np.float32)]
    uploads = [Upload(0, 30, {"head": vectors[0]}), Upload(1, 10, {"head": vectors[1]})]
    assert mean_of(uploads, "head", "mean").tolist() == [3, 1]
    assert mean_of(uploads, "head", "weighted").tolist() == [2, 1.5]


# --------------------------------------------------------------------------------- before the start


def notes(method: str, batch_size: int = 1, **options: object) -> list[str]:
    experiment = config.build(
        [
            {
                "run": {"clients": 80, "participation": 0.5},
                "data": {"partition": "iid"},
                "train": {"batch_size": batch_size},
                "method": {"name": method, **options},
            }
        ]
    )
    return assembly.notes(experiment, assembly.check(experiment))


def test_a_server_of_very_many_steps_is_told_of_with_their_number():
    (note,) = notes("fedtgp", server_epochs=200)  # half of 80 clients, most of which hold all classes
    assert note.startswith(
        "the server will take about 76,800 steps a round: 200 epochs over 384 uploaded rows in mini-batches of 1, "
        "which is the clients' batch size, as published; a larger method.server_batch_size takes fewer"
    )
    (note,) = notes("fedgh", batch_size=10, server_epochs=200, server_batch_size=1)
    assert "in mini-batches of 1; a larger" in note
    assert notes("fedtgp") == notes("fedtgp", batch_size=10, server_epochs=200) == notes("fedproto") == []
