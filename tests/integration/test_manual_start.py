"""A start by hand, as over several machines: a command for the server, one for each client, keys between them."""

import shlex
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Command, Run, Start, address_of, bits, events_of, wait_for_event

from benchmarks._ports import free_port
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
        f"client 2 may not join {address}: the server has keys and this client has none; "
        "give --keys to both, or to neither."
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
        f"client 0 may not join {address}: this client has keys and the server has none; "
        "give --keys to both, or to neither."
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
    sentence = refusal(client(address, 0, "--keys", misled, "--patience", "1", "--heartbeat", "1"), EXIT_NO_SERVER)
    assert sentence.startswith("client 0") and address in sentence
    for command in [client(address, i, "--keys", key_folders / f"client-{i}") for i in range(3)]:
        command.succeed()
    run.succeed()


def test_ids_that_are_taken_or_do_not_exist_are_refused(
    server: Callable[..., tuple[str, Run]], client: Callable[..., Command]
) -> None:
    address, run = server("--set", "cluster.rejoin_seconds=0.5")
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


def test_tasks_of_a_job_find_the_server_by_its_file_and_share_the_clients(
    python: Start, key_folders: Path, reference: Callable[..., Path]
) -> None:
    """As `srun` starts them, before there is a server; keys are in one folder that all nodes see."""
    shared, file = key_folders / "server", key_folders / "server.json"
    for i in range(3):
        shutil.copy(key_folders / f"client-{i}" / f"client-{i}.key_secret", shared)
    find = ("--address-file", file, "--ids", "auto", "--keys", shared)
    tasks = [
        python("-m", "nodes.client", *find, SLURM_PROCID=str(task), SLURM_NTASKS="2", fresh=True)
        for task in range(2)
    ]
    listen = ("--bind", "tcp://0.0.0.0:*", "--keys", shared, "--address-file", file)
    run = Run(
        python("-m", "nodes.server", *TINY, *SMALL, *listen, "--out", key_folders / "run"), key_folders / "run"
    )
    run.succeed()
    said = "".join(task.succeed().stdout for task in tasks)
    assert said.count(f": joined tcp://{socket.gethostname()}:") == said.count(": the run is complete") == 3
    assert bits(run.folder) == bits(reference(*SMALL))
    assert not file.exists()


def test_slurms_warning_ends_a_server_with_the_command_to_go_on(
    server: Callable[..., tuple[str, Run]], client: Callable[..., Command]
) -> None:
    """It reaches the clients as well, which wait for the server's word."""
    address, run = server("--rounds", "60", "--checkpoint-every", "1", "--set", "train.local_epochs=20")
    host = client(address, "0-2")
    wait_for_event(run.folder, "checkpoint", round=1)
    host.send_to_all(signal.SIGUSR1)
    run.command.send(signal.SIGUSR1)
    assert run.command.wait() == 1
    assert run.summary["reason"] == "the run was stopped (SIGUSR1, a warning that the time is over soon)"
    assert f"--resume {run.folder} --bind 'tcp://127.0.0.1:*'\n" in run.command.stdout
    host.succeed()
    assert host.stdout.count("the run was stopped (SIGUSR1") == 3


def test_the_printed_commands_work_as_they_are(
    python: Start, tmp_path: Path, reference: Callable[..., Path]
) -> None:
    """Typed on three machines, here three folders, with the bundles carried over as the comments say."""
    here, *machines = (tmp_path / name for name in ("server machine", "first machine", "second machine"))
    for folder in (here, *machines):
        folder.mkdir()
    run_cluster = PROJECT / "run_cluster.py"
    port = free_port()
    options = ("--print-commands", "--curve", "--port", str(port), "--out", "runs/long run")
    printed = python(run_cluster, *TINY, *SMALL, *options, cwd=here).succeed()
    lines = [line for line in printed.stdout.splitlines() if line and not line.startswith("#")]
    filled_in = [line.replace("SERVER", "127.0.0.1") for line in lines]
    bundles, server, client = map(shlex.split, filled_in)
    fedsim = tmp_path / "fedsim.py"
    fedsim.write_text("from nodes.cli import main\nmain()\n")

    python(fedsim, *bundles[1:], cwd=here).succeed()
    for number, there in enumerate(machines, start=1):
        (here / "keys" / f"host-{number}.bundle").rename(there / "host-1.bundle")  # as the command names it
    run = Run(python(fedsim, *server[1:], cwd=here), here / "runs" / "long run")
    hosts = [python(fedsim, *client[1:], cwd=there) for there in machines]
    run.succeed()
    for host, ids in zip(hosts, ([0, 1], [2]), strict=True):
        said = host.succeed().stdout
        for one in ids:
            assert f"client {one}: joined tcp://127.0.0.1:{port} from host-{1 if ids[0] == 0 else 2}" in said
            assert f"client {one}: round 1 done in " in said
            assert f"client {one}: the run is complete" in said
    assert bits(run.folder) == bits(reference(*SMALL))
    assert not list(machines[0].glob("**/*.key_secret"))
