"""The parent of clients that compute nothing themselves: a Python without torch, from which all are forked.

Started by the host with a brief on its standard input. A client forked from here has a few megabytes of its own;
one forked from a parent with torch would copy more than that of the parent's heap, page by page, by counting
references.
"""

import gc
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from nodes.client.options import MAX_SLOTS, ClientOptions
from nodes.client.program import Secret, run_client
from nodes.client.shared import SharedWorker
from nodes.launchers import processes, zygote
from nodes.launchers.placement import Placement

_PROJECT = Path(__file__).parents[2]


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What the host has decided."""

    host: int
    words: list[str]
    """The options of the clients, as they are typed."""
    placements: dict[int, Placement]
    secrets: dict[int, Secret]
    pools: dict[str, str]
    """Where the executors of each place are found."""


def start(
    options: ClientOptions,
    placements: dict[int, Placement],
    secrets: dict[int, Secret],
    pools: dict[str, str],
) -> subprocess.Popen[bytes]:
    """Start the parent; it ends when all its clients have, with the worst of their exit codes."""
    brief = Brief(host=os.getpid(), words=options.words(), placements=placements, secrets=secrets, pools=pools)
    path = os.pathsep.join([str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(brief))
    child.stdin.close()
    return child


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the host decides
    brief = msgspec.json.decode(sys.stdin.buffer.read(), type=Brief)
    processes.die_with_parent(brief.host, signal.SIGKILL)
    options = ClientOptions.parse(brief.words)

    def start_client(client: int) -> int:
        placement = _with_a_queue(brief.placements[client])
        worker = SharedWorker(client, placement.place, brief.pools[placement.place])
        return zygote.fork(lambda: run_client(client, options, placement, brief.secrets[client], worker))

    gc.collect()
    gc.freeze()
    return zygote.Host(start_client, options.restarts, own_logs=options.logs is not None).run(options.ids)


def _with_a_queue(placement: Placement) -> Placement:
    """For each piece of work that is under way another one waits at the executors, which keep to their slots
    themselves: none of them idles while an answer goes to the server and the next question comes from it."""
    return replace(placement, slots=min(2 * placement.slots, MAX_SLOTS))


if __name__ == "__main__":
    sys.exit(main())
