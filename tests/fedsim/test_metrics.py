"""What is reported, what becomes of it, and what people see of it: numbers worked out by hand."""

import math

import pytest

from fedsim.errors import ContractError
from fedsim.metrics import (
    ROUND_COLUMNS,
    Attendance,
    best_and_last,
    check_metrics,
    describe,
    further_shares,
    number,
    recorded,
    round_row,
    summary,
)
from protocol.codec import decode, encode
from protocol.messages import Result

NAN, INF = math.nan, math.inf


def own_columns(row):
    return {name: value for name, value in row.items() if name not in ROUND_COLUMNS}


# ---------------------------------------------------------------------------------------------------- pooling


def test_counts_are_pooled_and_losses_averaged():
    """(9 + 5) of (10 + 90) pooled; (9/10 + 5/90) / 2 over those that tested anything."""
    clients = [
        {"correct": 9.0, "tested": 10.0, "loss": 1.0},
        {"correct": 5.0, "tested": 90.0, "loss": 0.25},
        {"correct": 0.0, "tested": 0.0},
    ]
    row = round_row(4, clients, {}, "pooled")
    assert row == {
        "round": 4,
        "accuracy": 0.14,
        "pooled_accuracy": 0.14,
        "client_mean_accuracy": (0.9 + 5 / 90) / 2,
        "correct": 14,
        "tested": 100,
        "clients": 3,
        "expected": 3,
        "absent": 0,
        "lost": 0,
        "train_loss": 0.625,
    }
    assert tuple(row) == ROUND_COLUMNS
    assert round_row(4, clients, {}, "client_mean")["accuracy"] == row["client_mean_accuracy"]


def test_a_pair_of_any_name_becomes_an_accuracy_of_that_name():
    clients = [
        {"logit_correct": 1.0, "logit_tested": 4.0, "top_5_correct": 2.0, "top_5_tested": 2.0},
        {"logit_correct": 3.0, "logit_tested": 12.0},
        {"unseen_correct": 0.0, "unseen_tested": 0.0},
    ]
    row = own_columns(round_row(0, clients, {}, "pooled"))
    assert row == {"logit_accuracy": 0.25, "top_5_accuracy": 1.0, "unseen_accuracy": None}


def test_other_scalars_are_averaged_over_the_clients_that_reported_them():
    clients = [{"ece": 0.1, "depth": 2.0}, {"ece": 0.3}, {"loss": 5.0}]
    assert own_columns(round_row(0, clients, {}, "pooled")) == {"ece": 0.2, "depth": 2.0}


def test_what_the_server_says_comes_last_and_keeps_its_kind():
    row = round_row(0, [{"ece": 0.5}], {"iterations": 7, "margin": 0.25}, "pooled")
    assert list(own_columns(row)) == ["ece", "iterations", "margin"]
    assert isinstance(row["iterations"], int) and row["margin"] == 0.25


def test_a_truth_value_is_a_number_in_the_file():
    row = round_row(0, [], {"converged": True}, "pooled")
    assert str(row["converged"]) == "1.0"


# ------------------------------------------------------------------------------------------------- not finite


def test_what_is_not_finite_is_not_averaged():
    clients = [{"auc": 0.5, "gap": INF}, {"auc": NAN, "gap": -INF}, {"auc": 1.0}]
    assert own_columns(round_row(0, clients, {}, "pooled")) == {"auc": 0.75, "gap": None}


@pytest.mark.parametrize("losses", [(1.0, NAN), (INF, -INF), (1.7e308, 1.7e308), (INF,)])
def test_a_training_that_went_wrong_shows_in_the_mean_loss(losses):
    row = round_row(0, [{"loss": loss} for loss in losses], {}, "pooled")
    assert not math.isfinite(row["train_loss"])


def test_what_is_not_finite_is_never_the_best():
    points = [(0, None), (1, 0.5), (2, NAN), (3, INF), (4, 0.25), (5, 0.5), (6, NAN)]
    assert best_and_last("accuracy", points) == (0.5, 1, 0.5)  # the earliest of equals; the last that was measured
    nothing = [(0, NAN), (1, None)]
    assert best_and_last("accuracy", nothing) is None and best_and_last("accuracy", []) is None


def test_a_client_s_row_has_what_it_said():
    given = {"correct": 3.0, "tested": 4.0, "trained_correct": 2.0, "trained_tested": 4.0, "loss": NAN, "ece": 2.0}
    row = recorded(given)
    assert repr(row) == (
        "{'correct': 3, 'tested': 4, 'trained_correct': 2, 'trained_tested': 4, 'loss': nan, 'ece': 2.0}"
    )


# ---------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "name", ["accuracy", "round", "client", "clients", "train_loss", "seconds", "event", "time", "wire_bytes_up"]
)
def test_names_of_the_project_are_refused(name):
    """They would replace columns of a file, or break the event of the round."""
    with pytest.raises(ContractError, match=rf"^here: metric '{name}' has a name that is taken; give it another$"):
        check_metrics({"correct": 1.0, "tested": 1.0, name: 0.5}, "here")
    with pytest.raises(ContractError, match=rf"^server, round 3: metric '{name}' has a name that is taken"):
        round_row(3, [], {name: 0.5}, "pooled")


@pytest.mark.parametrize("name", ["", "a,b", "two words", "x\n", "$x^$", "n" * 65])
def test_names_that_no_file_or_picture_can_hold_are_refused(name):
    with pytest.raises(
        ContractError, match=r"^here: a metric is called .*; use letters, digits and _ \. / - only$"
    ):
        check_metrics({name: 0.5}, "here")


def test_one_name_cannot_mean_two_things():
    with pytest.raises(ContractError, match="metric 'logit_accuracy' has a name that is taken"):
        check_metrics({"logit_correct": 1.0, "logit_tested": 2.0, "logit_accuracy": 0.5}, "here")
    with pytest.raises(ContractError, match="server, round 0: metric 'ece' has a name that is taken"):
        round_row(0, [{"ece": 0.5}], {"ece": 0.5}, "pooled")


def test_no_more_are_taken_than_an_answer_can_carry():
    many = {f"x{number}": 0.0 for number in range(65)}
    said = r"^here: 65 metrics, and a client may report 64 a round; report fewer$"
    with pytest.raises(ContractError, match=said):
        check_metrics(many, "here")
    del many["x0"]
    check_metrics(many, "here")
    result = Result(run="r", round=0, attempt=0, metrics=many, seconds={})
    assert decode(encode(result)).message == result


def test_names_of_methods_pass():
    check_metrics({"correct": 1.0, "tested": 2.0, "loss": NAN, "ece": 0.1, "kd/loss": 1.0, "top-5": 1.0}, "here")


def test_a_metric_is_a_number():
    assert number("x", True) == 1.0
    for value, shown in (("many", "'many'"), (None, "None"), ([1, 2], r"\[1, 2\]")):
        with pytest.raises(ContractError, match=rf"^metric 'x' is {shown}, which is not a number$"):
            number("x", value)
    with pytest.raises(ContractError, match="metric 'x' is 'many'"):
        round_row(0, [], {"x": "many"}, "pooled")


# ----------------------------------------------------------------------------------------------------- people


def test_known_metrics_have_words_and_others_their_name():
    assert describe("trained_accuracy").title == "clients before distillation"
    assert describe("trained_accuracy").label == "before distillation"
    logits = describe("logit_accuracy")
    assert (logits.title, logits.label, logits.is_share, logits.plot) == (
        "clients by logits", "by logits", True, "accuracy",
    )  # fmt: skip
    entropy = describe("mean_entropy")
    assert (entropy.title, entropy.is_share, entropy.plot) == ("mean entropy", False, "panel")


def test_a_number_in_words():
    assert describe("server_accuracy").text(0.98765) == "98.77 %"
    assert [describe("ece").text(value) for value in (0.123456789, 12, 1e-9, None, NAN, INF)] == [
        *("0.123457", "12", "1e-09", "–", "–", "–")
    ]


def test_what_was_learned():
    history = [
        {"round": 0, "accuracy": None, "own_accuracy": 0.5},
        {"round": 1, "accuracy": 0.5, "own_accuracy": None, "server_accuracy": 0.25, "f1": 0.9},
        {"round": 2, "accuracy": 0.25, "server_accuracy": NAN, "empty_accuracy": None},
    ]
    assert summary(history) == {
        "best_accuracy": 0.5,
        "best_round": 1,
        "final_accuracy": 0.25,
        "partial_rounds": [],
        "accuracy_by_round": {"1": 0.5, "2": 0.25},
        "further_accuracies": {
            "server_accuracy": {"best": 0.25, "best_round": 1, "last": 0.25},
            "own_accuracy": {"best": 0.5, "best_round": 0, "last": 0.5},
        },
    }
    nothing = summary([{"round": 0, "accuracy": None}])
    assert nothing["best_accuracy"] is None and nothing["best_round"] is None and nothing["final_accuracy"] is None


def test_the_least_deviation_is_the_best_one():
    history = [
        {"round": round, "accuracy": 0.5, "client_deviation": deviation, "worst_tenth_accuracy": 0.5 - deviation}
        for round, deviation in enumerate((0.5, 0.0, 0.25))
    ]
    found = summary(history)["further_accuracies"]
    assert found["client_deviation"] == {"best": 0.0, "best_round": 1, "last": 0.25}
    assert found["worst_tenth_accuracy"]["best_round"] == 1


def test_a_round_of_fewer_clients_is_neither_best_nor_last():
    """The easy clients that are left would make it the best of all."""
    history = [
        {"round": 1, "accuracy": 0.5, "lost": 0},
        {"round": 2, "accuracy": 0.6, "lost": 0},
        {"round": 3, "accuracy": 0.95, "lost": 3},
    ]
    found = summary(history)
    assert (found["best_accuracy"], found["best_round"], found["final_accuracy"]) == (0.6, 2, 0.6)
    assert found["partial_rounds"] == [3] and found["accuracy_by_round"]["3"] == 0.95
    asked_for = summary(history, count_partial=True)
    assert (asked_for["best_accuracy"], asked_for["best_round"], asked_for["final_accuracy"]) == (0.95, 3, 0.95)


def test_who_a_row_is_about():
    row = round_row(0, [{"loss": 1.0}] * 4, {}, "pooled", Attendance(expected=6, absent=14))
    assert (row["clients"], row["expected"], row["absent"], row["lost"]) == (4, 6, 14, 2)


def test_shares_beside_the_accuracy_of_clients():
    names = ["round", "accuracy", "b_accuracy", "f1", "global_accuracy", "a_accuracy", "server_accuracy"]
    assert further_shares(names) == ["server_accuracy", "global_accuracy", "b_accuracy", "a_accuracy"]
