"""State on disk: safetensors and a small manifest, written under a temporary name, synced, then renamed.

    checkpoints/manifest.json              names one round, the server's file and every client's file
    checkpoints/server/round-000011.safetensors
    checkpoints/9f86d081/client-00003/round-000011.safetensors

A set of files counts only once the manifest names it, so a crash at any moment leaves the previous set whole.
A file is removed only when the manifest names another. What it names may be much older than the newest file: a
client that was late at a checkpoint has saved its state all the same, but is not part of that checkpoint.
Clients on other machines keep theirs in a folder of their own; the manifest then names rounds they know. Several
runs may use that folder, so the states of each have a name of their own (9f86d081), which stays over a resume.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from fedsim.errors import UserError, writing_to

if TYPE_CHECKING:  # a client that has its work done by others never loads torch
    from fedsim.method import State

_ROUND_FILE = re.compile(r"round-(\d+)\.safetensors$")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What makes a set of files a checkpoint."""

    round: int
    client_rounds: dict[str, int]
    """Client id -> the round of its newest saved state."""
    history: list[dict[str, Any]]
    """The rows of metrics.csv so far."""
    ledger: list[dict[str, Any]]
    states: str
    """Under which name clients keep their states."""


@dataclass(frozen=True)
class StateFiles:
    """One node's saved states."""

    folder: Path

    def save(self, round: int, state: State) -> None:
        # safetensors wants contiguous memory; np.ascontiguousarray would make a vector of a 0-d array.
        arrays = {name: np.asarray(array, order="C") for name, array in state.items()}
        self.write(round, save(arrays))

    def write(self, round: int, content: bytes | memoryview) -> None:
        """A state that is in its final form already."""
        with writing_to(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for half in self.folder.glob(".round-*"):  # of a process that was killed: the folder is one node's own
                half.unlink(missing_ok=True)
            write_atomically(self.path(round), content)

    def keep_only(self, *rounds: int) -> None:
        matches = [_ROUND_FILE.match(path.name) for path in self.folder.iterdir()]
        for round in {int(match.group(1)) for match in matches if match} - set(rounds):
            self.path(round).unlink()

    def load(self, round: int) -> State:
        path = self.path(round)
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise UserError(f"the saved state {path} cannot be read: {error}.") from None

    def path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


class Checkpoints:
    """The server's side of a run's checkpoints."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._server = StateFiles(folder / "server")

    @property
    def exist(self) -> bool:
        return (self.folder / "manifest.json").exists()

    def save(self, manifest: Manifest, state: State) -> None:
        """All clients have saved theirs already: the manifest makes the set valid."""
        self._server.save(manifest.round, state)
        write_atomically(self.folder / "manifest.json", msgspec.json.encode(manifest))
        self._server.keep_only(manifest.round)

    def load(self) -> tuple[Manifest, State] | None:
        """The newest whole set, or None when the run never got as far as one."""
        try:
            text = (self.folder / "manifest.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            manifest = msgspec.json.decode(text, type=Manifest)
        except msgspec.MsgspecError as error:
            raise UserError(f"{self.folder}/manifest.json is not a checkpoint manifest: {error}.") from None
        return manifest, self._server.load(manifest.round)


def client_files(folder: Path, states: str, client: int) -> StateFiles:
    return StateFiles(folder / states / f"client-{client:05d}")


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Either the old file or the whole new one is there, whenever the machine stops."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:  # the half of it would only take room
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
