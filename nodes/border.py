"""The border between a method and the wire: nothing passes that the method's contract does not declare.

Both sides check both directions, so that a bug is caught before it travels and a peer is not trusted. This is
also the one place where arrays are copied: what comes off the wire are read-only views of the socket's
memory, and a method may keep and change what it is given.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from fedsim import config, contract, own_code, own_files
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
    """As Welcome carries it: one array of JSON text, and a second one with the hashes of the own code that the
    experiment names, where it names any."""
    texts = {"experiment": config.to_json(experiment)}
    if hashes := own_files.hashes(config.to_layer(experiment)):
        texts["code"] = msgspec.json.encode(hashes)
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    return pack(arrays, dict.fromkeys(arrays, "experiment"))


def unpack_experiment(arrays: Arrays, code: Sequence[str] = ()) -> Experiment:
    """`code` are the files and modules that may be run here: one for each that the experiment names, and equal."""
    hashes = msgspec.json.decode(arrays["code"].tobytes(), type=dict[str, str]) if "code" in arrays else {}
    own_code.allow_only(None)  # what is named here may be looked at, also after another run
    own_code.allow_only(own_files.matched(hashes, code))
    return config.from_json(arrays["experiment"].tobytes())
