"""UCI HAR and PAMAP2 in their publishers' layouts: what is read, whose it is, and what is said of broken files."""

import numpy as np
import pytest
from publishers import write_har, write_pamap2

from fedsim.config import Data, Experiment, Run, Train
from fedsim.data import Federation, store
from fedsim.data.sources import Wish, sensors
from fedsim.errors import UserError

TRAINED, TESTED = [1] * 4 + [3] * 4 + [7] * 4, [2] * 6 + [9] * 6
SUBJECTS = {"train": TRAINED, "test": TESTED}


def federation(tmp_path, clients=5, **options):
    data = Data(data_dir=str(tmp_path), **{"dataset": "har", "partition": "natural", **options})
    return Federation(Experiment(run=Run(clients=clients), data=data, train=Train(batch_size=1)))


def test_har_keeps_time_along_the_last_axis_and_signals_apart(tmp_path, cache):
    write_har(tmp_path, SUBJECTS)
    stored = store.open_dataset("har", str(tmp_path))
    dataset = stored.dataset
    assert dataset.inputs.shape == (24, 9, 1, 128)
    assert dataset.inputs.dtype == np.float32
    assert dataset.input_shape.kind == "signal"
    assert dataset.num_train == 12
    window, channel, step = 14, 4, 77
    np.testing.assert_allclose(dataset.inputs[window, channel, 0, step], 100 * window + 10 * channel + 0.077)
    assert dataset.labels[:7].tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert dataset.class_name(3) == "sitting"
    assert stored.group_names == tuple(f"subject {number}" for number in (1, 2, 3, 7, 9))


def test_the_published_preparation_of_har_mixes_time_and_signals(tmp_path, cache):
    write_har(tmp_path, None)
    right = store.open_dataset("har", str(tmp_path)).dataset
    wrong = store.open_dataset("har", str(tmp_path), wish=Wish(published=True)).dataset
    # One value of each signal stands where the first signal's first nine steps should be.
    np.testing.assert_array_equal(wrong.inputs[5, 0, 0, :9], right.inputs[5, :, 0, 0])
    np.testing.assert_array_equal(np.sort(wrong.inputs[5].ravel()), np.sort(right.inputs[5].ravel()))


def test_each_client_of_a_natural_partition_is_one_subject(tmp_path, cache):
    write_har(tmp_path, SUBJECTS)
    made = federation(tmp_path)
    whose = np.array(TRAINED + TESTED)
    for client, subject in enumerate((1, 2, 3, 7, 9)):
        data = made.client(client)
        rows = np.sort(np.concatenate([data.train.indices, data.test.indices]))
        assert rows.tolist() == np.flatnonzero(whose == subject).tolist()
        assert made.client_name(client) == f"subject {subject}"


def test_the_official_test_set_takes_its_subjects_with_it(tmp_path, cache):
    write_har(tmp_path, SUBJECTS)
    made = federation(tmp_path, clients=3, global_test=True)
    assert [made.client_name(client) for client in range(3)] == ["subject 1", "subject 3", "subject 7"]
    assert made.global_test.indices.tolist() == list(range(12, 24))


def test_another_number_of_clients_than_subjects_is_refused(tmp_path, cache):
    write_har(tmp_path, SUBJECTS)
    with pytest.raises(UserError, match=r"come from 5 subjects or domains, .*set run.clients = 5 \(--clients 5\)"):
        federation(tmp_path, clients=10).client(0)


def test_a_subject_with_too_few_samples_is_named(tmp_path, cache):
    write_har(tmp_path, {"train": [1] * 11 + [4], "test": [2] * 12})
    with pytest.raises(
        UserError, match=r"client 2 \(subject 4\) gets 1 of 24 samples, too few for a training part"
    ):
        federation(tmp_path, clients=3).client(0)


def test_without_subject_files_there_is_no_natural_partition(tmp_path, cache):
    write_har(tmp_path, None)
    with pytest.raises(UserError, match=r"natural needs to know whose .* subject_train.txt .*; choose dirichlet"):
        federation(tmp_path).client(0)
    assert len(federation(tmp_path, partition="iid").client(0).train)


@pytest.mark.parametrize(
    ("missing", "subjects"),
    [
        ("train/Inertial Signals/body_gyro_y_train.txt", None),
        ("test/y_test.txt", None),
        ("test/subject_test.txt", SUBJECTS),
    ],
)
def test_a_missing_file_of_har_is_named(tmp_path, cache, missing, subjects):
    made = write_har(tmp_path, subjects)
    (made / missing).unlink()
    with pytest.raises(UserError, match=rf"{missing} of UCI HAR is missing; unpack the publisher's archive again"):
        store.open_dataset("har", str(tmp_path))


def test_signals_of_another_length_are_refused(tmp_path, cache):
    made = write_har(tmp_path, None)
    np.savetxt(made / "test" / "Inertial Signals" / "total_acc_z_test.txt", np.zeros((12, 64)))
    with pytest.raises(UserError, match=r"total_acc_z_test.txt holds 12 windows of 64 steps, not 12 of 128"):
        store.open_dataset("har", str(tmp_path))


def test_pamap2_takes_windows_that_one_activity_fills(tmp_path, cache):
    write_pamap2(tmp_path, {"subject101": [(1, 512), (24, 300), (0, 256)], "subject103": [(17, 256)]})
    stored = store.open_dataset("pamap2", str(tmp_path))
    dataset = stored.dataset
    # Of subject 101: 0-255, 128-383 and 256-511 lie, 512-767 jump the rope; 384, 640 and 768 are mixed or of none.
    assert [dataset.class_name(label) for label in dataset.labels] == ["lying"] * 3 + ["rope jumping", "ironing"]
    assert dataset.input_shape == dataset.input_shape.__class__((9, 3, 256), "signal")
    assert stored.groups.tolist() == [0, 0, 0, 0, 1]
    assert stored.group_names == ("subject 101", "subject 103")
    # Gyroscope x of the chest (column 27) at row 130, over its largest value, at row 1067.
    np.testing.assert_allclose(dataset.inputs[1, 3, 1, 2], (27 + 0.130) / (27 + 1.067), rtol=1e-5)
    assert dataset.inputs[0, 0, 0, 3] == 0, "a missing value"


def test_the_published_labels_of_pamap2_are_the_smallest_of_a_window(tmp_path, cache):
    write_pamap2(tmp_path, {"subject101": [(1, 300), (24, 340)], "subject102": [(4, 256)]})
    wish = Wish(published=True)
    corrected = store.open_dataset("pamap2", str(tmp_path)).dataset
    published = store.open_dataset("pamap2", str(tmp_path), wish=wish).dataset
    assert corrected.labels.tolist() == [1, 0, 4]
    # 256-511 is rope jumping for 212 of its 256 steps, and yet called lying.
    assert published.labels.tolist() == [1, 1, 1, 0, 4]


def test_a_subject_of_pamap2_without_a_window_is_refused(tmp_path, cache):
    write_pamap2(tmp_path, {"subject101": [(1, 300)], "subject109": [(0, 400), (1, 100)]})
    with pytest.raises(
        UserError, match=r"subject109.dat has no window .* this subject has no samples; take the file"
    ):
        store.open_dataset("pamap2", str(tmp_path))


def test_a_file_of_pamap2_with_other_columns_is_refused(tmp_path, cache):
    made = write_pamap2(tmp_path, {"subject101": [(1, 300)]})
    np.savetxt(made / "Protocol" / "subject102.dat", np.zeros((300, 20)))
    with pytest.raises(UserError, match=r"subject102.dat has 20 columns, not the 54 of PAMAP2"):
        store.open_dataset("pamap2", str(tmp_path))


def test_columns_of_pamap2_are_three_sensors_of_nine_signals():
    assert len(sensors._SIGNALS) == 27
    # The publisher's list: temperature is the first column of a sensor, then ±16 g, ±6 g, gyroscope, magnetometer.
    hand = [4, 5, 6, 10, 11, 12, 13, 14, 15]
    assert [hand, [c + 17 for c in hand], [c + 34 for c in hand]] == np.reshape(sensors._SIGNALS, (3, 9)).tolist()
