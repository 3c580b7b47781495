"""The border between a method and the wire: nothing passes that the method's contract does not declare.

Both sides check both directions, so that a bug is caught before it travels and a peer is not trusted. This is
also the one place where arrays are copied: what comes off the wire are read-only views of the socket's
memory, and a method may keep and change what it is given.
"""

import numpy as np

from fedsim import config, contract
from fedsim.config import Experiment
from fedsim.contract import Arrays, Contract, Fields
from fedsim.metrics import check_metrics as check_metrics  # scalars pass the border with the arrays
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


def where(client: int, round: int, direction: str) -> str:
    """How the border names a message: which client, which round, which way."""
    return f"client {client}, round {round}, {direction}"


def pack_experiment(experiment: Experiment) -> Parcel:
    """The experiment as one array of JSON text, which is how Welcome carries it."""
    text = np.frombuffer(config.to_json(experiment), np.uint8)
    return pack({"experiment": text}, {"experiment": "experiment"})


def unpack_experiment(arrays: Arrays) -> Experiment:
    return config.from_json(arrays["experiment"].tobytes())
