"""The event log: one JSON line an event, at once, and to a watcher that may stop listening."""

import json
import os
import time

import pytest

from fedsim.config import Experiment
from nodes.server.events import EventLog, pipe_watcher


def test_an_event_is_a_line_as_soon_as_it_is_said(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", None, Experiment())
    before = time.time()
    log.say("answered", round=3, client=7, seconds=0.25)
    log.say("refused", reason='two\nlines and a "quote"')
    lines = (tmp_path / "events.jsonl").read_text().splitlines()  # not closed yet
    first, second = map(json.loads, lines)
    assert before - 0.001 <= first.pop("time") <= time.time() + 0.001
    assert first == {"event": "answered", "round": 3, "client": 7, "seconds": 0.25}
    assert second["reason"] == 'two\nlines and a "quote"'
    log.close()


def test_a_resumed_run_goes_on_with_the_same_file(tmp_path):
    for name in ("started", "restarted"):
        log = EventLog(tmp_path / "events.jsonl", None, Experiment())
        log.say(name)
        log.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", "restarted"]


def test_the_watcher_gets_what_the_file_gets(tmp_path):
    seen = []
    log = EventLog(tmp_path / "events.jsonl", seen.append, Experiment())
    log.say("joined", clients=2)
    log.close()
    assert seen == [json.loads((tmp_path / "events.jsonl").read_text())]


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def test_events_go_through_a_pipe_line_by_line(pipe):
    watch = pipe_watcher(pipe[1])
    watch({"event": "a"})
    watch({"event": "b", "clients": [1, 2]})
    lines = os.read(pipe[0], 1000).split(b"\n")
    assert [json.loads(line) for line in lines if line] == [{"event": "a"}, {"event": "b", "clients": [1, 2]}]


def test_a_run_goes_on_when_nobody_watches_any_more(pipe):
    watch = pipe_watcher(pipe[1])
    watch({"event": "a"})
    os.close(pipe.pop(0))
    watch({"event": "b"})  # the reader is gone: no error ...
    reader, writer = os.pipe()
    os.dup2(writer, pipe[0])  # the number stands for something else by now
    watch({"event": "c"})  # ... and no further attempt
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):  # nothing came
        os.read(reader, 1000)
    pipe += [reader, writer]
