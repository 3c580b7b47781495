"""What `fedsim server` says of itself. Nothing listens, and no process is started."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedsim.results import provenance
from nodes.cli.server import command
from nodes.launchers import zygote
from nodes.server import program


def test_addresses_and_names_with_brackets_are_printed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of IPv6 have them."""
    address, waiting = "tcp://[fd00::1]:5555", {"event": "waiting", "missing": [1], "joined": {"rack[red]": [0]}}

    def serve(*_: Any, watcher: Callable[..., None], on_bound: Callable[..., None], **__: Any) -> int:
        on_bound([address, "tcp://10.0.0.1:5555"])
        watcher(waiting)
        return 0

    monkeypatch.setattr(program, "serve", serve)
    monkeypatch.setattr(zygote, "preload", lambda: None)
    monkeypatch.setattr(provenance, "collect", lambda _: {})
    words = ["--method", "local", "--dataset", "spiral", "--model-group", "MLP", "--clients", "2"]
    done = CliRunner().invoke(command, [*words, "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert f"listening on {address} and tcp://10.0.0.1:5555\n" in done.output
    assert "0 joined from rack[red]\n" in done.output
