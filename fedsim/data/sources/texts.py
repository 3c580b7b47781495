"""Texts as rows of token numbers, and AG News as its publisher's files hold it: train.csv, test.csv, classes.txt.

A text is in lower case and split at white space and punctuation, whose marks are tokens too. The vocabulary is the
most frequent tokens; a row is the class token, the tokens of the text, then padding (`data/inputs.py`). With
`data.tokenizer` a local Hugging Face folder says what tokens are instead.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.compat import import_torchvision
from fedsim.data.inputs import CLASS, NUM_SPECIAL, PADDING, UNKNOWN
from fedsim.data.sources.base import Allocate, Decoded, Source, Wish, check_labels, reading
from fedsim.errors import UserError

VOCABULARY, LENGTH = 32_000, 200
"""The published sizes."""
AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Tokens(NamedTuple):
    """(N, L) int32, and how many token numbers there are."""

    rows: np.ndarray
    vocabulary: int


def split(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def encode(texts: Sequence[str], wish: Wish) -> Tokens:
    """The most frequent first, equals in the order of the alphabet, so that the same texts give the same rows."""
    length = wish.length or LENGTH
    if wish.tokenizer:
        return _by_tokenizer(texts, wish.tokenizer, length)
    words = [split(text) for text in texts]
    counts = Counter(word for own in words for word in own)
    wanted = (wish.vocabulary or VOCABULARY) - NUM_SPECIAL
    if wanted < 1:
        raise UserError(
            f"data.vocabulary = {wish.vocabulary} leaves no room for words beside padding, unknown and class; "
            f"give at least {NUM_SPECIAL + 1}."
        )
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:wanted]
    number = {word: first for first, word in enumerate(frequent, NUM_SPECIAL)}
    rows = np.full((len(texts), length), PADDING, np.int32)
    # As published: the class token is not found and so unknown, and padding counts as a word like any other, with
    # the number that the class token would have had, so that every text is as long as the longest.
    rows[:, 0] = UNKNOWN if wish.published else CLASS
    for row, own in zip(rows, words, strict=True):
        found = [number.get(word, UNKNOWN) for word in own[: length - 1]]
        row[1 : 1 + len(found)] = found
    if wish.published:
        rows[rows == PADDING] = CLASS
    return Tokens(rows, NUM_SPECIAL + len(frequent))


def swap_padding(numbers: np.ndarray, padding: int) -> np.ndarray:
    """Some tokenizers have another number for padding: it changes places with 0, here and, back again, where a
    model of the same folder reads them."""
    swapped = numbers.copy()
    swapped[numbers == padding], swapped[numbers == PADDING] = PADDING, padding
    return swapped


def _by_tokenizer(texts: Sequence[str], folder: str, length: int) -> Tokens:
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UserError(
            f"data.tokenizer = {folder!r} is no folder; give one that a Hugging Face tokenizer was saved in."
        )
    try:
        import_torchvision()  # which transformers imports, and which may need our help
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UserError(
            f"data.tokenizer needs transformers ({error}); run: pip install 'fedsim-htfl[text]'."
        ) from None
    with reading(path):
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer in {path} has no token for padding; set its pad_token and save it again.")
    made = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
    rows = np.full((len(texts), length), tokenizer.pad_token_id, np.int32)
    for row, own in zip(rows, made, strict=True):
        row[: len(own)] = own
    return Tokens(swap_padding(rows, tokenizer.pad_token_id), len(tokenizer))


def decoded(
    parts: Sequence[Sequence[str]], labels: np.ndarray, names: tuple[str, ...], wish: Wish, allocate: Allocate
) -> Decoded:
    """Texts of the training set and, if there is one, of the test set."""
    tokens = encode([text for part in parts for text in part], wish)
    inputs = allocate(tokens.rows.shape, np.int32)
    inputs[:] = tokens.rows
    return Decoded(
        inputs, labels, len(names), len(parts[0]), class_names=names, kind="tokens", vocabulary=tokens.vocabulary
    )


def settings(wish: Wish) -> str:
    """What the decoded copy depends on. The files of a tokenizer may change without its folder."""
    files = sorted(Path(wish.tokenizer).expanduser().glob("*.json")) if wish.tokenizer else []
    return f"{wish} {[(path.name, path.stat().st_mtime_ns) for path in files]}"


# --------------------------------------------------------------------------------------------- AG News


def find_ag_news(folder: Path, num_classes: int, *, wish: Wish) -> Source | None:
    files = [folder / "train.csv", folder / "test.csv"]
    there = [path for path in files if path.is_file()]
    if not there:
        return None
    if missing := [path.name for path in files if path not in there]:
        raise UserError(f"{folder} holds {there[0].name} of AG News but not {missing[0]}; put it there too.")
    return Source(
        partial(_read_ag_news, files, wish),
        tuple(files),
        settings=settings(wish),
        is_text=True,
        has_preparations=True,
    )


def _read_ag_news(files: Sequence[Path], wish: Wish, allocate: Allocate) -> Decoded:
    parts, labels = [], []
    for path in files:
        with reading(path), path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        for number, row in enumerate(rows, 1):
            if len(row) != 3 or row[0] not in {"1", "2", "3", "4"}:
                raise UserError(
                    f"{path} has {row[:1]} and {len(row)} columns in row {number}; each row of AG News is a class "
                    "from 1 to 4, a title and a description: take the publisher's file."
                )
        # A backslash stands for the end of a line.
        parts.append([f"{title} {body}".replace("\\", " ") for _, title, body in rows])
        labels.append(np.array([int(row[0]) - 1 for row in rows], np.int64))
    numbers = np.concatenate(labels)
    check_labels(numbers, len(numbers), len(AG_NEWS), files[0])
    return decoded(parts, numbers, AG_NEWS, wish, allocate)
