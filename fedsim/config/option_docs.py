"""The documentation of options: the string below each field of a config section, as the source has it."""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import msgspec

from fedsim.config import Section


@dataclass(frozen=True)
class Option:
    """One field of a section."""

    name: str
    default: Any
    doc: str


def options_of(section: type[Section]) -> list[Option]:
    """All fields with their defaults, those of the section's bases first."""
    docs: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, Section) and kind is not Section:
            docs |= docs_of(kind)
    return [Option(item.name, item.default, docs.get(item.name, "")) for item in msgspec.structs.fields(section)]


def docs_of(kind: type) -> dict[str, str]:
    """Python keeps no docstrings of fields, so they are read from the source of the class itself."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                found[name] = inspect.cleandoc(doc)
    return found
