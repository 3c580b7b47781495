"""A client's options: one description, and the words of a command line as one of its translations."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import Cluster
from nodes.cli.client import command
from nodes.client.options import ClientOptions, IdRange, id_range

CHANGED: dict[str, Any] = {
    "connect": "tcp://10.0.0.1:5555",
    "ids": [0, 1, 2, 7, 20, 21],
    "keys": Path("some keys"),
    "device": "cpu",
    "slots": 3,
    "place": "rack 4",
    "state_dir": Path("elsewhere"),
    "patience": 12.25,
    "heartbeat": 5.0,
    "restarts": 0,
    "max_frame_mib": 16,
    "code": ("./mine.py",),
    "logs": Path("logs"),
}
"""A value for every option that is not its default."""


def parsed(words: list[str]) -> ClientOptions:
    """What `python -m nodes.client` makes of these words."""
    return ClientOptions(**command.make_context("client", list(words)).params)


def test_every_option_is_looked_at_here():
    assert set(CHANGED) == {item.name for item in fields(ClientOptions)}
    assert all(CHANGED[item.name] != item.default for item in fields(ClientOptions))


def test_words_say_everything_and_are_understood():
    options = ClientOptions(**CHANGED)
    assert parsed(options.words()) == options


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {"connect", "ids"}))
def test_words_say_only_what_differs(name):
    plain = ClientOptions(connect="tcp://a:1", ids=[4])
    changed = replace(plain, **{name: CHANGED[name]})
    assert plain.words() == ["--connect", "tcp://a:1", "--ids", "4"]
    assert len(changed.words()) == 6 and parsed(changed.words()) == changed


@given(st.floats(0, 1e9), st.floats(0, 86_400))
def test_no_digit_of_a_duration_is_lost(patience, heartbeat):
    options = ClientOptions(connect="tcp://a:1", ids=[0], patience=patience, heartbeat=heartbeat)
    assert parsed(options.words()) == options


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ids_are_written_as_they_are_read(ids):
    written = id_range(sorted(ids))
    assert IdRange().convert(written, None, None) == sorted(ids)
    assert len(written.split(",")) == sum(client - 1 not in ids for client in ids)  # the fewest ranges there are


def test_an_experiment_decides_what_all_its_clients_share():
    cluster = Cluster(device="cpu", slots=3, patience_seconds=7.0, heartbeat_seconds=2.5, max_frame_mib=16)
    shared = {"device": "cpu", "slots": 3, "patience": 7.0, "heartbeat": 2.5, "max_frame_mib": 16}
    own = {name: value for name, value in CHANGED.items() if name not in shared}
    assert ClientOptions.of(cluster, **own) == ClientOptions(**shared, **own)
    assert ClientOptions.of(Cluster(), connect="a", ids=[0]) == ClientOptions(connect="a", ids=[0])


@pytest.mark.parametrize(("configured", "used"), [(0.0, 5.0), (2.5, 2.5)])
def test_between_machines_clients_send_heartbeats(configured, used):
    options = ClientOptions(connect="tcp://a:1", ids=[0], heartbeat=configured)
    assert options.between_machines() == replace(options, heartbeat=used)
