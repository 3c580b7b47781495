import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedsim.data import partition
from fedsim.errors import UserError


def rows_of(federation, num_clients):
    clients = [federation.client(client) for client in range(num_clients)]
    return [np.concatenate([data.train.indices, data.test.indices]) for data in clients]


def test_clients_share_all_samples_without_overlap(federation):
    made = federation(clients=5)
    rows = np.concatenate(rows_of(made, 5))
    assert np.array_equal(np.sort(rows), np.arange(1797))
    assert made.num_classes == 10 and made.input_shape == (1, 28, 28)


def test_one_seeded_generator_draws_the_partition_and_then_every_split(federation):
    """The published scripts seed numpy once and call scikit-learn client after client."""
    made = federation(clients=5, seed=3)
    labels = made.dataset.labels
    np.random.seed(3)
    parts = partition.dirichlet(labels, 10, 5, 0.1, 40, 1000, np.random.mtrand._rand)
    for client, rows in enumerate(parts):
        train, test = train_test_split(rows, train_size=0.75, shuffle=True)
        assert made.client(client).train.indices.tolist() == train.tolist()
        assert made.client(client).test.indices.tolist() == test.tolist()


def test_a_second_federation_sees_the_same_clients_and_another_seed_others(federation):
    first, again, other = federation(), federation(), federation(seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(rows_of(first, 4), rows_of(again, 4), strict=True))
    assert not np.array_equal(rows_of(first, 4)[0], rows_of(other, 4)[0])


def test_the_data_may_have_a_seed_of_their_own(federation):
    one, two = (federation(seed=seed, public_samples=50) for seed in (1, 2))
    shared = federation(seed=2, data_seed=1, public_samples=50)
    rows, wanted, others = (np.concatenate(rows_of(made, 4)).tolist() for made in (shared, one, two))
    assert rows == wanted != others
    assert shared.public.indices.tolist() == one.public.indices.tolist() != two.public.indices.tolist()


def test_seeds_beyond_numpys_range_are_taken(federation):
    assert sum(map(len, rows_of(federation(seed=2**40 + 7), 4))) == 1797


def test_public_samples_are_training_samples_that_no_client_holds(federation, write_npz):
    made = federation(dataset=str(write_npz(num_train=60, num_test=30)), public_samples=25)
    public = made.public
    assert len(public) == len(np.unique(public.indices)) == 25
    assert public.indices.max() < made.dataset.num_train == 180
    assert set(public.labels.tolist()) == {-1}
    held = np.concatenate(rows_of(made, 4))
    assert np.array_equal(np.sort(np.concatenate([held, public.indices])), np.arange(270))


def test_the_global_test_set_is_the_official_one(federation, write_npz):
    made = federation(dataset=str(write_npz(num_train=60, num_test=30)), global_test=True, public_samples=10)
    assert made.global_test.indices.tolist() == list(range(180, 270))
    assert set(made.global_test.labels.tolist()) == {0, 1, 2}
    assert sum(map(len, rows_of(made, 4))) == 180 - 10


def test_without_an_official_test_set_a_sixth_is_kept_out(federation):
    made = federation(global_test=True, public_samples=100)
    rows = [made.global_test.indices, made.public.indices, *rows_of(made, 4)]
    assert len(rows[0]) == 1797 // 6
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(1797))


def test_few_samples_per_class_for_a_single_client(federation):
    made = federation(clients=1, partition="iid", samples_per_class=12, stratified=True)
    data = made.client(0)
    assert data.class_counts.tolist() == [9] * 10
    assert np.bincount(data.test.labels).tolist() == [3] * 10


def test_training_order_mixes_the_classes(federation):
    for stratified in (False, True):
        labels = federation(clients=2, partition="iid", stratified=stratified).client(0).train.labels
        assert len(set(labels[:40].tolist())) > 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"public_samples": 1797},
            "public_samples = 1797 leaves nothing of the 1797 training samples of digits",
        ),
        (
            {"samples_per_class": 175},
            "class 8 of digits has 174 samples, fewer than .* = 175; ask for at most 174",
        ),
        ({"partition": "pathological", "classes_per_client": 11}, "give at most 10"),
        ({"clients": 1798, "partition": "iid"}, "1797 samples are too few for 1798 clients"),
        ({"clients": 1797, "min_samples": 1, "beta": 100.0, "max_redraws": 1}, "2 Dirichlet draws of 1797"),
        ({"dataset": "digit"}, "there is no data set 'digit'; did you mean digits"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(federation, settings, message):
    with pytest.raises(UserError, match=message):
        federation(**settings).client(0)


def test_a_client_too_small_to_be_split_is_refused(federation, write_npz):
    path = str(write_npz(num_train=1, num_test=0))
    with pytest.raises(UserError, match="client 0 gets 1 of 3 samples, too few for a training part of 75%"):
        federation(dataset=path, clients=3, partition="iid").client(0)


@pytest.mark.parametrize(("clients", "least"), [(40, 22), (60, 14), (100, 8)])
def test_many_clients_share_a_small_data_set_and_it_is_said(federation, clients, least):
    made = federation(clients=clients, max_redraws=20)
    rows = rows_of(made, clients)
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(1797))
    assert min(map(len, rows)) == least
    note = made.notes[0]
    assert note.startswith(
        f"digits is small for {clients} clients: the best Dirichlet draw at β = 0.1 left one with "
    )
    assert note.endswith(f"so the largest clients gave some of theirs until all had {least}.")
    again = federation(clients=clients, max_redraws=20)
    assert all(np.array_equal(a, b) for a, b in zip(rows, rows_of(again, clients), strict=True))


def test_a_least_size_that_was_asked_for_is_never_lowered(federation):
    with pytest.raises(
        UserError, match=r"never gave every client 22 samples .*; raise data\.beta or data\.max_redraws"
    ):
        federation(clients=40, min_samples=22, max_redraws=20).client(0)


def test_there_is_nothing_to_say_of_a_partition_that_meets_the_rules(federation):
    assert federation(clients=4).notes == []


def test_clients_that_hold_less_than_a_batch_are_counted(federation, write_npz):
    made = federation(
        dataset=str(write_npz(num_train=20, num_test=0)), clients=5, partition="iid"
    )  # nine of twelve
    assert made.notes == [
        "5 of 5 clients hold less than a batch of 10 training samples and never train; lower train.batch_size or "
        "set train.drop_last=false."
    ]


def test_a_partition_is_drawn_once_for_a_process_and_those_forked_from_it(federation, monkeypatch):
    first = federation(clients=5).client(2)
    monkeypatch.setattr(partition, "dirichlet", None)
    assert np.array_equal(federation(clients=5).client(2).train.indices, first.train.indices)
    with pytest.raises(TypeError):
        federation(clients=6).client(2)


def test_public_and_global_test_must_be_configured(federation):
    with pytest.raises(UserError, match=r"set data\.public_samples"):
        _ = federation().public
    with pytest.raises(UserError, match=r"set data\.global_test"):
        _ = federation().global_test
