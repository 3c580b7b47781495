"""The partition rules against published numbers and against a plain formulation of each rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedsim.data import partition
from fedsim.errors import UserError


def even_labels(num_classes: int, per_class: int) -> np.ndarray:
    return np.arange(num_classes * per_class) % num_classes


def pairs(parts: list[np.ndarray], labels: np.ndarray) -> int:
    return sum(len(np.unique(labels[part])) for part in parts)


@pytest.mark.parametrize(
    ("num_classes", "per_class", "smallest", "largest", "num_pairs"),
    [
        (10, 6000, 1164, 5994, 102),  # CIFAR-10, as in the config.json that FedTGP ships
        (10, 7000, 82, 8551, None),  # Fashion-MNIST
        (100, 600, None, None, 921),  # CIFAR-100
    ],
)
def test_dirichlet_gives_the_published_partitions(num_classes, per_class, smallest, largest, num_pairs):
    labels = even_labels(num_classes, per_class)
    least = partition.least_samples(10, 0.75, len(labels), 20)
    random = np.random.RandomState(1)
    parts = partition.dirichlet(labels, num_classes, 20, 0.1, least, 0, random)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == len(labels)
    assert smallest in (None, min(sizes)) and largest in (None, max(sizes))
    assert num_pairs in (None, pairs(parts, labels))


def plain_dirichlet(labels, num_classes, num_clients, beta, least):
    """The rule in words, drawing from numpy's global generator as the published scripts do."""
    while True:
        clients = [[] for _ in range(num_clients)]
        for label in range(num_classes):
            rows = np.array([row for row in range(len(labels)) if labels[row] == label])
            np.random.shuffle(rows)
            shares = np.random.dirichlet([beta] * num_clients)
            for client, own in enumerate(clients):
                if len(own) >= len(labels) / num_clients:
                    shares[client] = 0
            ends = [int(end * len(rows)) for end in np.cumsum(shares / shares.sum())]
            starts = [0, *ends[:-1]]
            ends[-1] = len(rows)
            for own, start, end in zip(clients, starts, ends, strict=True):
                own.extend(rows[start:end])
        if min(map(len, clients)) >= least:
            return clients


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dirichlet_draws_what_the_plain_rule_draws(seed):
    labels = np.random.default_rng(seed).integers(0, 7, 900)
    np.random.seed(seed)
    expected = plain_dirichlet(labels, 7, 6, 0.3, 60)
    parts = partition.dirichlet(labels, 7, 6, 0.3, 60, 500, np.random.RandomState(seed))
    assert [part.tolist() for part in parts] == expected


def test_least_samples_is_a_test_batch_but_at_most_half_an_even_share():
    assert partition.least_samples(10, 0.75, 60_000, 20) == 40
    assert partition.least_samples(10, 0.9, 60_000, 20) == 100
    assert partition.least_samples(10, 0.75, 1000, 50) == 10
    assert partition.least_samples(128, 0.75, 50_000, 200) == 125


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "classes_per_client", "block_size", "ends"),
    [
        (10, 20, 2, 4, [2, 4, 6, 8, 10]),  # classes 0 and 1 to clients 0 to 3, and so on
        (100, 20, 10, 2, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
        (102, 20, 10, 2, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),  # classes 100 and 101 are dropped
        (10, 10, 3, 3, [3, 6, 9, 10]),  # client 9 gets only class 9
        (10, 10, 5, 5, [5, 10]),
        (100, 10, 20, 2, [20, 40, 60, 80, 100]),
        (100, 10, 40, 4, [40, 80, 100]),  # clients 8 and 9 get only 20 classes
    ],
)
def test_pathological_gives_blocks_of_classes_to_blocks_of_clients(
    num_classes, num_clients, classes_per_client, block_size, ends
):
    labels = even_labels(num_classes, 80)
    random = np.random.RandomState(1)
    parts = partition.pathological(labels, num_classes, num_clients, classes_per_client, 40, random)
    starts = [0, *ends[:-1]]
    for client, part in enumerate(parts):
        block = client // block_size
        assert np.unique(labels[part]).tolist() == list(range(starts[block], ends[block]))


def test_pathological_sizes_are_drawn_between_a_tenth_and_an_even_share_and_the_last_gets_the_rest():
    labels = even_labels(10, 700)
    np.random.seed(5)
    drawn = [np.random.randint(17, 175, 3) for _ in range(10)]  # 4 receivers, an even share is 175
    parts = partition.pathological(labels, 10, 20, 2, 40, np.random.RandomState(5))
    for label, sizes in enumerate(drawn):
        block = range(4 * (label // 2), 4 * (label // 2) + 4)
        held = [int((labels[parts[client]] == label).sum()) for client in block]
        assert held == [*sizes, 700 - sum(sizes)]


def test_pathological_takes_rows_in_dataset_order():
    labels = even_labels(4, 50)
    parts = partition.pathological(labels, 4, 4, 2, 4, np.random.RandomState(1))
    for part in parts:
        for label in np.unique(labels[part]):
            own = part[labels[part] == label]
            assert np.array_equal(own, np.arange(own[0], own[-1] + 1, 4))


def test_iid_deals_every_class_like_cards_and_goes_on_where_the_last_class_ended():
    labels = np.repeat([0, 1, 2], [10, 11, 13])
    parts = partition.iid(labels, 4)
    counts = [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    # 10 cards of class 0 go to clients 0 1 2 3 0 1 2 3 0 1, class 1 goes on with client 2, class 2 with client 1.
    assert counts == [[3, 3, 3], [3, 2, 4], [2, 3, 3], [2, 3, 3]]


def test_iid_works_with_more_clients_than_a_class_has_samples():
    labels = np.repeat(np.arange(10), 7)
    parts = partition.iid(labels, 20)
    assert {len(part) for part in parts} == {3, 4}
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(70))


@given(
    per_class=st.lists(st.integers(20, 60), min_size=1, max_size=6),
    num_clients=st.integers(1, 8),
    rule=st.sampled_from(["dirichlet", "pathological", "iid"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=60)
def test_no_sample_is_used_twice_and_equal_seeds_give_equal_parts(per_class, num_clients, rule, seed):
    num_classes = len(per_class)
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(num_classes), per_class))

    def draw() -> list[np.ndarray]:
        random = np.random.RandomState(seed)
        match rule:
            case "dirichlet":
                return partition.dirichlet(labels, num_classes, num_clients, 0.5, 1, 2000, random)
            case "pathological":
                every_class = least = num_classes
                return partition.pathological(labels, num_classes, num_clients, every_class, least, random)
            case "iid":
                return partition.iid(labels, num_clients)

    parts = draw()
    assert len(parts) == num_clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(np.array_equal(part, again) for part, again in zip(parts, draw(), strict=True))


@given(
    num_classes=st.integers(1, 8),
    num_clients=st.integers(1, 8),
    share=st.floats(0, 1),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=60)
def test_pathological_clients_hold_no_more_classes_than_asked(num_classes, num_clients, share, seed):
    labels = even_labels(num_classes, 30)
    limit = 1 + int(share * (num_classes - 1))
    random = np.random.RandomState(seed)
    parts = partition.pathological(labels, num_classes, num_clients, limit, num_classes, random)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert all(1 <= len(np.unique(labels[part])) <= limit for part in parts)
    dropped = np.setdiff1d(np.arange(num_classes), labels[rows])
    assert np.array_equal(dropped, np.arange(num_classes - len(dropped), num_classes))


@given(size=st.integers(2, 200), fraction=st.floats(0.5, 0.95), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_split_equals_scikit_learns(size, fraction, seed):
    rows = np.arange(1000, 1000 + size)
    part = partition.split(rows, fraction, np.random.RandomState(seed))
    train, test = train_test_split(
        rows, train_size=fraction, shuffle=True, random_state=np.random.RandomState(seed)
    )
    assert part.train.tolist() == train.tolist() and part.test.tolist() == test.tolist()


@given(per_class=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_stratified_split_rounds_each_class_to_the_nearest(per_class, seed):
    labels = np.repeat(np.arange(len(per_class)), per_class)
    rows = np.arange(len(labels)) + 50
    part = partition.stratified_split(rows, labels, 0.75, np.random.RandomState(seed))
    for label, size in enumerate(per_class):
        trained = int((labels[part.train - 50] == label).sum())
        assert abs(trained - 0.75 * size) <= 0.5
        assert trained >= 1 or size == 0
    assert np.array_equal(np.sort(np.concatenate([part.train, part.test])), rows)


@pytest.mark.parametrize(("per_class", "shots"), [(30, 23), (12, 9), (3, 2)])
def test_stratified_split_gives_the_shots_of_fedktl(per_class, shots):
    labels = even_labels(100, per_class)
    part = partition.stratified_split(np.arange(len(labels)), labels, 0.75, np.random.RandomState(1))
    assert np.bincount(labels[part.train]).tolist() == [shots] * 100


def test_a_dirichlet_partition_that_cannot_be_had_ends_with_numbers_and_remedy():
    labels = even_labels(2, 100)
    with pytest.raises(UserError, match=r"6 Dirichlet draws of 200 samples for 20 clients at β = 0\.01 never"):
        partition.dirichlet(labels, 2, 20, 0.01, 5, 5, np.random.RandomState(1))
    with pytest.raises(UserError, match=r"20 clients with at least 11 samples each need 220 samples, but there"):
        partition.dirichlet(labels, 2, 20, 0.1, 11, 5, np.random.RandomState(1))


def test_pathological_refuses_more_classes_than_exist():
    with pytest.raises(
        UserError, match=r"classes_per_client = 11 is more than there are classes; give at most 10"
    ):
        partition.pathological(even_labels(10, 50), 10, 5, 11, 1, np.random.RandomState(1))


def test_pathological_refuses_a_class_that_is_too_small_to_share():
    labels = np.repeat([0, 1], [100, 5])
    with pytest.raises(UserError, match="class 1 has 5 samples, too few to be shared by 10 clients"):
        partition.pathological(labels, 2, 10, 2, 0, np.random.RandomState(1))


def test_pathological_refuses_to_leave_clients_empty():
    # An even share is 2, so sizes are drawn from {0, 1}; without a least size some are 0.
    with pytest.raises(UserError, match=r"1 of 1 classes per client leave \d+ of 20 clients without samples"):
        partition.pathological(np.zeros(40, dtype=np.int64), 1, 20, 1, 0, np.random.RandomState(1))


def test_iid_refuses_fewer_samples_than_clients():
    with pytest.raises(UserError, match="3 samples are too few for 4 clients"):
        partition.iid(np.zeros(3, dtype=np.int64), 4)


@pytest.mark.parametrize("beta", [1e-3, 1e-5, 1e-300])
def test_the_smallest_betas_end_with_an_error_and_not_with_a_warning(beta):
    with pytest.raises(UserError, match=r"raise data\.beta"):
        partition.dirichlet(even_labels(3, 50), 3, 10, beta, 5, 5, np.random.RandomState(1))


def test_the_best_draw_is_handed_over_when_none_is_good_enough():
    """It is the draw that a lower limit would have taken."""
    labels = even_labels(4, 50)
    with pytest.raises(
        partition.TooUneven, match=r"never gave every client 40 samples \(the best draw: \d+\)"
    ) as caught:
        partition.dirichlet(labels, 4, 5, 0.1, 40, 50, np.random.RandomState(1))
    smallest = caught.value.smallest
    taken = partition.dirichlet(labels, 4, 5, 0.1, smallest, 50, np.random.RandomState(1))
    assert [np.concatenate(pieces).tolist() for pieces in caught.value.best] == [rows.tolist() for rows in taken]
    assert min(map(len, taken)) == smallest < 40


def test_levelling_takes_from_the_largest_class_of_the_largest_client():
    rows = np.arange(20)
    held = [[rows[:9], rows[9:12]], [rows[12:13], rows[13:13]], [rows[13:15], rows[15:20]]]  # 12, 1 and 7
    levelled = partition.levelled(held, 3)
    assert [part.tolist() for part in levelled] == [
        [*range(2, 12)],  # two of its nine of the first class have gone
        [12, 0, 1],
        [*range(13, 20)],
    ]
    assert [len(pieces[0]) for pieces in held] == [9, 1, 2], "the draw itself is left as it was"


def test_levelling_gives_every_client_half_of_an_even_share():
    labels = even_labels(10, 18)
    with pytest.raises(partition.TooUneven) as caught:
        partition.dirichlet(labels, 10, 30, 0.05, 3, 20, np.random.RandomState(3))
    parts = partition.levelled(caught.value.best, 3)
    assert min(map(len, parts)) == 3
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(180))
