"""A start by hand, as over several machines: a command for the server, one for each client, keys between them."""

import shlex
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Command, Run, Start, address_of, bits, events_of, wait_for_event

from nodes.client.node import EXIT_NO_SERVER, EXIT_REFUSED
from protocol import keys

SMALL = ("--clients", "3", "--rounds", "2")


@pytest.fixture
def key_folders(tmp_path: Path) -> Path:
    """`server/` and `client-0/` to `client-2/`: each machine has its own secret and the others' public keys."""
    keys.create(tmp_path / "server", keys.SERVER)
    for client in range(3):
        name = keys.client_name(client)
        shutil.copy(keys.create(tmp_path / name, name), tmp_path / "server")
        shutil.copy(tmp_path / "server" / "server.key", tmp_path / name)
    return tmp_path


@pytest.fixture
def server(python: Start, tmp_path: Path) -> Callable[..., tuple[str, Run]]:
    def start(*options: str | Path, **how: bool) -> tuple[str, Run]:
        folder = tmp_path / "run"
        listen = () if "--bind" in options else ("--bind", "tcp://127.0.0.1:*")
        command = python("-m", "nodes.server", *TINY, *SMALL, *listen, *options, "--out", folder, **how)
        return address_of(command), Run(command, folder)

    return start


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def client(python: Start) -> Callable[..., Command]:
    def start(address: str, ids: int | str, *options: str | Path, **how: bool) -> Command:
        return python("-m", "nodes.client", "--connect", address, "--ids", str(ids), *options, **how)

    return start


def refusal(client: Command, code: int = EXIT_REFUSED) -> str:
    """The one sentence of a client that was turned away: nobody adds anything to it."""
    assert client.wait() == code
    assert client.stdout.count("\n") == 1 and client.stderr == ""
    return client.stdout.rstrip("\n")


def test_three_clients_with_keys_run_two_rounds_and_nobody_else_gets_in(
    key_folders: Path,
    server: Callable[..., tuple[str, Run]],
    client: Callable[..., Command],
    reference: Callable[..., Path],
) -> None:
    """Nothing is preloaded here: these are the very processes that a user starts."""
    address, run = server("--keys", key_folders / "server", fresh=True)
    joined = [client(address, i, "--keys", key_folders / f"client-{i}", fresh=True) for i in range(2)]

    stranger = key_folders / "stranger"
    keys.create(stranger, "client-2")
    shutil.copy(key_folders / "server" / "server.key", stranger)
    assert refusal(client(address, 2, "--keys", stranger)) == (
        f"client 2 may not join {address}: the server does not admit this key."
    )
    imposter = key_folders / "imposter"
    shutil.copytree(key_folders / "client-1", imposter)
    (imposter / "client-1.key_secret").rename(imposter / "client-2.key_secret")
    assert refusal(client(address, 2, "--keys", imposter)) == (
        "client 2: the key belongs to client 1, not to client 2."
    )
    assert refusal(client(address, 2)) == (
        f"client 2 may not join {address}: the server and this client do not agree on using keys."
    )
    assert run.command.code is None
    wait_for_event(run.folder, "client_ready", client=0)
    wait_for_event(run.folder, "client_ready", client=1)
    assert not list(events_of(run.folder, "client_ready", client=2))

    client(address, 2, "--keys", key_folders / "client-2", fresh=True).succeed()
    run.succeed()
    for command in joined:
        command.succeed()
        assert command.stdout.endswith(": the run is complete\n")
    assert bits(run.folder) == bits(reference(*SMALL))
    assert run.summary["audit"]["agree"] == run.summary["audit"]["connections"] == 3


def test_a_client_with_keys_does_not_talk_to_a_server_without(
    key_folders: Path, server: Callable[..., tuple[str, Run]], client: Callable[..., Command]
) -> None:
    address, run = server()
    assert refusal(client(address, 0, "--keys", key_folders / "client-0")) == (
        f"client 0 may not join {address}: the server and this client do not agree on using keys."
    )
    client(address, "0-2").succeed()
    run.succeed()


def test_a_client_talks_to_no_server_but_the_one_whose_key_it_has(
    key_folders: Path, server: Callable[..., tuple[str, Run]], client: Callable[..., Command]
) -> None:
    address, run = server("--keys", key_folders / "server")
    misled = key_folders / "misled"
    shutil.copytree(key_folders / "client-0", misled)
    shutil.copy(keys.create(key_folders / "other", "server"), misled)
    sentence = refusal(client(address, 0, "--keys", misled, "--patience", "1"), EXIT_NO_SERVER)
    assert sentence.startswith("client 0") and address in sentence
    for command in [client(address, i, "--keys", key_folders / f"client-{i}") for i in range(3)]:
        command.succeed()
    run.succeed()


def test_ids_that_are_taken_or_do_not_exist_are_refused(
    server: Callable[..., tuple[str, Run]], client: Callable[..., Command]
) -> None:
    address, run = server()
    first = client(address, "0-1", "--place", "first machine")
    wait_for_event(run.folder, "client_ready", client=1)
    assert refusal(client(address, 1)) == "client 1: client 1 has joined already from first machine."
    assert refusal(client(address, 3)) == "client 3: there is no client 3 in this run; ids go from 0 to 2."
    client(address, 2).succeed()
    first.succeed()
    run.succeed()


def test_other_machines_may_join_without_keys_when_the_user_insists(
    server: Callable[..., tuple[str, Run]], client: Callable[..., Command], reference: Callable[..., Path]
) -> None:
    address, run = server("--bind", "tcp://0.0.0.0:*", "--insecure")
    client(address.replace("0.0.0.0", "127.0.0.1"), "0-2", "--heartbeat", "5").succeed()
    run.succeed()
    assert bits(run.folder) == bits(reference(*SMALL))


def test_the_printed_commands_work_as_they_are(
    python: Start, tmp_path: Path, free_port: int, reference: Callable[..., Path]
) -> None:
    """Typed on two machines, here two folders, with the keys carried over as the comments say."""
    here, there = tmp_path / "server machine", tmp_path / "client machine"
    here.mkdir()
    there.mkdir()
    run_cluster = PROJECT / "run_cluster.py"
    options = ("--print-commands", "--curve", "--port", str(free_port), "--out", "runs/long run")
    printed = python(run_cluster, *TINY, *SMALL, *options, cwd=here).succeed()
    lines = [line for line in printed.stdout.splitlines() if line and not line.startswith("#")]
    filled_in = [line.replace("SERVER", "127.0.0.1") for line in lines]
    server_keys, server, client_keys, clients = map(shlex.split, filled_in)
    fedsim = tmp_path / "fedsim.py"
    fedsim.write_text("from nodes.cli import main\nmain()\n")

    def typed(words: list[str]) -> list[str]:
        return words[1:] if words[0] == "python" else [str(fedsim), *words[1:]]

    python(*typed(server_keys), cwd=here).succeed()
    python(*typed(client_keys), cwd=there).succeed()
    for client in range(3):
        shutil.copy(there / "keys" / f"client-{client}.key", here / "keys")
    shutil.copy(here / "keys" / "server.key", there / "keys")
    run = Run(python(*typed(server), cwd=here), here / "runs" / "long run")
    python(*typed(clients), cwd=there).succeed()
    run.succeed()
    assert bits(run.folder) == bits(reference(*SMALL))
    assert list((there / "keys").glob("*.key_secret")) and not list((there / "keys").glob("server.key_secret"))
