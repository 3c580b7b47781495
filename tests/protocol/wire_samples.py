"""Messages and arrays that the tests of the wire send."""

import msgpack
import numpy as np

from protocol.codec import Parcel, pack
from protocol.messages import VERSION, Hello, Setup, Stop

SETUP = Setup(run="a-run")
STOP = Stop(reason="done")


def hello(client: int) -> Hello:
    return Hello(client=client, place="here", slots=1)


def zeros(num_bytes: int) -> dict[str, np.ndarray]:
    return {"a": np.zeros(num_bytes, np.uint8)}


def parcel_of(**arrays: np.ndarray) -> Parcel:
    return pack(arrays, dict.fromkeys(arrays, "prototypes"))


def frames_of(header: dict, *arrays: bytes) -> list[bytes]:
    """A stop message with other fields in its header, as frames."""
    return [msgpack.packb({"v": VERSION, "kind": "stop", "reason": "", **header}), *arrays]
