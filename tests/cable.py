"""A link that can be cut: two network namespaces, and a program of our own that carries packets between them.

Each namespace has a TUN device; the program passes packets on at a rate. SIGUSR1 cuts the link or joins it again.
Needs root and /dev/net/tun, no kernel module. Nothing outlives the program: the namespaces have no name and end
with the processes in them.

A relay, such as `protocol/relay.py`, ends each connection and makes another, so behind it nobody feels that
packets are lost: its own kernel goes on answering. Here the connection is one, and only its packets are carried.

    python cable.py RATE_MBIT      prints the process that holds each side, for `nsenter --net=/proc/PID/ns/net`
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

ADDRESSES = ("10.77.14.1", "10.77.14.2")
_CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x40000000, 1
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_QUEUE_BYTES = 150_000
_LIBC = ctypes.CDLL(None, use_errno=True)


def _side(own: str, other: str) -> tuple[int, int]:
    """A namespace with a device in it: the process that holds it, and the device."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    if _LIBC.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"link0", _IFF_TUN_NO_PI))
    for words in (f"addr add {own} peer {other} dev link0", "link set link0 up mtu 1500", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    holder = os.fork()
    if holder == 0:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        while True:
            signal.pause()
    enter(home)
    os.close(home)
    return holder, device


def main(rate_mbit: float) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sides = [_side(*ADDRESSES), _side(*reversed(ADDRESSES))]
    bytes_per_second = rate_mbit * 1e6 / 8
    is_cut = False

    def toggle(number: int, frame: object) -> None:
        nonlocal is_cut
        is_cut = not is_cut

    signal.signal(signal.SIGUSR1, toggle)
    print(*(holder for holder, _ in sides), flush=True)
    devices = [device for _, device in sides]
    other = dict(zip(devices, reversed(devices), strict=True))
    free_at, queued = dict.fromkeys(devices, 0.0), dict.fromkeys(devices, 0)
    under_way: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, _, device, packet = heapq.heappop(under_way)
            queued[device] -= len(packet)
            if not is_cut:
                os.write(device, packet)
        ready, _, _ = select.select(devices, [], [], max(0.0, under_way[0][0] - now) if under_way else 0.5)
        for source in ready:
            packet, target = os.read(source, 65_535), other[source]
            if is_cut or queued[target] > _QUEUE_BYTES:
                continue
            free_at[target] = max(free_at[target], time.monotonic()) + len(packet) / bytes_per_second
            queued[target] += len(packet)
            heapq.heappush(under_way, (free_at[target], next(numbers), target, packet))


class Cable:
    """As a context manager: the program above, and a way into its two namespaces."""

    def __init__(self, mbit_per_second: float):
        words = [sys.executable, __file__, str(mbit_per_second)]
        self._program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._program.stdout is not None
        self.holders = [int(word) for word in self._program.stdout.readline().split()]

    def __enter__(self) -> "Cable":
        return self

    def __exit__(self, *error: object) -> None:
        self._program.kill()
        self._program.wait()
        if self._program.stdout:
            self._program.stdout.close()

    def toggle(self) -> None:
        """Cut it, or join it again."""
        self._program.send_signal(signal.SIGUSR1)


@contextlib.contextmanager
def inside(holder: int) -> Iterator[None]:
    """What this thread opens meanwhile belongs to that namespace."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{holder}/ns/net", os.O_RDONLY)
    try:
        enter(there)
        yield
        enter(home)
    finally:
        os.close(home)
        os.close(there)


def enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")


if __name__ == "__main__":
    main(float(sys.argv[1]))
