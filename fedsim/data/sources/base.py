"""What a source is: files on disk, a way to read them, and one way to say that they are broken."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedsim.data.inputs import Kind
from fedsim.errors import UserError

Allocate = Callable[[tuple[int, ...], type], np.ndarray]
"""Gives an array of this shape and type in the cache file itself, so that no reader needs a second copy."""


@dataclass(frozen=True)
class Wish:
    """How texts become tokens, and how sets are prepared whose published preparation has a fault: as in `Data`."""

    text: str = ""
    """Column of a table that holds texts."""
    vocabulary: int = 0
    length: int = 0
    tokenizer: str = ""
    group: str = ""
    """Column of a table that says whose sample a row is."""
    published: bool = False

    def of_texts(self) -> dict[str, object]:
        """What was asked for that only texts can give, by its name in the config."""
        given = {
            "text": self.text,
            "vocabulary": self.vocabulary,
            "sequence_length": self.length,
            "tokenizer": self.tokenizer,
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class Decoded:
    """A data set as read: training rows first. `inputs` as in `Dataset`."""

    inputs: np.ndarray
    labels: np.ndarray
    num_classes: int
    num_train: int
    client_sizes: np.ndarray | None = None
    """(M, 2): training and test samples of each client, where the files hold a ready-made partition."""
    class_names: tuple[str, ...] = ()
    """Where the source has names for its classes, in the order of their numbers."""
    kind: Kind | Literal[""] = ""
    vocabulary: int = 0
    """As in `Dataset`."""
    groups: np.ndarray | None = None
    """(N,): whose sample each one is, from 0 on, where the source knows it: a person, a domain."""
    group_names: tuple[str, ...] = ()
    """In the order of these numbers, such as `subject 1`."""


@dataclass(frozen=True)
class Source:
    """A data set that was found."""

    read: Callable[[Allocate], Decoded]
    files: tuple[Path, ...] = ()
    """Everything that `read` reads: names, sizes and times of these say whether a decoded copy is current."""
    settings: str = ""
    """What else the decoded copy depends on."""
    name: str = ""
    train_only: bool = False
    """The published partition merges training and test set, except where this is set (Tiny-ImageNet)."""
    has_columns: bool = False
    """A table, so `data.label` may say which column holds the classes."""
    is_text: bool = False
    """Texts, so `data.vocabulary` and its like have a meaning."""
    has_preparations: bool = False
    """There are two, so `data.preparation` has a meaning."""
    shape: tuple[int, ...] = ()
    """What a sample's vector is to be, where the user says so (`data.shape`)."""
    computed: bool = False
    """What `read` gives may change without its files, so it is called anew, see `store`."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a missing or broken file makes a reader raise becomes one sentence about that file."""
    try:
        yield
    except UserError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); put it back or make it readable.") from error
    except Exception as error:  # gzip, zip, pickle, Pillow and scipy have no common way to say it
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserError(
            f"{path} is corrupt, truncated or of another format ({reason}); put a sound copy in its place."
        ) from error


def check_labels(labels: np.ndarray, num_inputs: int, num_classes: int, where: Path | str) -> np.ndarray:
    """Labels as int64, one per input and all in range."""
    labels = np.asarray(labels).ravel()
    if len(labels) != num_inputs:
        raise UserError(
            f"{where} holds {num_inputs} inputs but {len(labels)} labels; it needs one for each input."
        )
    if labels.dtype.kind not in "iu":
        raise UserError(f"{where} has labels of type {labels.dtype}; labels must be integers from 0 on.")
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise UserError(
            f"{where} has {outside.sum()} labels out of range, the first is {labels[outside][0]}; "
            f"with {num_classes} classes they go from 0 to {num_classes - 1}."
        )
    return labels.astype(np.int64)
