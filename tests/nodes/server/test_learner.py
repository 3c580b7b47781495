"""Whom a round asks and what it makes of the answers, without sockets, processes or data."""

import csv
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedsim import config
from fedsim.results.folder import RunFolder
from nodes.server.learner import Learner, Plan
from nodes.work import Order, Report

SIZES = {client: 10 * (client + 1) for client in range(10)}


@pytest.fixture
def make_learner(tmp_path):
    """`make_learner(run={"clients": 3})`: a learner with FedProto for 3 classes and 2 features."""
    numbers = itertools.count()

    def make(**sections) -> Learner:
        layer = {"model": {"feature_dim": 2}, "method": {"name": "fedproto"}} | sections
        experiment = config.build([layer])
        federation = SimpleNamespace(num_classes=3, input_shape=(1, 4, 4))
        folder = RunFolder.create(tmp_path / f"run-{next(numbers)}", experiment)
        return Learner(experiment, federation, folder, torch.device("cpu"))

    return make


def report(correct: int, tested: int, loss: float | None = None, **arrays: np.ndarray) -> Report:
    """Counts are floats, as they come off the wire."""
    metrics = {"correct": float(correct), "tested": float(tested)}
    return Report(metrics if loss is None else metrics | {"loss": loss}, {}, arrays)


def rows(*rows: list[float], classes: list[int]) -> dict[str, np.ndarray]:
    return {"prototypes": np.array(rows, np.float32), "class_ids": np.array(classes, np.int32)}


def table(learner: Learner, name: str) -> list[dict[str, str]]:
    with (learner.folder.path / name).open() as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------------------------------ plan


@pytest.mark.parametrize(
    ("clients", "participation", "size"),
    [(10, 1.0, 10), (10, 0.35, 3), (20, 0.1, 2), (7, 0.5, 3), (5, 0.1, 1), (1, 0.01, 1), (100, 0.29, 28)],
)
def test_a_cohort_has_int_m_rho_clients_and_at_least_one(make_learner, clients, participation, size):
    """int, not round, as the published runs have it: 100 × 0.29 is 28.999… in binary."""
    learner = make_learner(run={"clients": clients, "participation": participation})
    for round in range(5):
        cohort = learner.plan(round).cohort
        assert len(cohort) == len(set(cohort)) == size
        assert cohort == sorted(cohort) and set(cohort) <= set(range(clients))


def test_cohorts_depend_on_seed_and_round_alone(make_learner):
    some = {"clients": 20, "participation": 0.5, "rounds": 30}
    first = make_learner(run=some)
    cohorts = [first.plan(round).cohort for round in range(30)]
    again = make_learner(run=some, cluster={"slots": 7, "checkpoint_every": 2}, train={"lr": 0.5})
    assert [again.plan(round).cohort for round in reversed(range(30))] == cohorts[::-1]
    assert len({tuple(cohort) for cohort in cohorts}) > 25
    assert make_learner(run=some | {"seed": 2}).plan(0).cohort != cohorts[0]
    assert set(itertools.chain(*cohorts)) == set(range(20))  # in the long run everyone takes part


def test_all_rounds_train_but_the_last_which_only_evaluates(make_learner):
    learner = make_learner(run={"clients": 4, "rounds": 3})
    assert learner.last_round == 3
    orders = [learner.plan(round).order for round in range(4)]
    assert orders == [Order(0, True, True), Order(1, True, True), Order(2, True, True), Order(3, False, True)]


def test_between_evaluations_only_the_cohort_is_asked(make_learner):
    learner = make_learner(run={"clients": 6, "rounds": 5, "participation": 0.5, "evaluate_every": 3})
    plans = [learner.plan(round) for round in range(6)]
    assert [plan.order.evaluate for plan in plans] == [True, False, False, True, False, True]
    for plan in plans:
        everyone = sorted([*plan.cohort, *plan.others])
        assert everyone == (list(range(6)) if plan.order.evaluate else plan.cohort)


def test_a_checkpoint_asks_everyone_but_a_finished_run_saves_nothing(make_learner):
    learner = make_learner(
        run={"clients": 6, "rounds": 6, "participation": 0.5, "evaluate_every": 5},
        cluster={"checkpoint_every": 2},
    )
    plans = [learner.plan(round) for round in range(7)]
    assert [plan.save for plan in plans] == [False, True, False, True, False, True, False]
    for plan in plans:
        asked = len(plan.cohort) + len(plan.others)
        assert asked == (6 if plan.save or plan.order.evaluate else 3)
    assert not make_learner(run={"clients": 2}).plan(1).save


def test_others_do_not_train():
    plan = Plan(Order(3, True, True), cohort=[1, 4], others=[0, 2], save=False)
    assert plan.order_for(4) == Order(3, True, True)
    assert plan.order_for(0) == Order(3, False, True)


# -------------------------------------------------------------------------------------------------- conclude


def test_further_tests_of_clients_become_accuracies_of_their_own(make_learner):
    """By hand: (3 + 1) of (8 + 2) over the two that report it; a third does not, a second test tested nobody."""
    further = [{"global_correct": 3.0, "global_tested": 8.0}, {"global_correct": 1.0, "global_tested": 2.0}, {}]
    unused = {"trained_correct": 0.0, "trained_tested": 0.0}
    reports = {i: Report(report(1, 4, 0.5).metrics | metrics | unused) for i, metrics in enumerate(further)}
    learner = make_learner(run={"clients": 3}, method={"name": "local"})
    row = learner.conclude(learner.plan(0), reports, SIZES)
    assert (row["accuracy"], row["global_accuracy"], row["trained_accuracy"]) == (0.25, 0.4, None)


def test_accuracy_is_pooled_or_the_mean_of_the_clients(make_learner):
    """By hand: (9 + 5) of (10 + 90) pooled; (9/10 + 5/90) / 2 over clients; nothing tested by the third."""
    reports = {0: report(9, 10, 1.0), 1: report(5, 90, 0.25), 2: report(0, 0, 0.75)}
    pooled, mean = 14 / 100, (0.9 + 5 / 90) / 2
    for metric, accuracy in (("pooled", pooled), ("client_mean", mean)):
        learner = make_learner(run={"clients": 3, "metric": metric}, method={"name": "local"})
        row = learner.conclude(learner.plan(0), reports, SIZES)
        assert row == {
            "round": 0,
            "accuracy": accuracy,
            "pooled_accuracy": pooled,
            "client_mean_accuracy": mean,
            "correct": 14,
            "tested": 100,
            "clients": 3,
            "expected": 3,
            "absent": 0,
            "lost": 0,
            "train_loss": 2.0 / 3,
        }
        assert learner.history == [row]


def test_nobody_tested_is_no_accuracy_rather_than_zero(make_learner):
    learner = make_learner(run={"clients": 2}, method={"name": "local"})
    row = learner.conclude(learner.plan(0), {0: report(0, 0, 0.5), 1: report(0, 0, 1.5)}, SIZES)
    assert row["accuracy"] is None and row["pooled_accuracy"] is None and row["client_mean_accuracy"] is None
    assert (row["tested"], row["train_loss"]) == (0, 1.0)
    assert table(learner, "metrics.csv")[0]["accuracy"] == ""


def test_a_round_without_evaluation_has_losses_only(make_learner):
    learner = make_learner(run={"clients": 1}, method={"name": "local"})
    row = learner.conclude(learner.plan(0), {0: Report({"loss": 0.5})}, SIZES)
    assert row["accuracy"] is None and row["train_loss"] == 0.5


def test_the_last_round_changes_nothing_the_server_knows(make_learner):
    learner = make_learner(run={"clients": 1, "rounds": 1})
    upload = rows([1.0, 2.0], classes=[1])
    learner.conclude(learner.plan(0), {0: report(1, 2, 0.5, **upload)}, SIZES)
    before = learner.down
    row = learner.conclude(learner.plan(1), {0: report(2, 2)}, SIZES)
    assert learner.down is before
    assert row["train_loss"] is None and row["accuracy"] == 1.0


def test_the_server_learns_from_the_cohort_alone(make_learner):
    learner = make_learner(run={"clients": 4, "participation": 0.5})
    plan = learner.plan(0)
    assert len(plan.cohort) == 2
    reports = {client: report(1, 4, 1.0, **rows([2.0, 6.0], classes=[2])) for client in plan.cohort}
    # What others are asked for goes into the metrics, but they have nothing to upload; here one has.
    reports |= {client: report(3, 4, **rows([9.0, 9.0], classes=[0])) for client in plan.others}
    row = learner.conclude(plan, reports, SIZES)
    np.testing.assert_array_equal(learner.down["class_ids"], [2])
    np.testing.assert_array_equal(learner.down["prototypes"], [[2.0, 6.0]])
    assert (row["correct"], row["tested"], row["clients"]) == (8, 16, 4)


def test_arrival_order_changes_no_bit(make_learner):
    """Values whose float32 sum depends on the order of its terms."""
    values = [1e8, 3.0, -1e8, 5e7, 1.0, 0.5, 2.0, -5e7]
    reports = {
        client: report(client, 7 + client, 0.1 * client, **rows([value, -value / 3], classes=[client % 2]))
        for client, value in enumerate(values)
    }
    results = []
    for order in (range(8), reversed(range(8)), (3, 1, 7, 5, 0, 2, 6, 4)):
        learner = make_learner(run={"clients": 8, "metric": "client_mean"})
        row = learner.conclude(learner.plan(0), {client: reports[client] for client in order}, SIZES)
        files = [(learner.folder.path / name).read_bytes() for name in ("metrics.csv", "clients.csv")]
        results.append((row, learner.down["prototypes"].tobytes(), files))
    assert results[0] == results[1] == results[2]
    as_float32 = [np.float32(value) for value in values]
    assert sum(as_float32[::2]) != sum(as_float32[::-1][1::2]), "these values would not notice a wrong order"


def test_what_is_recorded_of_each_client(make_learner):
    learner = make_learner(run={"clients": 2}, method={"name": "local"})
    learner.conclude(learner.plan(0), {1: report(3, 4, 0.25), 0: report(1, 2, 0.1)}, SIZES)
    assert table(learner, "clients.csv") == [
        {"round": "0", "client": "0", "correct": "1", "tested": "2", "loss": "0.1"},
        {"round": "0", "client": "1", "correct": "3", "tested": "4", "loss": "0.25"},
    ]


def test_records_of_the_method_go_to_a_file_of_their_round(make_learner):
    learner = make_learner(run={"clients": 1})
    learner.conclude(learner.plan(0), {0: report(0, 0, 1.0, **rows([0.0, 1.0], classes=[0]))}, SIZES)
    assert (learner.folder.path / "records" / "round-000000.safetensors").is_file()


def test_setups_are_sorted_before_the_method_sees_them(make_learner):
    learner = make_learner(run={"clients": 3})
    seen = []
    learner.server.setup = lambda uploads: seen.extend(uploads) or {}
    uploads = [SimpleNamespace(client=client) for client in (2, 0, 1)]
    assert learner.setup(uploads) == {}
    assert [upload.client for upload in seen] == [0, 1, 2]


# ----------------------------------------------------------------------------------------------------- state


def test_a_restored_learner_goes_on_as_if_nothing_happened(make_learner):
    def upload(round: int) -> dict[int, Report]:
        return {0: report(1, 2, 1.0, **rows([round, 1.0], [2.0, round], classes=[0, 2]))}

    sections = {"run": {"clients": 1}, "method": {"name": "fedtgp", "server_epochs": 3}}
    whole, resumed = make_learner(**sections), make_learner(**sections)
    for round in range(3):
        whole.conclude(whole.plan(round), upload(round), SIZES)
        if round == 1:
            saved, history = whole.state(), [dict(row) for row in whole.history]
            saved = {name: array.copy() for name, array in saved.items()}
    resumed.load_state(saved, history)
    assert resumed.down.keys() == {"prototypes"}
    resumed.conclude(resumed.plan(2), upload(2), SIZES)
    assert resumed.history == whole.history
    assert {name: array.tobytes() for name, array in resumed.state().items()} == {
        name: array.tobytes() for name, array in whole.state().items()
    }


def test_the_server_s_step_is_timed_in_rounds_that_train(make_learner):
    learner = make_learner(run={"clients": 1, "rounds": 2})
    for round in range(3):
        upload = rows([1.0, round], classes=[0]) if round < 2 else {}
        learner.conclude(learner.plan(round), {0: report(1, 2, 0.5, **upload)}, SIZES)
    timed = [(row["round"], row["part"]) for row in table(learner, "server_timings.csv")]
    assert timed == [("0", "aggregation"), ("0", "prototypes"), ("1", "aggregation"), ("1", "prototypes")]
