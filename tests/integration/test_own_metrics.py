"""What a method reports of its own is in every file and on the page, and no other file was edited for it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Run, rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedsim.results.load import load
from fedsim.results.report.page import write_report

METHOD = '''
"""FedProto whose halves have something to say: numbers that anyone can work out."""
import math
from dataclasses import replace
import torch
from fedsim.methods import fedproto
from fedsim.methods.fedproto import Config, contract

class Client(fedproto.Client):
    def evaluate(self):
        client = self.context.client
        return super().evaluate() | {"calm_correct": client, "calm_tested": 8, "doubt": 0.25 * client}

    def train(self, round):
        client = self.context.client
        late = {"late": 10.0 * round} if round else {}
        auc = math.nan if client == 1 else torch.tensor(0.5 + round / 4)
        return super().train(round) | {"auc": auc} | late

class Server(fedproto.Server):
    def aggregate(self, round, uploads):
        step = super().aggregate(round, uploads)
        return replace(step, metrics=step.metrics | {"mood": torch.tensor(round + 0.5), "steps": 3 * round})
'''

CLIENTS = {
    "calm_correct": ["0", "1", "2", "3"],
    "calm_tested": ["8"] * 4,
    "doubt": ["0.0", "0.25", "0.5", "0.75"],
    "auc": {0: ["0.5", "nan", "0.5", "0.5"], 1: ["0.75", "nan", "0.75", "0.75"], 3: [""] * 4},
    "late": {0: [""] * 4, 1: ["10.0"] * 4, 3: [""] * 4},
}
"""Column of clients.csv -> the fields of the four clients, always or by round; round 3 only evaluates."""

ROUNDS = {
    "calm_accuracy": [0.1875] * 4,  # 0 + 1 + 2 + 3 of 32
    "doubt": [0.375] * 4,
    "auc": [0.5, 0.75, 1.0, None],  # over the three that know it
    "late": [None, 10.0, 20.0, None],
    "mood": [0.5, 1.5, 2.5, None],
    "steps": [0, 3, 6, None],
}
"""Column of metrics.csv -> its values in rounds 0 to 3."""


@pytest.fixture(params=["cluster", "in process"])
def folder(request: pytest.FixtureRequest, run_changed: Callable[..., Run]) -> Path:
    options = ("--in-process",) if request.param == "in process" else ()
    return run_changed(*options, source=METHOD).succeed().folder


def test_own_metrics_are_everywhere(folder: Path) -> None:
    of_clients, of_rounds = rows(folder / "clients.csv"), rows(folder / "metrics.csv")
    assert list(of_clients[0])[:5] == ["round", "client", "correct", "tested", "loss"]
    for name, wanted in CLIENTS.items():
        for round in (0, 1, 3):
            fields = [row[name] for row in of_clients if row["round"] == str(round)]
            assert fields == (wanted[round] if isinstance(wanted, dict) else wanted), (name, round)
    for name, values in ROUNDS.items():
        assert [row[name] for row in of_rounds] == ["" if value is None else str(value) for value in values], name

    board = EventAccumulator(str(folder))
    board.Reload()
    tags = {tag.rpartition("/")[2]: tag for tag in board.Tags()["scalars"]}
    for name, values in ROUNDS.items():
        known = {round: value for round, value in enumerate(values) if value is not None}
        assert {event.step: event.value for event in board.Scalars(tags[name])} == known, name

    run = load(folder)
    assert run.client_shares.query("round == 3")["calm_accuracy"].tolist() == [0.0, 0.125, 0.25, 0.375]
    assert run.series("auc").to_dict() == {0: 0.5, 1: 0.75, 2: 1.0}
    assert run.summary is not None
    best_and_last = {"best": 0.1875, "best_round": 0, "last": 0.1875}
    assert run.summary["further_accuracies"]["calm_accuracy"] == best_and_last

    page = write_report(folder).read_text()
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page)
    for name in ROUNDS:
        assert name in cells, "in the table of metrics"
    assert {"last calm", "last doubt", "last auc", "last late"} <= set(cells), "in the table of clients"
    assert "37.50 %" in cells  # the last calm accuracy of client 3
    assert "<dt>calm accuracy</dt><dd>18.75 %" in page
    drawn = re.findall(r"<!-- (.*?) -->", (folder / "plots" / "metrics.svg").read_text())
    assert {"doubt", "auc", "late", "mood", "steps"} <= set(drawn) and "calm accuracy" not in drawn
    assert "calm 18.8 %" in (folder / "plots" / "accuracy_by_round.svg").read_text()


def test_a_name_that_is_taken_stops_the_run_with_a_sentence(run_changed: Callable[..., Run]) -> None:
    run = run_changed(server='step.metrics["accuracy"] = 1.0')
    assert run.command.wait() == 1
    assert run.summary["reason"] == "server, round 0: metric 'accuracy' has a name that is taken; give it another"


def test_a_client_s_metric_that_is_no_number_is_named(run_changed: Callable[..., Run]) -> None:
    run = run_changed(source=METHOD.replace("0.25 * client", "'much'"))
    assert run.command.wait() == 1
    assert re.search(
        r"client \d failed in round 0: metric 'doubt' is 'much', which is not a number", run.summary["reason"]
    )
