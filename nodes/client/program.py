"""From options to processes: the clients of one machine, forked from one preloaded parent."""

import os
import socket
from contextlib import closing
from pathlib import Path

import torch

from fedsim import own_code
from nodes.client.node import EXIT_NO_SERVER, ClientNode
from nodes.client.options import ClientOptions
from nodes.launchers import processes, zygote
from nodes.launchers.placement import Placement, place_client, usable_gpus
from protocol import keys
from protocol.addresses import host_of
from protocol.errors import AddressUnusable
from protocol.keys import KeyPair
from protocol.limits import MEBIBYTE, Limits
from protocol.transport import ClientSocket

Secret = tuple[KeyPair | None, bytes | None]
"""A client's own keys and the server's public one, where there are keys."""


def run_clients(options: ClientOptions, *, by_hand: bool = False) -> int:
    """Until all clients have ended; returns the exit code.

    Started `by_hand`, this process is the parent that must be preloaded, and Ctrl-C is meant for it; otherwise a
    launcher above it has seen to both.
    """
    host_of(options.connect, listens=False)  # refused here, once, and not by every client
    secrets = {client: _secret(options.keys, client) for client in options.ids}
    for place in options.code:
        own_code.file_of(place)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    if by_hand:
        zygote.preload()
    gpus, cores = usable_gpus(options.device), processes.cores()
    place = options.place or socket.gethostname()

    def start(client: int) -> int:
        placement = place_client(client, host=place, gpus=gpus, cores=cores, slots=options.slots)
        return zygote.fork(lambda: run_client(client, options, placement, secrets[client]))

    own_logs = options.logs is not None
    return zygote.Host(start, options.restarts, forward_interrupt=by_hand, own_logs=own_logs).run(options.ids)


def run_client(client: int, options: ClientOptions, placement: Placement, secret: Secret) -> int:
    """The main function of a client's process."""
    if options.logs is not None:
        zygote.redirect_output(options.logs / f"client-{client:05d}.log")
    os.environ.update(placement.environment)
    torch.set_num_threads(1)
    own_key, server_key = secret
    try:
        end = ClientSocket(
            options.connect,
            client,
            limits=Limits(max_frame_bytes=options.max_frame_mib * MEBIBYTE),
            keys=own_key,
            server_key=server_key,
            heartbeat_seconds=options.heartbeat,
        )
    except AddressUnusable as error:
        print(f"client {client}: {error}", flush=True)
        return EXIT_NO_SERVER
    with closing(end):
        return ClientNode(client, options, placement, end).run()


def _secret(folder: Path | None, client: int) -> Secret:
    if folder is None:
        return None, None
    return keys.load_secret(folder, keys.client_name(client)), keys.load_public(folder / f"{keys.SERVER}.key")
