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

# What a field begins with, its number and its type in one byte, in TensorFlow's Event ...
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = b"\x09", b"\x10", b"\x1a", b"\x2a"
# ... in its Summary, and in the Summary.Value.
_VALUE, _TAG, _SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"

_LARGEST = 3.4028234663852886e38  # that 32 bits hold
_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, its bits reversed
_MASK = 0xA282EAD8


class EventFile:
    """One event for each round, in the order of rounds. A file that exists is gone on with."""

    def __init__(self, path: Path):
        self._path = path

    def add(self, step: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        time = _WALL_TIME + struct.pack("<d", wall_time)
        if not self._path.exists() or not self._path.stat().st_size:
            self._append(time + _sized(_FILE_VERSION, b"brain.Event:2"))
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
