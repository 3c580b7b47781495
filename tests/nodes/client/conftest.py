"""A client's node for each test that wants one."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from home import Half, Home

from nodes.client import own
from nodes.launchers import processes


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cores that the client was pinned to, in order; this process stays where it is."""
    cores: list[int] = []
    monkeypatch.setattr(processes, "pin", cores.append)
    return cores


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: list[int]) -> Callable[..., Home]:
    """`home(patience=5.0)`: a client with a stand-in for the method's half."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # other tests may want theirs

    def build(**options: Any) -> Home:
        made = Home(tmp_path / "states", **options)

        def make_client(*_: object) -> Half:
            made.halves.append(Half())
            return made.half

        monkeypatch.setattr(own, "Federation", lambda _: SimpleNamespace(num_classes=3, input_shape=(1, 4, 4)))
        monkeypatch.setattr(own.likeness, "facts_of", lambda _: {"torch": "2"})
        monkeypatch.setattr(own.assembly, "make_client", make_client)
        return made

    return build
