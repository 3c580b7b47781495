"""Event files, read by TensorBoard's own reader."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedsim.results.tensorboard import FILE_NAME, EventFile
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


def test_every_finished_round_of_a_run_is_an_event(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.say("asked", round=0, client=1)
    log.say("round_finished", round=0, accuracy=None, train_loss=2.5, clients=3)
    log.say("round_finished", round=1, accuracy=0.25, train_loss=None, clients=3, wire_bytes_up=4096)
    log.close()
    assert [item[:2] for item in scalars(tmp_path, "accuracy")] == [(1, 0.25)]
    assert [item[:2] for item in scalars(tmp_path, "train_loss")] == [(0, 2.5)]
    assert [item[:2] for item in scalars(tmp_path, "clients")] == [(0, 3.0), (1, 3.0)]
    assert [item[:2] for item in scalars(tmp_path, "wire_bytes_up")] == [(1, 4096.0)]
