"""A server, or its reception alone, without a network for each test that wants one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from desk import Desk
from stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """`stage(run={"clients": 3})`: a server and its loop, with FedProto for 3 classes and 2 features."""
    stages: list[Stage] = []

    def build(name: str = "run", **options: Any) -> Stage:
        stages.append(Stage(tmp_path / name, **options))
        return stages[-1]

    yield build
    for built in stages:
        built.events.close()


@pytest.fixture
def desk() -> Desk:
    return Desk()
