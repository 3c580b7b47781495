"""Error feedback: what an encoding lost of a client's upload is added to its next one.

Rows that another array of the message names (`class_ids` names the rows of `prototypes`) are remembered by that
name, so that a class which a client does not send in a round keeps what it is owed. An array without such a
companion is remembered whole, and forgotten when its shape changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedsim.contract import Arrays, Fields, Payload

_NAMES = ".rows"


class ErrorFeedback:
    """One client's memory of what was lost, for some fields of its upload."""

    def __init__(self, fields: Fields, names: Iterable[str]):
        rows = {
            item.words[0]: name
            for name, item in fields.items()
            if item.payload is Payload.INDEX and len(item.words) == 1
        }
        self._companion = {name: rows.get(fields[name].words[0]) for name in names if fields[name].words}
        self._lost: Arrays = {}
        self._rows: dict[str, list[int]] = {}
        """Of fields with a companion: which row of `_lost` is which."""
        self._upload: object = None
        self._before: tuple[Arrays, dict[str, list[int]]] = ({}, {})

    def begin(self, upload: object) -> None:
        """What follows belongs to this upload; one that is made again begins with what was owed before it."""
        if upload != self._upload:
            self._upload, self._before = upload, (dict(self._lost), dict(self._rows))
        else:
            self._lost, self._rows = dict(self._before[0]), dict(self._before[1])

    def added(self, arrays: Arrays) -> Arrays:
        """The upload, with what is owed."""
        return {name: self._added(name, array, arrays) for name, array in arrays.items()}

    def remember(self, name: str, wanted: np.ndarray, arrived: np.ndarray, arrays: Arrays) -> None:
        """What is owed from now on: the difference between what was to be sent and what will be decoded."""
        lost = (wanted - arrived).astype(wanted.dtype)
        companion = self._companion.get(name)
        if companion is None:
            self._lost[name] = lost
            return
        rows = arrays[companion].tolist()
        owed = dict(zip(self._rows.get(name, []), self._lost.get(name, lost[:0]), strict=True))
        owed |= dict(zip(rows, lost, strict=True))
        self._rows[name] = sorted(owed)
        self._lost[name] = np.stack([owed[row] for row in sorted(owed)]) if owed else lost

    def _added(self, name: str, array: np.ndarray, arrays: Arrays) -> np.ndarray:
        lost = self._lost.get(name)
        if lost is None:
            return array
        companion = self._companion.get(name)
        if companion is None:
            return array + lost if lost.shape == array.shape else array
        place = {row: position for position, row in enumerate(self._rows[name])}
        result = array.copy()
        for position, row in enumerate(arrays[companion].tolist()):
            if row in place and lost[place[row]].shape == result[position].shape:
                result[position] += lost[place[row]]
        return result

    def state(self) -> Arrays:
        """What a checkpoint holds of it."""
        rows = {name + _NAMES: np.array(rows, np.int64) for name, rows in self._rows.items()}
        return self._lost | rows

    def load_state(self, state: Arrays) -> None:
        self._lost = {name: array for name, array in state.items() if not name.endswith(_NAMES)}
        self._rows = {
            name.removesuffix(_NAMES): array.tolist() for name, array in state.items() if name.endswith(_NAMES)
        }
