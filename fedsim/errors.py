"""Errors that a person can act on.

FedsimError
├── UserError        something the user asked for cannot be done; the message says what, the limit, the remedy
│   ├── UnknownName  a name that does not exist; the message offers the nearest ones
│   └── DiskFull     nothing more can be written; what was written is whole
├── ContractError    a method tried to send or was sent what it did not declare; the method must be mended
└── CodingError      an encoding cannot hold a value, or was given bytes that are none of its own
"""

import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_LEAST_LIKENESS = 0.6
_ABOUT_AS_LIKELY = 0.07
_MOST_HINTS = 3


class FedsimError(Exception):
    """Base of everything fedsim raises on purpose."""

    exit_code = 1


class UserError(FedsimError):
    """Shown as one sentence, without a traceback."""

    exit_code = 2


class UnknownName(UserError):
    """`what` ("method"), the name given, and the names there are."""

    def __init__(self, what: str, name: str, known: Iterable[str]):
        known = sorted(known)
        near = _nearest(name, known)
        names = f"known: {', '.join(known)}." if known else "there are none."
        hint = f"did you mean {' or '.join(near)}?" if near else names
        super().__init__(f"there is no {what} {name!r}; {hint}")


class DiskFull(UserError):
    """`path` is what was to be written, or the folder that it is in."""

    def __init__(self, path: Path):
        super().__init__(
            f"no space is left on the disk of {path}; what was written is kept: make room and go on with --resume."
        )


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """A disk without room as a sentence instead of a traceback."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(path) from None


class ContractError(FedsimError):
    """The border refused an array; nothing was sent or handed on."""


class CodingError(FedsimError):
    """What is wrong, to follow the name of the field; the border says which and where."""


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """The likeliest name and those about as likely, best first; nothing where none is like it.

    Of `section.key` only the key is compared: the section is right, and would make all its keys look alike.
    """
    section = name[: name.rfind(".") + 1]
    start = len(section) if all(other.startswith(section) for other in known) else 0
    given = name[start:].lower()
    likeness = {other: difflib.SequenceMatcher(None, other[start:].lower(), given).ratio() for other in known}
    least = max(_LEAST_LIKENESS, max(likeness.values(), default=0.0) - _ABOUT_AS_LIKELY)
    near = sorted((other for other in known if likeness[other] >= least), key=lambda other: -likeness[other])
    return near[:_MOST_HINTS]
