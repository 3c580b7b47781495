"""F1, AUC, and the spread over clients."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from fedsim.config import Run
from fedsim.learning.evaluation import macro_f1, micro_auc
from fedsim.metrics import describe, round_row


@pytest.mark.parametrize("seed", range(5))
def test_f1_and_auc_are_those_of_scikit_learn(seed):
    draw = np.random.default_rng(seed)
    scores, labels = np.round(draw.normal(size=(40, 5)), 1), draw.integers(0, 4, 40)  # with ties
    predicted = scores.argmax(axis=1)
    found = macro_f1(torch.from_numpy(predicted), torch.from_numpy(labels))
    assert found == pytest.approx(f1_score(labels, predicted, average="macro"))
    auc = micro_auc(torch.from_numpy(scores), torch.from_numpy(labels))
    assert auc == pytest.approx(roc_auc_score(np.eye(5)[labels], scores, average="micro"))
    scores[0, 0] = np.nan
    assert np.isnan(micro_auc(torch.from_numpy(scores), torch.from_numpy(labels)))


def test_clients_report_them_only_where_they_are_wanted(toy):
    from fedsim.config import Experiment

    plain = toy("local").clients[0].evaluate()
    assert set(plain) == {"correct", "tested"}
    some = toy("local").clients[0]
    run = Run(clients=4, measures="all")
    object.__setattr__(some.context, "experiment", Experiment(run=run, train=some.context.experiment.train))
    assert set(some.evaluate()) == {"correct", "tested", "macro_f1", "micro_auc"}
    assert {name: some.evaluate()[name] for name in plain} == plain


def test_a_row_has_the_spread_of_clients_and_auc_weighs_by_samples():
    clients = [{"correct": float(n), "tested": 10.0, "micro_auc": n / 20, "macro_f1": n / 10} for n in range(10)]
    clients += [  # the last one could not be tested
        {"correct": 30.0, "tested": 30.0, "micro_auc": 1.0, "macro_f1": 0.0},
        {"correct": 0.0, "tested": 0.0},
    ]
    row = round_row(0, clients, {}, "pooled", spread=True)
    shares = [n / 10 for n in range(10)] + [1.0]
    assert row["client_deviation"] == pytest.approx(np.std(shares))
    assert row["worst_tenth_accuracy"] == 0.0
    assert row["micro_auc"] == pytest.approx((sum(10 * n / 20 for n in range(10)) + 30) / 130)
    assert row["macro_f1"] == pytest.approx(4.5 / 11)
    twenty = [{"correct": float(n), "tested": 20.0} for n in range(20)]
    assert round_row(0, twenty, {}, "pooled", spread=True)["worst_tenth_accuracy"] == pytest.approx(0.025)
    assert "client_deviation" not in round_row(0, clients, {}, "pooled")
    assert describe("micro_auc").title == "AUC (micro)"
