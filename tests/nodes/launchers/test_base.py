"""The server's process under a launcher: what it tells before it has begun, and no word too many later."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedsim import config
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.launchers import base
from nodes.launchers.base import LaunchOptions
from nodes.launchers.local import LocalLauncher
from protocol.errors import AddressUnusable

Serve = Callable[..., int]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Serve], tuple[int, str]]]:
    """`server(serve)`: what the server's process would exit with and have told its launcher, with this in the
    place of what it serves. No process is started."""
    folder = RunFolder.create(tmp_path / "run", config.build([]))
    launcher = LocalLauncher(folder, SimpleNamespace(), LaunchOptions())
    before = signal.getsignal(base.WARNING)
    monkeypatch.setattr(base.zygote, "redirect_output", lambda path: None)

    def run(serve: Serve) -> tuple[int, str]:
        monkeypatch.setattr(base, "serve", serve)
        (told, address_out), (events_in, events_out) = os.pipe(), os.pipe()
        try:
            code = launcher._server_main(address_out, events_in, events_out)
            return code, os.read(told, 1000).decode()
        finally:
            os.close(told)
            os.close(events_out)

    yield run
    signal.signal(base.WARNING, before)


@pytest.mark.parametrize("kind", [UserError, AddressUnusable])
def test_what_cannot_begin_says_why_in_place_of_the_address(server, kind: type[Exception]) -> None:
    def serve(*_: object, **__: object) -> int:
        raise kind("it cannot be.")

    assert server(serve) == (2, "it cannot be.\n")


@pytest.mark.parametrize("kind", [UserError, AddressUnusable])
def test_an_error_of_a_run_that_has_begun_is_written_to_nobody_s_file(
    server, kind: type[Exception], tmp_path: Path
) -> None:
    """The launcher has read the address, and the number of the descriptor may be another file's."""
    others: list[int] = []

    def serve(*_: object, on_bound: Callable[[list[str]], None], **__: object) -> int:
        on_bound(["tcp://here:1", "tcp://there:2"])
        others.extend(os.open(tmp_path / "another", os.O_CREAT | os.O_RDWR) for _ in range(20))
        raise kind("its code has failed.")

    try:
        assert server(serve) == (2, "tcp://here:1\n")
        assert (tmp_path / "another").read_text() == ""
    finally:
        for descriptor in others:
            os.close(descriptor)  # all are still open
