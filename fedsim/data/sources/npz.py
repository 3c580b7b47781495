"""Arrays under names: an .npz file, or a dictionary that a function returns."""

import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.sources.arrays import Part, Told, assemble
from fedsim.data.sources.base import Allocate, Decoded, Source, reading
from fedsim.errors import UserError

INPUTS = ("x", "images", "image", "data", "inputs", "features", "samples")
LABELS = ("y", "labels", "label", "targets", "target")
TEST = ("test", "val", "valid", "validation")
CLASSES = ("classes", "class_names", "label_names")
"""What arrays may be called, in any case: x_train or train_x, x_test or test_x; x alone where there is one set."""
GROUPS = ("groups", "group", "subjects", "subject", "domains", "domain")
"""Whose sample each one is, where a natural partition is wanted; of both sets or of none."""
VOCABULARY = ("vocabulary", "vocab_size")
"""How many tokens there are: whole numbers are texts then."""


def find(path: Path, num_classes: int | None = None) -> Source | None:
    return Source(partial(read, path, num_classes), (path,)) if path.is_file() else None


def read(path: Path, num_classes: int | None, allocate: Allocate) -> Decoded:
    with reading(path), zipfile.ZipFile(path):  # numpy would take what is no archive for a pickle
        pass
    with reading(path), np.load(path, allow_pickle=False) as archive:
        parts, told = choose(archive, path)
        return assemble(parts, path, allocate, num_classes=num_classes, told=told)


def choose(arrays: Mapping[str, Any], where: Path | str) -> tuple[list[Part], Told]:
    """The training set, the test set where there is one, and what else is told of them."""
    keys = {key.lower(): key for key in arrays}
    names = ["train" if _find(keys, INPUTS, "train") else ""]
    names += [test for test in TEST if names[0] and _find(keys, INPUTS, test)][:1]
    parts = [_choose_part(arrays, keys, name, where) for name in names]
    classes, vocabulary = _find(keys, CLASSES, ""), _find(keys, VOCABULARY, "")
    groups = [np.asarray(arrays[key]) for name in names if (key := _find(keys, GROUPS, name))]
    if groups and len(groups) < len(parts):
        raise UserError(
            f"{where} says of one of its two sets whose samples they are and not of the other; add both, such as "
            "subjects_train and subjects_test."
        )
    return parts, Told(
        class_names=tuple(map(str, np.asarray(arrays[classes]).tolist())) if classes else (),
        groups=np.concatenate(groups) if groups else None,
        vocabulary=int(np.asarray(arrays[vocabulary]).item()) if vocabulary else 0,
    )


def _choose_part(arrays: Mapping[str, Any], keys: Mapping[str, str], part: str, where: Path | str) -> Part:
    inputs, labels = _find(keys, INPUTS, part), _find(keys, LABELS, part)
    if not inputs:
        found = ", ".join(keys.values()) or "no arrays"
        raise UserError(
            f"{where} holds {found}, none of which is called as inputs are; name them x_train and y_train, with "
            "x_test and y_test for a test set, or x and y."
        )
    if not labels:
        wanted = f"y_{part}" if part else "y"
        raise UserError(
            f"{where} holds the inputs {inputs} but no labels for them; add one for each sample as {wanted} "
            f"(or {', '.join(f'{word}_{part}' if part else word for word in LABELS[1::2])})."
        )
    return np.asarray(arrays[inputs]), np.asarray(arrays[labels])


def _find(keys: Mapping[str, str], words: Sequence[str], part: str) -> str | None:
    """The first of these words that is a key, with the part before or after it."""
    forms = [form for word in words for form in ((f"{word}_{part}", f"{part}_{word}") if part else (word,))]
    return next((keys[form] for form in forms if form in keys), None)
