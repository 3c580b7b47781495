"""Signals of people who move, as their publishers' files hold them: UCI HAR and PAMAP2. Subjects are known.

Both become float32 (N, ch, sensors, steps) with time along the last axis, where convolutions of (1, k) run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, Wish, check_labels, reading
from fedsim.errors import UserError

# --------------------------------------------------------------------------------------------- UCI HAR

HAR_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
HAR_STEPS = 128
HAR_ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
_PARTS = ("train", "test")


def find_har(folder: Path, num_classes: int, *, wish: Wish) -> Source | None:
    """`{train,test}/Inertial Signals/<signal>_<part>.txt` and `y_<part>.txt`; who it was in `subject_<part>.txt`,
    without which there is no natural partition."""
    if not (folder / "train" / "Inertial Signals").is_dir():
        return None
    needed = [
        path
        for part in _PARTS
        for path in (
            *(folder / part / "Inertial Signals" / f"{signal}_{part}.txt" for signal in HAR_SIGNALS),
            folder / part / f"y_{part}.txt",
        )
    ]
    subjects = [folder / part / f"subject_{part}.txt" for part in _PARTS]
    if any(path.is_file() for path in subjects):
        needed += subjects
    if missing := [path for path in needed if not path.is_file()]:
        raise UserError(
            f"{missing[0]} of UCI HAR is missing; unpack the publisher's archive again, or name another folder "
            "with --data-dir."
        )
    read = partial(_read_har, folder, subjects[0] in needed, wish.published)
    return Source(read, tuple(needed), settings=f"published {wish.published}", has_preparations=True)


def _read_har(folder: Path, has_subjects: bool, published: bool, allocate: Allocate) -> Decoded:
    parts = [_read_har_part(folder, part, has_subjects) for part in _PARTS]
    signals, labels, subjects = (np.concatenate(own) for own in zip(*parts, strict=True))  # (N, 9, steps)
    num = len(labels)
    inputs = allocate((num, len(HAR_SIGNALS), 1, HAR_STEPS), np.float32)
    if published:  # (N, steps, 9) is given another shape, which mixes time and channel
        inputs[:] = signals.transpose(0, 2, 1).reshape(inputs.shape)
    else:
        inputs[:] = signals[:, :, None]
    names, groups = (np.unique(subjects, return_inverse=True)) if has_subjects else ((), None)
    return Decoded(
        inputs,
        labels,
        len(HAR_ACTIVITIES),
        len(parts[0][1]),
        class_names=HAR_ACTIVITIES,
        kind="signal",
        groups=groups,
        group_names=tuple(f"subject {name}" for name in names),
    )


def _read_har_part(folder: Path, part: str, has_subjects: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    label_file = folder / part / f"y_{part}.txt"
    labels = _whole_numbers(label_file)
    signals = np.empty((len(labels), len(HAR_SIGNALS), HAR_STEPS), np.float32)
    for channel, signal in enumerate(HAR_SIGNALS):
        path = folder / part / "Inertial Signals" / f"{signal}_{part}.txt"
        with reading(path):
            own = np.loadtxt(path, np.float32, ndmin=2)
        if own.shape != (len(labels), HAR_STEPS):
            raise UserError(
                f"{path} holds {own.shape[0]} windows of {own.shape[1]} steps, not {len(labels)} of {HAR_STEPS} "
                f"as {label_file.name} and the other signals do; unpack the publisher's archive again."
            )
        signals[:, channel] = own
    check_labels(labels - 1, len(labels), len(HAR_ACTIVITIES), label_file)
    subjects = np.zeros(len(labels), np.int64)
    if has_subjects:
        subject_file = folder / part / f"subject_{part}.txt"
        subjects = _whole_numbers(subject_file)
        if len(subjects) != len(labels):
            raise UserError(
                f"{subject_file} names {len(subjects)} subjects for {len(labels)} windows; unpack the publisher's "
                "archive again."
            )
    return signals, labels - 1, subjects


def _whole_numbers(path: Path) -> np.ndarray:
    with reading(path):
        return np.loadtxt(path, np.int64, ndmin=1)


# --------------------------------------------------------------------------------------------- PAMAP2

PAMAP2_WINDOW, PAMAP2_STEP = 256, 128
PAMAP2_ACTIVITIES = {
    24: "rope jumping", 1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling",
    7: "Nordic walking", 12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning", 17: "ironing",
}  # fmt: skip
"""By the publisher's number, in the order of class numbers; all others are left out."""
_NUM_COLUMNS = 54
_ACTIVITY = 1
_SIGNALS = [first + offset for first in (4, 21, 38) for offset in (0, 1, 2, 6, 7, 8, 9, 10, 11)]
"""Of hand, chest and ankle: acceleration (±16 g), gyroscope and magnetometer, three axes each."""
_SENSORS = 3


def find_pamap2(folder: Path, num_classes: int, *, wish: Wish) -> Source | None:
    """`Protocol/subject10<i>.dat`, and `Optional/` where a subject has more."""
    files = sorted((folder / "Protocol").glob("subject*.dat"))
    if not files:
        return None
    optional = [path for file in files if (path := folder / "Optional" / file.name).is_file()]
    read = partial(_read_pamap2, files, wish.published)
    return Source(
        read, (*files, *optional), settings=f"published {wish.published}", has_preparations=True, train_only=False
    )


def _read_pamap2(files: Sequence[Path], published: bool, allocate: Allocate) -> Decoded:
    people = [_read_person(path, published) for path in files]
    for path, (_, labels) in zip(files, people, strict=True):
        if not len(labels):
            raise UserError(
                f"{path} has no window of {PAMAP2_WINDOW} steps of one of the {len(PAMAP2_ACTIVITIES)} "
                "activities, so this subject has no samples; take the file out of the folder, or put a sound copy "
                "there."
            )
    labels = np.concatenate([own for _, own in people])
    inputs = allocate((len(labels), len(_SIGNALS) // _SENSORS, _SENSORS, PAMAP2_WINDOW), np.float32)
    np.concatenate([own for own, _ in people], out=inputs)
    return Decoded(
        inputs,
        labels,
        len(PAMAP2_ACTIVITIES),
        len(labels),
        class_names=tuple(PAMAP2_ACTIVITIES.values()),
        kind="signal",
        groups=np.repeat(np.arange(len(people)), [len(own) for _, own in people]),
        group_names=tuple(f"subject {path.stem.removeprefix('subject')}" for path in files),
    )


def _read_person(path: Path, published: bool) -> tuple[np.ndarray, np.ndarray]:
    """(n, 9, 3, window) and (n,) of all recordings of one subject; over all of them a signal lies in [-1, 1]."""
    optional = path.parent.parent / "Optional" / path.name
    recordings = [_read_recording(own) for own in (path, optional) if own.is_file()]
    largest = np.max([np.abs(signals).max(axis=0) for _, signals in recordings], axis=0)
    largest[largest == 0] = 1
    number = {activity: label for label, activity in enumerate(PAMAP2_ACTIVITIES)}
    windows, labels = [], []
    for activities, signals in recordings:
        for start in range(0, len(activities) - PAMAP2_WINDOW + 1, PAMAP2_STEP):
            here = slice(start, start + PAMAP2_WINDOW)
            smallest = activities[here].min()
            # Published: the smallest number, though the window may be of another activity nearly all the time.
            if (published or (activities[here] == smallest).all()) and int(smallest) in number:
                windows.append(signals[here] / largest)
                labels.append(number[int(smallest)])
    stacked = np.array(windows, np.float32).reshape(
        len(labels), PAMAP2_WINDOW, _SENSORS, len(_SIGNALS) // _SENSORS
    )
    return stacked.transpose(0, 3, 2, 1), np.array(labels, np.int64)


def _read_recording(path: Path) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    with reading(path):
        table = pd.read_csv(path, sep=r"\s+", header=None, dtype=np.float32).to_numpy()
    if table.shape[1] != _NUM_COLUMNS:
        raise UserError(
            f"{path} has {table.shape[1]} columns, not the {_NUM_COLUMNS} of PAMAP2; take the publisher's file."
        )
    return np.nan_to_num(table[:, _ACTIVITY]).astype(np.int64), np.nan_to_num(table[:, _SIGNALS])
