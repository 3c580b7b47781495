"""A slow link on loopback: the relay of the project, in a thread."""

import threading

from protocol import relay


class Relay:
    """`with Relay(address, mbit_per_second=4) as link:` and one client connects to `link.address`."""

    def __init__(self, address: str, *, mbit_per_second: float):
        shape = relay.Shape(mbit_per_second * 1e6 / 8)
        self._relay = relay.Relay(address, [(shape, shape)])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._relay.serve, args=(self._over.is_set,), daemon=True)
        self.address = self._relay.address

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._relay.close()
