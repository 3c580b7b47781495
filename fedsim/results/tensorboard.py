"""Scalars for TensorBoard, written as the run goes on: `tensorboard --logdir runs` shows it live.

An event file is a sequence of records (length, checksum, message, checksum), each message a few protocol
buffer fields. For scalars that is little enough to write here, so that every run has its event file and
nobody needs TensorBoard, or a package that writes for it, to run one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

FILE_NAME = "metrics.tfevents"
"""TensorBoard takes every file for its own that has `tfevents` in its name."""

# Field numbers of TensorFlow's Event, Summary and Summary.Value messages.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE = 1
_TAG, _SIMPLE_VALUE = 1, 2
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types

_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, its bits reversed
_MASK = 0xA282EAD8


class EventFile:
    """One event for each round, in the order of rounds. A file that exists is gone on with."""

    def __init__(self, path: Path):
        self._path = path

    def add(self, step: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        if not self._path.exists() or not self._path.stat().st_size:
            self._append(_double(_WALL_TIME, wall_time) + _text(_FILE_VERSION, b"brain.Event:2"))
        values = b"".join(
            _text(_VALUE, _text(_TAG, tag.encode()) + _key(_SIMPLE_VALUE, _FLOAT) + struct.pack("<f", value))
            for tag, value in scalars.items()
        )
        event = _double(_WALL_TIME, wall_time) + _key(_STEP, _VARINT) + _varint(step) + _text(_SUMMARY, values)
        self._append(event)

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
    offset = len(_double(_WALL_TIME, 0.0))
    if message[offset : offset + 1] != _key(_STEP, _VARINT):
        return 0
    step, shift = 0, 0
    for byte in message[offset + 1 :]:
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return step


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _double(field: int, number: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", number)


def _text(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


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
