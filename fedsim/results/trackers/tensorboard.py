"""Scalars and settings for TensorBoard, written as the run goes on: `tensorboard --logdir runs` shows it live.

An event file is a sequence of records (length, checksum, message, checksum), each message a few protocol
buffer fields. For scalars and the HParams page that is little enough to write here, so that every run has its
event file and nobody needs TensorBoard, or a package that writes for it, to run one.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.results.trackers import Tracked

PACKAGE = ""
"""Only to look at it."""
FILE_NAME = "metrics.tfevents"
"""TensorBoard takes every file for its own that has `tfevents` in its name."""

# What a field begins with, its number and its type in one byte, in TensorFlow's Event ...
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
# ... in its Summary, and in the Summary.Value.
_VALUE, _TAG, _SIMPLE_VALUE, _METADATA = b"\x0a", b"\x0a", b"\x15", b"\x4a"
# Of the HParams page: what the metadata of a value says, how a session began and how it ended.
_PLUGIN_DATA, _PLUGIN_NAME, _CONTENT = b"\x0a", b"\x0a", b"\x12"
_SESSION_START, _SESSION_END = b"\x1a", b"\x22"
_HPARAM, _KEY, _HPARAM_VALUE, _GROUP_NAME, _START_SECONDS = b"\x0a", b"\x0a", b"\x12", b"\x22", b"\x29"
_STATUS, _END_SECONDS = b"\x08", b"\x11"
_NUMBER, _STRING, _BOOL = b"\x11", b"\x1a", b"\x20"
_SUCCESS, _FAILURE = 1, 2

_LARGEST = 3.4028234663852886e38  # that 32 bits hold
_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, its bits reversed
_MASK = 0xA282EAD8


class Tracker:
    """Runs of one family are one group of sessions on the HParams page, which then shows their mean."""

    def __init__(self, run: Tracked):
        self._file = EventFile(run.folder / FILE_NAME)
        if self._file.is_empty:
            self._file.begin(time.time(), run.settings, run.family)
        self._last = 0

    def add_round(self, round: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        self._file.add(round, wall_time, scalars)
        self._last = round

    def end(self, wall_time: float, *, completed: bool, files: Sequence[Path]) -> None:
        self._file.end(self._last + 1, wall_time, completed)


class EventFile:
    """One event for each round, in the order of rounds. A file that exists is gone on with."""

    def __init__(self, path: Path):
        self._path = path

    @property
    def is_empty(self) -> bool:
        return not self._path.exists() or not self._path.stat().st_size

    def begin(self, wall_time: float, hparams: Mapping[str, Any], group: str) -> None:
        entries = (_sized(_KEY, name.encode()) + _sized(_HPARAM_VALUE, _value(v)) for name, v in hparams.items())
        content = b"".join(_sized(_HPARAM, entry) for entry in entries) + _sized(_GROUP_NAME, group.encode())
        content += _START_SECONDS + struct.pack("<d", wall_time)
        summary = _session("session_start_info", _sized(_SESSION_START, content))
        self._append(self._time(wall_time) + _sized(_SUMMARY, summary))

    def end(self, step: int, wall_time: float, completed: bool) -> None:
        """With a step of its own, so that a run which goes on forgets that it had ended."""
        content = (
            _STATUS + _varint(_SUCCESS if completed else _FAILURE) + _END_SECONDS + struct.pack("<d", wall_time)
        )
        summary = _session("session_end_info", _sized(_SESSION_END, content))
        self._append(self._time(wall_time) + _STEP + _varint(step) + _sized(_SUMMARY, summary))

    def _time(self, wall_time: float) -> bytes:
        """What every event begins with; the first of a file comes after its version."""
        time = _WALL_TIME + struct.pack("<d", wall_time)
        if self.is_empty:
            self._append(time + _sized(_FILE_VERSION, b"brain.Event:2"))
        return time

    def add(self, step: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        time = self._time(wall_time)
        values = (_sized(_TAG, tag.encode()) + _SIMPLE_VALUE + _float(value) for tag, value in scalars.items())
        summary = b"".join(_sized(_VALUE, value) for value in values)
        self._append(time + _STEP + _varint(step) + _sized(_SUMMARY, summary))

    def forget_after(self, step: int) -> None:
        """Before a run is resumed: cut off what will come again, and what a crash has left half written."""
        if not self._path.exists():
            return
        content, end = self._path.read_bytes(), 0
        while end + 12 <= len(content):
            length = struct.unpack_from("<Q", content, end)[0]
            message = content[end + 12 : end + 12 + length]
            if end + 16 + length > len(content) or _step(message) > step:
                break
            end += 16 + length
        with self._path.open("r+b") as file:
            file.truncate(end)

    def _append(self, message: bytes) -> None:
        length = struct.pack("<Q", len(message))
        record = length + _checksum(length) + message + _checksum(message)
        with self._path.open("ab") as file:
            file.write(record)


def _step(message: bytes) -> int:
    """Of an event that we wrote: its second field, if it is one; the first line of a file has none."""
    field, step = message[9:], 0  # after the wall time
    if field[:1] == _STEP:
        for place, byte in enumerate(field[1:]):
            step |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                break
    return step


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _sized(field: bytes, content: bytes) -> bytes:
    return field + _varint(len(content)) + content


def _session(name: str, data: bytes) -> bytes:
    """A summary that carries nothing but what the HParams page wants to know."""
    plugin = _sized(_PLUGIN_NAME, b"hparams") + _sized(_CONTENT, data)
    metadata = _sized(_METADATA, _sized(_PLUGIN_DATA, plugin))
    return _sized(_VALUE, _sized(_TAG, f"_hparams_/{name}".encode()) + metadata)


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return _BOOL + _varint(int(value))
    if isinstance(value, int | float):
        return _NUMBER + struct.pack("<d", value)
    return _sized(_STRING, str(value).encode())


def _float(value: float) -> bytes:
    return struct.pack("<f", min(max(value, -_LARGEST), _LARGEST))


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_CASTAGNOLI if number & 1 else 0)
        table.append(number)
    return table


_CRC_TABLE = _table()


def _checksum(content: bytes) -> bytes:
    """CRC-32C, masked as the record format wants it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)
