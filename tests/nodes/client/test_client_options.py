"""A client's options: one description, and the words of a command line as one of its translations."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.config import Cluster
from fedsim.errors import UserError
from nodes.cli.client import command
from nodes.client.options import ClientOptions, IdRange, id_range

CHANGED: dict[str, Any] = {
    "connect": "tcp://10.0.0.1:5555",
    "ids": [0, 1, 2, 7, 20, 21],
    "port_step": 1,
    "keys": Path("some keys"),
    "device": "cpu",
    "slots": 3,
    "compute": "shared",
    "place": "rack 4",
    "state_dir": Path("elsewhere"),
    "patience": 12.25,
    "heartbeat": 7.5,
    "restarts": 0,
    "max_frame_mib": 16,
    "code": ("./mine.py",),
    "logs": Path("logs"),
}
"""A value for every option that is not its default."""


def parsed(words: list[str]) -> ClientOptions:
    """What `python -m nodes.client` makes of these words."""
    given = command.make_context("client", list(words)).params
    assert given.pop("bundle_file") is None and given.pop("address_file") is None
    assert ClientOptions(**given) == ClientOptions.parse(words)
    return ClientOptions(**given)


def test_every_option_is_looked_at_here():
    assert set(CHANGED) == {item.name for item in fields(ClientOptions)}
    assert all(CHANGED[item.name] != item.default for item in fields(ClientOptions))


def test_behind_a_relay_every_client_has_an_address_of_its_own():
    assert ClientOptions(connect="tcp://a:7", ids=[0]).address_of(5) == "tcp://a:7"
    assert ClientOptions(connect="tcp://[::1]:7", ids=[0], port_step=1).address_of(5) == "tcp://[::1]:12"


def test_words_say_everything_and_are_understood():
    options = ClientOptions(**CHANGED)
    assert parsed(options.words()) == options


@pytest.mark.parametrize("name", sorted(CHANGED.keys() - {"connect", "ids"}))
def test_words_say_only_what_differs(name):
    plain = ClientOptions(connect="tcp://a:1", ids=[4])
    changed = replace(plain, **{name: CHANGED[name]})
    assert plain.words() == ["--connect", "tcp://a:1", "--ids", "4"]
    assert len(changed.words()) == 6 and parsed(changed.words()) == changed


@given(st.floats(3600, 1e9), st.floats(1, 3600))
def test_no_digit_of_a_duration_is_lost(patience, heartbeat):
    options = ClientOptions(connect="tcp://a:1", ids=[0], patience=patience, heartbeat=heartbeat)
    assert parsed(options.words()) == options


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ids_are_written_as_they_are_read(ids):
    written = id_range(sorted(ids))
    assert IdRange().convert(written, None, None) == sorted(ids)
    assert len(written.split(",")) == sum(client - 1 not in ids for client in ids)  # the fewest ranges there are


def test_an_experiment_decides_what_all_its_clients_share():
    cluster = Cluster(
        device="cpu", slots=3, compute="shared", patience_seconds=7.0, heartbeat_seconds=2.5, max_frame_mib=16
    )
    shared = {
        "device": "cpu",
        "slots": 3,
        "compute": "shared",
        "patience": 7.0,
        "heartbeat": 2.5,
        "max_frame_mib": 16,
    }
    own = {name: value for name, value in CHANGED.items() if name not in shared}
    assert ClientOptions.of(cluster, **own) == ClientOptions(**shared, **own)
    assert ClientOptions.of(Cluster(), connect="a", ids=[0]) == ClientOptions(connect="a", ids=[0])


def test_patience_shorter_than_a_heartbeat_is_refused():
    with pytest.raises(UserError, match=r"^--patience 3 is shorter than --heartbeat 5, so"):
        ClientOptions(connect="tcp://a:1", ids=[0], patience=3.0)
