"""Event files, read by TensorBoard's own reader."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, list_session_groups
from tensorboard.plugins.hparams.backend_context import Context

from fedsim.config import Experiment, build
from fedsim.results.trackers.tensorboard import FILE_NAME, EventFile
from nodes.server.events import EventLog


def scalars(folder, tag):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(item.step, item.value, item.wall_time) for item in accumulator.Scalars(tag)]


def write(path, rounds):
    file = EventFile(path)
    for round in rounds:
        file.add(round, 1000.5 + round, {"accuracy": round / 1024, "train_loss": -1.5})
    return file


def test_tensorboard_reads_what_was_written(tmp_path):
    write(tmp_path / FILE_NAME, range(300))  # steps and lengths of one byte and of two
    assert scalars(tmp_path, "accuracy") == [(round, round / 1024, 1000.5 + round) for round in range(300)]
    assert {value for _, value, _ in scalars(tmp_path, "train_loss")} == {-1.5}


def test_a_long_name_is_no_problem(tmp_path):
    EventFile(tmp_path / FILE_NAME).add(7, 1.0, {"ü" * 100: 2.0})
    assert scalars(tmp_path, "ü" * 100) == [(7, 2.0, 1.0)]


def test_numbers_that_do_not_fit_are_no_problem(tmp_path):
    """A file has 32 bits for each: what is larger is the largest, and what is not a number stays so."""
    EventFile(tmp_path / FILE_NAME).add(0, 1.0, {"huge": 1e300, "low": -math.inf, "none": math.nan})
    values = [scalars(tmp_path, tag)[0][1] for tag in ("huge", "low", "none")]
    assert values[0] == -values[1] == np.finfo(np.float32).max and math.isnan(values[2])


@pytest.mark.parametrize(("last", "kept"), [(199, range(200)), (0, range(1)), (-1, range(0)), (500, range(300))])
def test_a_resumed_run_goes_on_where_it_was(tmp_path, last, kept):
    file = write(tmp_path / FILE_NAME, range(300))
    file.forget_after(last)
    file.add(1000, 9.0, {"accuracy": 0.5})
    assert [step for step, _, _ in scalars(tmp_path, "accuracy")] == [*kept, 1000]


@pytest.mark.parametrize("length", [1, 11, 13, 40])
def test_what_a_crash_cut_off_is_dropped(tmp_path, length):
    file = write(tmp_path / FILE_NAME, range(3))
    whole = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole + whole[-70:][:length])
    file.forget_after(5)
    assert (tmp_path / FILE_NAME).read_bytes() == whole


def test_nothing_to_forget(tmp_path):
    EventFile(tmp_path / FILE_NAME).forget_after(3)
    assert not (tmp_path / FILE_NAME).exists()


def test_every_finished_round_of_a_run_is_an_event_with_numbers_in_groups(tmp_path):
    (tmp_path / "clients.csv").write_text("round,client,correct,tested,loss,ece\n")
    log = EventLog(tmp_path / "events.jsonl", None, Experiment())
    log.say("asked", round=0, client=1)
    log.say("round_finished", round=0, accuracy=None, train_loss=2.5, clients=3, ece=0.5, server_loss=1)
    log.say("round_finished", round=1, accuracy=0.25, train_loss=None, clients=3, wire_bytes_up=4096)
    log.close()
    assert [item[:2] for item in scalars(tmp_path, "accuracy/accuracy")] == [(1, 0.25)]
    assert [item[:2] for item in scalars(tmp_path, "clients/train_loss")] == [(0, 2.5)]
    assert [item[:2] for item in scalars(tmp_path, "clients/clients")] == [(0, 3.0), (1, 3.0)]
    assert [item[:2] for item in scalars(tmp_path, "clients/ece")] == [(0, 0.5)]
    assert [item[:2] for item in scalars(tmp_path, "server/server_loss")] == [(0, 1.0)]
    assert [item[:2] for item in scalars(tmp_path, "bytes/wire_up")] == [(1, 4096.0)]


def test_the_hparams_page_knows_the_settings_and_how_a_run_ended(tmp_path):
    """As TensorBoard's own page is made: sessions of one family are one group."""
    for seed in (1, 2):
        folder = tmp_path / f"run-{seed}"
        folder.mkdir()
        experiment = build(
            [{"method": {"name": "fedtgp", "tau": 7}, "run": {"seed": seed}, "train": {"shuffle": True}}]
        )
        log = EventLog(folder / "events.jsonl", None, experiment)
        log.say("round_finished", round=0, accuracy=0.5)
        log.say("finished", summary={"completed": seed == 1})
        log.close()
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    context = Context(TBContext(data_provider=MultiplexerDataProvider(multiplexer, str(tmp_path))))
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=9, allowed_statuses=list(api_pb2.Status.values()), include_metrics=True
    )
    found = list_session_groups.Handler(RequestContext(), context, "", request).run()
    (group,) = found.session_groups
    assert group.hparams["method.tau"].number_value == 7
    assert group.hparams["method.name"].string_value == "fedtgp"
    assert group.hparams["train.shuffle"].bool_value is True
    assert "cluster.slots" not in group.hparams
    assert {session.name: session.status for session in group.sessions} == {
        "run-1": api_pb2.STATUS_SUCCESS, "run-2": api_pb2.STATUS_FAILURE,
    }  # fmt: skip


def test_a_file_that_cannot_be_written_does_not_harm_the_run(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    log = EventLog(tmp_path / "events.jsonl", None, Experiment())
    log.say("round_finished", round=0, accuracy=0.5)
    log.say("round_finished", round=1, accuracy=0.5)
    log.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_whoever_wants_no_file_has_none(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", None, build([{"cluster": {"track": ""}}]))
    log.say("round_finished", round=0, accuracy=0.5)
    log.close()
    assert not (tmp_path / FILE_NAME).exists()
