"""A mistake on the command line is one sentence on standard error and an exit code; nothing is left behind."""

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Command, Start

from protocol import keys

RUN = PROJECT / "run_cluster.py"
CLIENT = ("-m", "nodes.client", "--connect", "tcp://127.0.0.1:1")

NO_NETWORK = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
"""Whoever tries to download something is refused by this machine."""


@pytest.fixture
def complaint(python: Start, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must fail; returns its one sentence."""

    def run(*argv: str | Path, code: int = 2, **environment: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        command = python(*argv, **environment)
        assert command.wait() == code, command.stdout + command.stderr
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
        assert not command.left()
        return sentence_of(command)

    return run


def sentence_of(command: Command) -> str:
    """What was printed on standard error: one line, or the three lines that click writes for a wrong option."""
    assert command.stdout == ""
    rest = command.stderr.rpartition("\n\n")[2] if "Usage:" in command.stderr else command.stderr
    assert rest.count("\n") == 1 and rest.lower().startswith("error: "), command.stderr
    return rest[len("error: ") :].rstrip("\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--method", "fedtpg"), "there is no method 'fedtpg'; did you mean fedtgp?"),
        (("--dataset", "digit"), "there is no data set 'digit'; did you mean digits?"),
        (("--model-group", "HtCNN9"), "there is no model group 'HtCNN9'; did you mean HtCNN8"),
        (("--set", "run.round=3"), "there is no option 'run.round'; did you mean run.rounds"),
        (("--set", "rum.rounds=3"), "there is no option 'rum'; did you mean run"),
        (("--set", "method.distanse=l2"), "there is no option 'method.distanse'; did you mean method.distance"),
        (("--set", "rounds"), "--set wants section.key=value, not 'rounds'."),
        (("--set", "train.lr=fast"), "train.lr = 'fast' is not valid: expected float, got str."),
        (("--preset", "no-such-preset"), "there is no preset 'no-such-preset'; "),
        (("--config", "nowhere.toml"), "there is no config file nowhere.toml."),
        (("--clients", "0"), "run.clients = 0 is not valid: expected int >= 1."),
        (("--participation", "1.5"), "run.participation = 1.5 is not valid: expected float <= 1.0."),
        (("--rounds", "many"), "Invalid value for '--rounds': 'many' is not a valid integer."),
        (("--metod", "local"), "No such option '--metod'"),
        (
            ("--partition", "pathological", "--classes-per-client", "7"),
            "data.classes_per_client = 7 is more than there are classes; give at most 6.",
        ),
        (("--clients", "500"), "client 0 gets 0 of 240 samples, too few for a training part of 75%; lower "),
        (("--resume", "nowhere"), "nowhere is not a run folder: it has no config.toml."),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_experiment_is_refused_before_anything_starts(
    options: tuple[str, ...], sentence: str, complaint: Callable[..., str]
) -> None:
    tiny = () if options[0] == "--resume" else TINY
    assert complaint(RUN, *tiny, *options).startswith(sentence)


def test_the_command_itself_says_the_same_when_nothing_is_preloaded(python: Start, tmp_path: Path) -> None:
    command = python(RUN, "--method", "fedtpg", fresh=True)
    assert command.wait() == 2
    assert sentence_of(command).startswith("there is no method 'fedtpg'; did you mean fedtgp")
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_is_nowhere_to_be_had_comes_with_a_remedy(complaint: Callable[..., str]) -> None:
    sentence = complaint(RUN, *TINY, "--dataset", "svhn", **NO_NETWORK)
    assert sentence.startswith("data set svhn is in none of ")
    assert sentence.endswith("put torchvision's files or svhn.npz into a folder and name it with --data-dir.")


def test_an_existing_results_folder_is_never_written_over(complaint: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.csv").write_text("precious")
    for command in ((RUN,), ("-m", "nodes.server")):
        sentence = complaint(*command, *TINY, "--out", "old")
        assert sentence.startswith("the results folder old exists already; choose another with --out")
    assert (tmp_path / "old" / "metrics.csv").read_text() == "precious"


@pytest.fixture
def busy_port() -> Iterator[str]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield str(holder.getsockname()[1])


def test_a_port_in_use_leaves_no_results_folder(complaint: Callable[..., str], busy_port: str) -> None:
    address = f"tcp://127.0.0.1:{busy_port}"
    sentence = f"cannot listen on {address}: address already in use."
    assert complaint(RUN, *TINY, "--port", busy_port, "--out", "run") == sentence
    assert complaint("-m", "nodes.server", *TINY, "--bind", address, "--out", "run") == sentence


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:*", "tcp://[::]:*", "tcp://*:5555", "tcp://eth0:5555"])
def test_a_server_without_keys_listens_to_this_machine_only(address: str, complaint: Callable[..., str]) -> None:
    sentence = complaint("-m", "nodes.server", *TINY, "--bind", address)
    assert sentence.startswith(f"{address} can be reached from other machines and no keys are given; ")
    assert sentence.endswith("pass --keys, or accept the risk with --insecure.")


@pytest.mark.parametrize("option", ["--seed", "--out", "--set", "--config", "--method"])
@pytest.mark.parametrize("program", [(RUN,), ("-m", "nodes.server")], ids=["run", "server"])
def test_a_resumed_run_keeps_its_own_config(
    program: tuple[str | Path, ...],
    option: str,
    complaint: Callable[..., str],
    reference: Callable[..., Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(reference(), tmp_path / "run")
    value = {"--set": "run.rounds=9", "--seed": "0"}.get(option, "something")
    assert complaint(*program, "--resume", "run", option, value) == (
        f"{option} cannot be given with --resume: the run goes on with its own config.toml."
    )


@pytest.mark.parametrize(
    "options",
    [("--checkpoint-every", "2"), ("--curve",), ("--port", "5000"), ("--slots", "2"), ("--launcher", "ray")],
)
def test_what_a_run_in_process_would_ignore_is_refused(
    options: tuple[str, ...], complaint: Callable[..., str]
) -> None:
    assert complaint(RUN, *TINY, "--in-process", *options) == (
        f"{options[0]} cannot be given with --in-process: it has no sockets, processes or checkpoints."
    )


def test_what_a_run_in_process_would_ignore_is_refused_from_a_file_too(
    complaint: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "experiment.toml").write_text("[cluster]\ncheckpoint_every = 5\n")
    reason = "it has no sockets, processes or checkpoints"
    sentence = "cluster.{} cannot be had with --in-process: " + reason + "; add --set {}."
    assert complaint(RUN, *TINY, "--in-process", "--config", "experiment.toml") == sentence.format(
        "checkpoint_every = 5", "cluster.checkpoint_every=0"
    )
    assert complaint(RUN, *TINY, "--in-process", "--set", "cluster.slots=2") == sentence.format(
        "slots = 2", "cluster.slots=0"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model-group", "nope"), "there is no model group 'nope'; "),
        (
            ("--method", "fedavg", "--dataset", "digits", "--model-group", "HtCNN8"),
            "FedAvg averages whole models, ",
        ),
        (("--in-process",), "--in-process cannot be given with --print-commands: it is for a start by hand."),
    ],
)
def test_commands_that_cannot_work_are_not_printed(
    options: tuple[str, ...], sentence: str, complaint: Callable[..., str]
) -> None:
    assert complaint(RUN, *TINY, *options, "--print-commands").startswith(sentence)


@pytest.mark.parametrize("flag", ["--in-process", "--print-commands"])
def test_only_a_cluster_is_resumed(
    flag: str, complaint: Callable[..., str], reference: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(reference(), tmp_path / "run")
    assert complaint(RUN, "--resume", "run", flag).startswith(f"{flag} cannot be given with --resume")


def test_a_client_needs_an_address_and_ids(complaint: Callable[..., str]) -> None:
    assert complaint("-m", "nodes.client", "--connect", "tcp://a:1").startswith("Missing option '--ids'")
    assert complaint(*CLIENT, "--ids", "9-3").startswith("Invalid value for '--ids'")
    assert complaint("-m", "nodes.client", "--ids", "0").startswith("Missing option '--connect'")


def test_a_file_with_the_address_replaces_what_else_tells_it(complaint: Callable[..., str]) -> None:
    file = ("--address-file", "nowhere/server.json")
    client = ("-m", "nodes.client", *file)
    assert complaint(*client, "--ids", "0", "--connect", "tcp://a:1") == (
        "--connect cannot be given with --address-file: nowhere/server.json has the address."
    )
    no_folder = "--address-file nowhere/server.json: there is no folder nowhere; make it where all see it."
    assert complaint(*client, "--ids", "0") == no_folder
    assert complaint("-m", "nodes.server", *TINY, *file) == no_folder
    assert complaint(*client, "--ids", "auto").endswith("start it with srun, or name the clients: --ids 0-9.")


@pytest.mark.parametrize("address", ["localhost:5912", "tcp://127.0.0.1:99999"])
def test_both_ends_refuse_what_is_no_address(address: str, complaint: Callable[..., str]) -> None:
    write = "write tcp://host:port with a port from 1 to 65535"
    client = complaint("-m", "nodes.client", "--ids", "0-3", "--connect", address)
    assert client == f"{address} is no server address; {write}."
    server = complaint("-m", "nodes.server", *TINY, "--bind", address)
    assert server == f"{address} is no address to listen on; {write}, or * for any free one."


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--slots", "-1", "-1 is not in the range 0<=x<=4096."),
        ("--slots", "4097", "4097 is not in the range 0<=x<=4096."),
        ("--heartbeat", "-1", "-1.0 is not in the range 1<=x<=3600."),
        ("--heartbeat", "1e9", "1000000000.0 is not in the range 1<=x<=3600."),
        ("--heartbeat", "0", "0.0 is not in the range 1<=x<=3600."),
        ("--heartbeat", "nan", "nan is no number of seconds."),
        ("--patience", "-1", "-1.0 is not in the range x>=0."),
        ("--patience", "nan", "nan is no number of seconds."),
        ("--restarts", "-1", "-1 is not in the range x>=0."),
        ("--max-frame-mib", "0", "0 is not in the range x>=1."),
    ],
)
def test_numbers_of_a_client_have_limits(
    option: str, value: str, reason: str, complaint: Callable[..., str]
) -> None:
    assert complaint(*CLIENT, "--ids", "0", option, value) == f"Invalid value for '{option}': {reason}"


def test_keys_that_others_can_read_are_refused(complaint: Callable[..., str], tmp_path: Path) -> None:
    for name in (keys.SERVER, keys.client_name(0)):
        keys.create(tmp_path / "keys", name)
        (tmp_path / "keys" / f"{name}.key_secret").chmod(0o640)
    server = complaint("-m", "nodes.server", *TINY, "--keys", "keys")
    assert server == "keys/server.key_secret can be read by others; run: chmod 600 keys/server.key_secret"
    client = complaint("-m", "nodes.client", "--connect", "tcp://127.0.0.1:1", "--ids", "0", "--keys", "keys")
    assert client == "keys/client-0.key_secret can be read by others; run: chmod 600 keys/client-0.key_secret"


def test_keys_that_are_missing_are_named(complaint: Callable[..., str]) -> None:
    sentence = complaint("-m", "nodes.server", *TINY, "--keys", "nowhere")
    assert sentence == "cannot read the key file nowhere/server.key_secret: no such file."


def test_a_server_with_keys_needs_a_client_that_may_join(complaint: Callable[..., str], tmp_path: Path) -> None:
    keys.create(tmp_path / "keys", keys.SERVER)
    sentence = complaint("-m", "nodes.server", *TINY, "--keys", "keys")
    assert sentence == "keys holds no client-<id>.key, so no client could join."


def test_a_key_is_not_made_twice(complaint: Callable[..., str], tmp_path: Path) -> None:
    keys.create(tmp_path / "keys", keys.SERVER)
    assert complaint("-m", "nodes", "keys", "new", "server") == (
        "keys/server.key_secret exists already; remove it first to make a new key."
    )
