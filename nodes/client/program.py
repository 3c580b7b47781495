"""From options to processes: the clients of one machine, and its executors where clients do not compute."""

import logging
import os
import signal
import socket
from contextlib import closing
from pathlib import Path

from fedsim.own import loading
from nodes.client.node import EXIT_NO_SERVER, ClientNode
from nodes.client.options import ClientOptions, log_name
from nodes.client.worker import Worker
from nodes.launchers import capacity, processes, zygote
from nodes.launchers.placement import Placement
from protocol import keys
from protocol.addresses import resolve
from protocol.client_socket import ClientSocket
from protocol.errors import AddressUnusable
from protocol.keys import KeyPair
from protocol.limits import Limits

log = logging.getLogger(__name__)

Secret = tuple[KeyPair | None, bytes | None]
"""A client's own keys and the server's public one, where there are keys."""


def run_clients(
    options: ClientOptions,
    plan: capacity.HostPlan | None = None,
    *,
    secrets: dict[int, Secret] | None = None,
    by_hand: bool = False,
) -> int:
    """Until all clients have ended; returns the exit code. Keys are those of `options`, or `secrets`.

    Started `by_hand`, this process is the parent that must be preloaded, and Ctrl-C is meant for it; otherwise a
    launcher above it has seen to both. It also has a `plan`, since it knows the experiment.
    """
    resolve(options.connect)  # refused here, once, and not by every client
    secrets = secrets or secrets_of(options)
    for place in options.code:
        loading.file_of(place)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    if by_hand:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning: the server decides, and tells the clients
        zygote.preload()
    processes.raise_file_limit()  # of the pool, to which every client is connected
    if plan is None:
        plan = capacity.plan_host(options, capacity.Expected())
        for note in plan.notes:
            print(note, flush=True)
    placements = plan.placements
    if plan.compute == "shared":
        return _run_shared(options, placements, secrets, by_hand)
    # As many build their models at once as train at once.
    width = sum({placement.place: placement.slots for placement in placements.values()}.values())
    turnstile = processes.Turnstile(width)

    def start(client: int) -> int:
        placement = placements[client]

        def main() -> int:
            worker = _own_worker(client, options, placement, turnstile)
            return run_client(client, options, placement, secrets[client], worker)

        return zygote.fork(main)

    host = zygote.Host(start, options.restarts, forward_interrupt=by_hand, own_logs=options.logs is not None)
    return host.run(options.ids)


def _own_worker(
    client: int, options: ClientOptions, placement: Placement, turnstile: processes.Turnstile
) -> Worker:
    from nodes.client.own import OwnWorker

    os.environ.update(placement.environment)
    return OwnWorker(client, placement, turnstile, options.code)


def _run_shared(
    options: ClientOptions, placements: dict[int, Placement], secrets: dict[int, Secret], by_hand: bool
) -> int:
    """Executors are forked from here, clients from a parent without torch, which is started again when killed."""
    from nodes.client import executor, light
    from nodes.client.pool import Pool

    def start(end: socket.socket, slot: int, placement: Placement) -> int:
        def main() -> int:
            pool.let_go()
            if options.logs is not None:
                zygote.redirect_output(options.logs / f"executor-{places.index(placement.place)}-{slot}.log")
            return executor.run_executor(end, slot, placement, options.code)

        return zygote.fork(main)

    by_name = {placement.place: placement for placement in placements.values()}
    places = sorted(by_name)
    stopping = False

    def on_terminate(*_: object) -> None:
        nonlocal stopping
        stopping = True
        child.terminate()

    with closing(Pool(by_name, start)) as pool:
        for _ in range(options.restarts + 1):
            child = light.start(options, placements, secrets, pool.addresses)
            for number in (signal.SIGTERM, *([signal.SIGINT] if by_hand else [])):
                signal.signal(number, on_terminate)
            pool.serve_until_ended(child.pid)
            if (code := child.wait()) >= 0 or stopping:
                break
            log.warning("the parent of the clients was killed by signal %d; starting it again", -code)
    return code if code >= 0 else 1


def run_client(client: int, options: ClientOptions, placement: Placement, secret: Secret, worker: Worker) -> int:
    """The main function of a client's process."""
    if options.logs is not None:
        zygote.redirect_output(options.logs / log_name(client))
    own_key, server_key = secret
    try:
        end = ClientSocket(
            options.address_of(client),
            client,
            limits=Limits.of_frames(options.max_frame_mib),
            keys=own_key,
            server_key=server_key,
            heartbeat_seconds=options.heartbeat,
        )
    except AddressUnusable as error:
        print(f"client {client}: {error}", flush=True)
        return EXIT_NO_SERVER
    with closing(end):
        return ClientNode(client, options, placement, end, worker).run()


def secrets_of(options: ClientOptions) -> dict[int, Secret]:
    return {client: _secret(options.keys, client) for client in options.ids}


def _secret(folder: Path | None, client: int) -> Secret:
    if folder is None:
        return None, None
    return keys.load_secret(folder, keys.client_name(client)), keys.load_public(folder / f"{keys.SERVER}.key")
