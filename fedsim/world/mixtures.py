"""Who has what: a value for each client, by its id or drawn from a mixture with the experiment's seed.

A mixture is one value, or several with weights: `wifi:5,4g:3`. A value has no commas and no colons.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from fedsim.errors import UserError
from fedsim.seeds import Streams

T = TypeVar("T")
_WEIGHT = re.compile(r"(.*):([0-9]+(?:\.[0-9]+)?)", re.DOTALL)


def deal(
    what: str,
    parse: Callable[[str], T],
    mixture: str,
    by_client: Mapping[str, str],
    num_clients: int,
    seed: int,
) -> list[T | None]:
    """`what` names the stream of the draws, and the thing in messages."""
    own = {client: text for ids, text in by_client.items() for client in _ids(ids, what, num_clients)}
    if sum(len(_ids(ids, what, num_clients)) for ids in by_client) > len(own):
        raise UserError(f"a client has more than one {what}; name each id once.")
    known = {text: parse(text) for text in own.values()}
    drawn = [(parse(text), weight) for text, weight in parts(mixture)] if mixture else []
    return [
        known[own[client]] if client in own else _draw(what, drawn, client, seed) for client in range(num_clients)
    ]


def parts(mixture: str) -> list[tuple[str, float]]:
    """The values of a mixture and their weights."""
    found = []
    for part in mixture.split(","):
        weighed = _WEIGHT.fullmatch(part.strip())
        text, weight = (weighed[1], float(weighed[2])) if weighed else (part.strip(), 1.0)
        found.append((text, weight))
    if not sum(weight for _, weight in found):
        raise UserError(f"all weights in {mixture!r} are 0, so nobody would have any of it; raise one.")
    return found


def read(path: Path, section: str) -> dict[str, str]:
    """Ids -> value from a file: a table `clients`, and, to say a thing once, a table of names for values.

    [links]
    village = "up=1mbit down=6mbit delay=60ms"
    [clients]
    "0-9" = "village"
    "10-14" = "fibre"
    """
    try:
        given = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from None
    names, clients = given.get(section, {}), given.get("clients")
    if not isinstance(clients, dict) or not clients or set(given) - {section, "clients"}:
        raise UserError(
            f"{path} wants a table [clients] with ids and what they have, and no others but [{section}]."
        )
    if not isinstance(names, dict):
        raise UserError(f"{path}: {section} = {names!r} is no table; write [{section}] and a line for each name.")
    for key, value in [*clients.items(), *names.items()]:
        if not isinstance(value, str):
            raise UserError(f"{path}: {key} = {value!r} is no text; write it as on the command line, in quotes.")
    return {ids: str(names.get(value, value)) for ids, value in clients.items()}


def _draw(what: str, drawn: list[tuple[T, float]], client: int, seed: int) -> T | None:
    if not drawn:
        return None
    values, weights = zip(*drawn, strict=True)
    place = (
        Streams(seed)
        .numpy(f"world/{what}", client=client)
        .choice(len(values), p=[weight / sum(weights) for weight in weights])
    )
    return values[int(place)]


def _ids(text: str, what: str, num_clients: int) -> range:
    first, dash, last = text.strip().partition("-")
    if not first.isdigit() or not (last if dash else first).isdigit() or int(last or first) < int(first):
        raise UserError(f"{text!r} is no range of client ids, so nobody has this {what}; write 7 or 0-49.")
    if int(last or first) >= num_clients:
        raise UserError(
            f"there is no client {last or first} to have a {what}; ids go from 0 to {num_clients - 1}."
        )
    return range(int(first), int(last or first) + 1)
