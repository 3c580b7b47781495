"""Values that somebody wrote become a section, or one sentence that names the option and what it may be."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from fedsim.config.sections import Section
from fedsim.errors import UnknownName, UserError


def checked(values: Mapping[str, Any], kind: type, path: str) -> Any:
    """msgspec checks types and ranges; names are checked here first, for the hint with the nearest ones."""
    _check_names(values, kind, path)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        where = (path + place.rstrip("`")).strip(".")
        given = _look_up(values, place.rstrip("`").strip("."))
        if isinstance(given, str) and (choices := _choices(kind, place.rstrip("`").strip("."))):
            raise UnknownName(where, given, choices) from None
        raise UserError(f"{where} = {given!r} is not valid: {reason.replace('`', '').lower()}.") from None


def _check_names(values: Mapping[str, Any], kind: type, path: str) -> None:
    fields = {item.name: item.type for item in msgspec.structs.fields(kind)}
    for key, value in values.items():
        if key not in fields:
            raise UnknownName("option", f"{path}.{key}".strip("."), [f"{path}.{f}".strip(".") for f in fields])
        if isinstance(value, Mapping) and isinstance(fields[key], type) and issubclass(fields[key], Section):
            _check_names(value, fields[key], f"{path}.{key}".strip("."))


def _choices(kind: type, path: str) -> list[str]:
    """The words that an option allows; none where it is not an option of words."""
    for key in path.split("."):
        fields = {item.name: item.type for item in msgspec.structs.fields(kind)}
        kind = fields.get(key, object)
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def _look_up(values: Any, path: str) -> Any:
    for key in path.split(".") if path else []:
        if not isinstance(values, Mapping):
            break
        values = values.get(key)
    return values
