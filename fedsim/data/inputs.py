"""What one sample is: an image, a signal, a vector of numbers or a text, and the shape in which models see it.

A text is a row of token numbers, and says itself how long it is: `PADDING` stands behind its end and nowhere else.
So a batch of texts is one tensor like all others, and whoever needs a mask or the lengths asks these functions.

Letters: B batch, L tokens.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["image", "signal", "vector", "tokens"]

PADDING, UNKNOWN, CLASS = 0, 1, 2
"""Token numbers with a meaning: behind the end, a word that the vocabulary lacks, before the first word."""
NUM_SPECIAL = 3

_BY_DIMENSIONS: dict[int, Kind] = {1: "vector", 2: "signal", 3: "image"}
_LETTERS: dict[tuple[Kind, int], tuple[str, ...]] = {
    ("vector", 1): ("dim",),
    ("signal", 2): ("ch", "length"),
    ("signal", 3): ("ch", "sensors", "length"),
    ("image", 3): ("ch", "h", "w"),
    ("tokens", 1): ("length",),
}


class InputShape(tuple[int, ...]):
    """The sizes of a sample, as a tuple like any other, and what it is. Tokens have a vocabulary too.

    A plain tuple of sizes means a vector, a signal or an image, by its number of dimensions.
    """

    kind: Kind
    vocabulary: int
    """How many token numbers there are, from 0 on; 0 for what is no text."""

    def __new__(cls, sizes: Iterable[int], kind: Kind | Literal[""] = "", vocabulary: int = 0) -> "InputShape":
        made = super().__new__(cls, sizes)
        made.kind = kind or _BY_DIMENSIONS.get(len(made), "vector")
        made.vocabulary = vocabulary
        return made

    def __getnewargs__(self) -> tuple[tuple[int, ...], Kind, int]:
        return tuple(self), self.kind, self.vocabulary

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple):
            return NotImplemented
        meant = described(other)
        return tuple.__eq__(self, other) and (self.kind, self.vocabulary) == (meant.kind, meant.vocabulary)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    @property
    def letters(self) -> dict[str, int]:
        """The letters that contracts may use for the sizes of a sample."""
        names = _LETTERS.get((self.kind, len(self)), ())
        vocabulary = {"vocab": self.vocabulary} if self.kind == "tokens" else {}
        return dict(zip(names, self, strict=False)) | vocabulary

    def __str__(self) -> str:
        """In words: `200 tokens`, `signals of 9x1x128`, `images of 3x32x32`, `2 numbers`."""
        sizes = "x".join(map(str, self))
        words = {"tokens": f"{sizes} tokens", "vector": f"{sizes} numbers"}
        return words.get(self.kind, f"{self.kind}s of {sizes}")


def described(shape: tuple[int, ...]) -> InputShape:
    return shape if isinstance(shape, InputShape) else InputShape(shape)


def mask_of(tokens_BL: Tensor) -> Tensor:
    """(B, L), true where there is a token; always at the first place, so that no text is empty."""
    mask_BL = tokens_BL != PADDING
    mask_BL[:, 0] = True
    return mask_BL


def lengths_of(tokens_BL: Tensor) -> Tensor:
    """(B,)"""
    return mask_of(tokens_BL).sum(dim=1)


def trimmed(tokens_BL: Tensor) -> Tensor:
    """Without what is padding in all texts of the batch, which no model may look at anyway."""
    if tokens_BL.device.type == "meta":  # where only shapes are known
        return tokens_BL
    return tokens_BL[:, : int(lengths_of(tokens_BL).max())]


def example_batch(size: int, shape: tuple[int, ...], device: torch.device | str | None = None) -> Tensor:
    """A batch to try a model with; all tokens are known words, none is padding."""
    sample = described(shape)
    if sample.kind == "tokens":
        first, num = min(NUM_SPECIAL, sample.vocabulary - 1), size * sample[0]
        numbers = torch.arange(num, device=device) % max(1, sample.vocabulary - first) + first
        return numbers.reshape(size, *sample)
    return torch.linspace(-1, 1, size * int(torch.Size(sample).numel()), device=device).reshape(size, *sample)
