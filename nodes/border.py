"""The border between a method and the wire: nothing passes that the method's contract does not declare.

Both sides check both directions, so that a bug is caught before it travels and a peer is not trusted. This is
also the one place where arrays are copied: what comes off the wire are read-only views of the socket's
memory, and a method may keep and change what it is given.
"""

from collections.abc import Mapping

import numpy as np

from fedsim import config, contract
from fedsim.config import Experiment
from fedsim.contract import Arrays, Contract, Fields
from fedsim.errors import ContractError
from protocol.codec import Parcel, pack


class Border:
    """One method's contract with the sizes of one experiment."""

    def __init__(self, contract: Contract, dimensions: dict[str, int]):
        self.contract = contract
        self._dimensions = dimensions

    def outgoing(self, arrays: Arrays, fields: Fields, where: str) -> Parcel:
        """What a method hands over, checked and made ready to travel."""
        contract.check(arrays, fields, self._dimensions, where)
        ordered = {name: arrays[name] for name in fields if name in arrays}
        return pack(ordered, {name: str(field.payload) for name, field in fields.items()})

    def incoming(self, arrays: Arrays, fields: Fields, where: str) -> Arrays:
        """What came off the wire, checked and copied."""
        contract.check(arrays, fields, self._dimensions, where)
        return {name: np.array(array) for name, array in arrays.items()}


def check_metrics(metrics: Mapping[str, float], where: str) -> None:
    """The server computes with the numbers of samples, so they must be numbers of samples.

    `correct` of `tested` is what every method reports; some report further pairs, such as `global_correct`.
    """
    for prefix in tests_of(metrics):
        given = {name: metrics.get(name) for name in (f"{prefix}correct", f"{prefix}tested")}
        correct, tested = (-1.0 if number is None else float(number) for number in given.values())
        if not (correct.is_integer() and tested.is_integer() and 0 <= correct <= tested):
            raise ContractError(f"{where}: metrics {given} are not whole numbers with 0 <= correct <= tested")


def tests_of(metrics: Mapping[str, float]) -> list[str]:
    """The tests that a client was put to: "" for its own test set, "global_" for `global_correct`."""
    named = (name.rpartition("_") for name in metrics)
    return sorted({head + line for head, line, last in named if last in ("correct", "tested")})


def where(client: int, round: int, direction: str) -> str:
    """How the border names a message: which client, which round, which way."""
    return f"client {client}, round {round}, {direction}"


def pack_experiment(experiment: Experiment) -> Parcel:
    """The experiment as one array of JSON text, which is how Welcome carries it."""
    text = np.frombuffer(config.to_json(experiment), np.uint8)
    return pack({"experiment": text}, {"experiment": "experiment"})


def unpack_experiment(arrays: Arrays) -> Experiment:
    return config.from_json(arrays["experiment"].tobytes())
