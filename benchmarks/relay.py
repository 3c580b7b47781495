"""How exact the relay is: transfer times against size / rate + delay, with many clients at once.

    python -m benchmarks.relay --clients 1 20 200 --mbit 1 10 100 --kilobytes 10 100 1000 10000

Every client sends at the same moment, from one process through the relay's to a third one that takes note of when
the last byte came. A cell is within bounds where no client is off by more than the larger of 5 % and 5 ms.
What all links together carry beyond the relay's stated capacity is left out, and said.
"""

import argparse
import os
import pickle
import selectors
import socket
import statistics
import time
from dataclasses import dataclass

from benchmarks._common import machine_load, show, workers
from protocol.relay import CAPACITY_BYTES, Relay, Shape

_SLACK_SHARE, _SLACK_SECONDS = 0.05, 0.005


@dataclass(frozen=True)
class Cell:
    """One measurement: what was expected, what it took, and how late the relay itself knows that it was."""

    num_clients: int
    mbit: float
    num_bytes: int
    expected: float
    seconds: list[float]

    @property
    def worst(self) -> float:
        return max((found - self.expected for found in self.seconds), key=abs)

    @property
    def is_within(self) -> bool:
        return abs(self.worst) <= max(_SLACK_SECONDS, _SLACK_SHARE * self.expected)


def measure(num_clients: int, mbit: float, num_bytes: int, delay_seconds: float) -> Cell:
    """One transfer of each client through a new relay."""
    server = socket.create_server(("127.0.0.1", 0), backlog=num_clients)
    shape = Shape(mbit * 1e6 / 8, delay_seconds)
    relay = Relay(f"tcp://127.0.0.1:{server.getsockname()[1]}", [(shape, shape)] * num_clients)
    port = int(relay.address.rpartition(":")[2])
    told_in, told_out = os.pipe()

    def serve() -> int:
        relay.serve(lambda: False)
        return 0

    def receive() -> int:
        ends = _arrivals(server, num_clients, num_bytes)
        os.write(told_out, pickle.dumps(ends))
        return 0

    with workers([serve, receive]):
        relay.close()
        starts = _send(port, num_clients, num_bytes)
        with os.fdopen(told_in, "rb") as pipe:
            os.close(told_out)
            told = b""
            while not told.endswith(b"."):  # a pickle's last byte
                told += pipe.read1()
        ends = pickle.loads(told)
    server.close()
    expected = num_bytes / shape.bytes_per_second + delay_seconds
    return Cell(num_clients, mbit, num_bytes, expected, [ends[c] - starts[c] for c in range(num_clients)])


def _send(port: int, num_clients: int, num_bytes: int) -> dict[int, float]:
    """The first two bytes say who it is, long before the rest; returns when each began with the rest."""
    ends, starts = {}, {}
    for client in range(num_clients):
        ends[client] = socket.create_connection(("127.0.0.1", port + client))
        ends[client].sendall(client.to_bytes(2, "big"))
        ends[client].setblocking(False)
    time.sleep(0.5 + num_clients / 400)  # the links are idle again
    content = memoryview(bytes(num_bytes))
    rest = dict.fromkeys(ends, num_bytes)
    with selectors.DefaultSelector() as selector:
        for client, end in ends.items():
            selector.register(end, selectors.EVENT_WRITE, client)
        while rest:
            for key, _ in selector.select():
                client = key.data
                starts.setdefault(client, time.monotonic())
                rest[client] -= ends[client].send(content[: min(rest[client], 1 << 17)])
                if not rest[client]:
                    del rest[client]
                    selector.unregister(ends[client])
    return starts


def _arrivals(server: socket.socket, num_clients: int, num_bytes: int) -> dict[int, float]:
    counts: dict[socket.socket, int] = {}
    names: dict[socket.socket, int] = {}
    arrived: dict[int, float] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while len(arrived) < num_clients:
            for key, _ in selector.select():
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if end is server:
                    new, _ = server.accept()
                    selector.register(new, selectors.EVENT_READ)
                elif end not in names:
                    names[end], counts[end] = int.from_bytes(end.recv(2), "big"), 0
                else:
                    counts[end] += len(end.recv(1 << 18))
                    if counts[end] == num_bytes:
                        arrived[names[end]] = time.monotonic()
    return arrived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--mbit", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--kilobytes", type=float, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--delay-ms", type=float, default=20)
    options = parser.parse_args()
    rows, within, beyond = [], 0, 0
    for num_clients in options.clients:
        for mbit in options.mbit:
            if num_clients * mbit * 1e6 / 8 > CAPACITY_BYTES:
                beyond += 1
                continue
            for kilobytes in options.kilobytes:
                cell = measure(num_clients, mbit, int(1000 * kilobytes), options.delay_ms / 1000)
                within += cell.is_within
                rows.append(
                    [
                        f"{num_clients}",
                        f"{mbit:g}",
                        f"{kilobytes:g}",
                        f"{1000 * cell.expected:.1f}",
                        f"{1000 * statistics.fmean(cell.seconds):.1f}",
                        f"{1000 * cell.worst:+.1f}",
                        "yes" if cell.is_within else "no",
                    ]
                )
    headings = ("clients", "Mbit/s", "kB", "expected ms", "mean ms", "worst off by ms", "within")
    show(f"Transfers through the relay ({machine_load()})", headings, rows)
    print(
        f"{within} of {len(rows)} within the larger of 5 % and 5 ms; {beyond} beyond the relay's capacity left out"
    )


if __name__ == "__main__":
    main()
