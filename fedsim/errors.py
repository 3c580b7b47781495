"""Errors that a person can act on.

FedsimError
├── UserError        something the user asked for cannot be done; the message says what, the limit, the remedy
│   └── UnknownName  a name that does not exist; the message offers the nearest ones
└── ContractError    a method tried to send or was sent what it did not declare; the method must be mended
"""

import difflib
from collections.abc import Iterable


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
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}."
        super().__init__(f"there is no {what} {name!r}; {hint}")


class ContractError(FedsimError):
    """The border refused an array; nothing was sent or handed on."""
