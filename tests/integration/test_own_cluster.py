"""Own code in real processes: a method and models that only their user knows, on one machine and on several."""

import hashlib
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Command, Run, Start, address_of, bits, rows, start_run, wait_for_event

from nodes.client.node import EXIT_REFUSED

METHOD = '''
"""Clients send the mean of their features, and report which methods of fedsim their process has imported."""
import sys
import numpy as np
import torch
from fedsim import method
from fedsim.config import NonNegative, Section
from fedsim.contract import Contract, Field, Payload
from fedsim.learning.evaluation import outputs
from fedsim.method import Step
from torch.nn.functional import cross_entropy


def others():
    return float(sum(name.startswith("fedsim.methods.") for name in sys.modules))


class Config(Section, frozen=True, kw_only=True):
    pull: NonNegative = 1.0


def contract(config):
    mean = {"mean": Field(Payload.PROTOTYPES, "K")}
    return Contract(up=mean, down=mean)


class Client(method.Client):
    target_K = 0.0

    def receive(self, round, down):
        if down:
            self.target_K = torch.from_numpy(down["mean"])

    def loss(self, batch):
        features_BK = self.model.features(batch.inputs)
        distance = (features_BK - self.target_K).square().mean()
        return cross_entropy(self.model.head(features_BK), batch.labels_B) + self.context.config.pull * distance

    def train(self, round):
        return super().train(round) | {"others": others()}

    def upload(self):
        pairs = outputs(self.model, self.data.train, self.context.device, forward=self.model.features)
        return {"mean": np.concatenate([features.numpy() for features, _ in pairs]).mean(axis=0)}


class Server(method.Server):
    def aggregate(self, round, uploads):
        mean_K = np.stack([upload.arrays["mean"] for upload in uploads]).mean(axis=0)
        return Step(down={"mean": mean_K}, metrics={"server_others": others()})
'''
NETS = """
from torch import nn

class Small(nn.Sequential):
    def __init__(self, num_classes, input_shape):
        super().__init__(nn.Linear(input_shape[0], 9), nn.Tanh(), nn.Linear(9, num_classes))

def deep(num_classes, input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.ReLU(), Small(num_classes, (8,)))
"""
OWN = ("--method", "./mine.py", "--model-group", "./nets.py:Small,MLP,./nets.py:deep")


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Path:
    """The folder in which commands are typed: a method, models, and files that nobody names."""
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "nets.py").write_text(NETS)
    for name in ("broken.py", "random.py", "torch.py", "fedsim.py"):
        (tmp_path / name).write_text("raise RuntimeError('a neighbour was imported')\n")
    return tmp_path


@pytest.fixture
def oracle(python: Start, home: Path) -> Run:
    return start_run(python, home / "oracle", *OWN, "--in-process").succeed()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_own_method_own_models_and_the_zoo_run_in_one_cluster(cluster: Callable[..., Run], oracle: Run) -> None:
    run = cluster(*OWN).succeed()
    assert bits(run.folder) == bits(oracle.folder)
    assert run.summary["method"] == "mine" and "mine on spiral" in run.command.stdout
    assert run.summary["architectures"] == ["nets.py:Small", "MLP", "nets.py:deep"]
    assert run.summary["model_group"] == "nets.py:Small,MLP,nets.py:deep"
    assert run.booked("elements", purpose="method", direction="up") == 3 * 4 * 3
    assert {row["server_others"] for row in rows(run.folder / "metrics.csv")} == {"0.0", ""}
    assert {row["others"] for row in rows(run.folder / "clients.csv")} <= {"0.0", ""}, "no method that is not used"


def test_the_run_folder_has_the_name_of_the_file(python: Start, home: Path) -> None:
    python(PROJECT / "run_cluster.py", *TINY, *OWN, "--in-process", "--quiet").succeed()
    (folder,) = (home / "runs").iterdir()
    assert folder.name.startswith("mine-spiral-")


def test_an_interrupted_run_goes_on_from_its_copies(
    cluster: Callable[..., Run], python: Start, home: Path, oracle: Run
) -> None:
    run = cluster(*OWN, "--checkpoint-every", "1", "--slots", "1")
    wait_for_event(run.folder, "checkpoint", round=0)
    run.command.send_to_all(signal.SIGKILL)
    run.command.wait_until_gone()
    (home / "mine.py").unlink()
    (home / "nets.py").write_text("raise RuntimeError('changed since')\n")
    python(PROJECT / "run_cluster.py", "--resume", run.folder).succeed()
    assert bits(run.folder) == bits(oracle.folder)
    report = python("-m", "nodes", "report", run.folder).succeed()
    assert "wrote" in report.stdout and "mine on spiral" in (run.folder / "report.html").read_text()


# ------------------------------------------------------------------------------------------------ by hand


@pytest.fixture
def machines(home: Path) -> tuple[Path, Path]:
    """Two other machines with copies, one of them under other names."""
    first, second = home / "first", home / "second"
    for machine in (first, second):
        machine.mkdir()
    shutil.copy(home / "mine.py", first / "copy.py")
    shutil.copy(home / "nets.py", first)
    shutil.copy(home / "mine.py", second)
    shutil.copy(home / "nets.py", second)
    return first, second


def test_clients_on_other_machines_name_their_copies(
    python: Start, home: Path, machines: tuple[Path, Path], oracle: Run
) -> None:
    """All are fresh processes, as users start them."""
    first, second = machines
    (second / "mine.py").write_text(METHOD + "# changed\n")
    folder = home / "run"
    server = python("-m", "nodes.server", *TINY, *OWN, "--bind", "tcp://127.0.0.1:*", "--out", folder, fresh=True)
    address = address_of(server)

    def client(machine: Path, ids: str, *code: str) -> Command:
        return python("-m", "nodes.client", "--connect", address, "--ids", ids, *code, cwd=machine, fresh=True)

    good = client(first, "0-1", "--method", "./copy.py", "--code", "nets.py")
    changed = client(second, "2", "--code", "./mine.py", "--code", "./nets.py")
    assert changed.wait() == EXIT_REFUSED
    assert changed.stdout == (
        f"client 2: ./mine.py differs from the server's mine.py: its SHA-256 is {sha256(second / 'mine.py')}, the "
        f"server's is {sha256(home / 'mine.py')}; copy the server's file to this machine.\n"
    )
    assert wait_for_event(folder, "refused")["reason"] == changed.stdout.rstrip("\n")
    shutil.copy(home / "mine.py", second)
    last = client(second, "2-3", "--code", "./mine.py", "--code", "./nets.py")
    for command in (good, last, server):
        command.succeed()
    assert bits(folder) == bits(oracle.folder)
    assert json.loads((folder / "summary.json").read_text())["audit_passed"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ((), "client 0: the run uses nets.py (SHA-256 "),
        (("--code", "./nets.py"), "client 0: ./nets.py differs from the server's mine.py: its SHA-256 is "),
    ],
)
def test_a_client_runs_no_code_that_was_not_named(
    code: tuple[str, ...], reason: str, python: Start, home: Path
) -> None:
    """Not even on the same machine, where the file could be found."""
    options = (*TINY, *OWN, "--clients", "1", "--set", "cluster.join_seconds=3")
    server = python("-m", "nodes.server", *options, "--bind", "tcp://127.0.0.1:*", "--out", "run")
    client = python("-m", "nodes.client", "--connect", address_of(server), "--ids", "0", *code)
    assert client.wait() == EXIT_REFUSED and client.stdout.startswith(reason)
    assert server.wait() == 3


def test_the_printed_commands_name_the_code(python: Start) -> None:
    printed = python(PROJECT / "run_cluster.py", *TINY, *OWN, "--print-commands").succeed().stdout
    assert "# Copy nets.py, mine.py there, into the same folder: code never travels." in printed
    assert printed.rstrip().endswith("fedsim client --bundle host-1.bundle")  # which names the files


# ------------------------------------------------------------------------------------------------ other commands


def test_other_commands_take_own_code_too(python: Start, home: Path) -> None:
    shown = python("-m", "nodes", "methods", "./mine.py").succeed().stdout
    assert "mine (own)" in shown and "pull" in shown and "M·K" in shown
    tiny = ("--dataset", "spiral", "--model-group", "MLP", "--clients", "2", "--feature-dim", "3")
    costs = python("-m", "nodes", "comm-cost", *tiny, "--methods", "local,./mine.py").succeed().stdout
    assert "M·K" in costs and "agrees to the byte on 4 of 4" in costs
    sweep = ("-m", "nodes", "sweep", *TINY, "--vary", "method.name=local,./mine.py", "--seeds", "1", "--quiet")
    first = python(*sweep).succeed().stdout
    assert "2 runs in runs/sweep: 0 finished, 0 begun, 2 new" in first
    (home / "mine.py").write_text(METHOD.replace("pull: NonNegative = 1.0", "pull: NonNegative = 0.5"))
    assert "2 runs in runs/sweep: 1 finished, 0 begun, 1 new" in python(*sweep).succeed().stdout
    assert len(list((home / "runs" / "sweep").glob("mine-spiral-seed1-*"))) == 2


def test_own_code_from_python(python: Start, home: Path) -> None:
    (home / "script.py").write_text(
        "import fedsim\n"
        "run = fedsim.run(method='./mine.py', method_options={'pull': 0.5}, model_group='MLP,./nets.py:Small',\n"
        "    dataset='spiral', clients=2, rounds=1, feature_dim=3, data={'samples_per_class': 40}, out='run',\n"
        "    progress=False)\n"
        "print(run.title, run.experiment.method)\n"
    )
    (home / "fedsim.py").unlink()  # this one is Python's own rule: a script's neighbours come first
    (home / "torch.py").unlink()
    (home / "random.py").unlink()
    done = python("script.py", fresh=True, PYTHONPATH=str(PROJECT)).succeed()
    assert done.stdout == (
        f"mine on spiral, 2 clients, 1 round {{'name': '{home}/run/code/mine.py', 'pull': 0.5}}\n"
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--method", "./absent.py"), "there is no file"),
        (
            ("--method", "./broken.py"),
            "cannot be imported (line 1, RuntimeError: a neighbour was imported); mend it",
        ),
        (("--method", "./nets.py"), "has no Client, so it is no method; derive one from fedsim.method.Client"),
        (("--method", "mine"), "there is no method 'mine'; to run the file of that name, write ./mine.py."),
        (("--method", "no.such"), "Python finds no module no.such;"),
        (("--model-group", "./nets.py:Tiny"), "there is no object in"),
        (("--model-group", "./nets.py:Small", "--dataset", "digits"), "cannot take samples of 1x28x28"),
        (("--model-group", "./nets.py"), "say what to take from"),
        (("--method", "./mine.py", "--set", "method.push=1"), "there is no option 'method.push'; known: "),
    ],
)
def test_bad_own_code_is_one_sentence_and_leaves_nothing(
    options: tuple[str, ...], complaint: str, python: Start, home: Path
) -> None:
    before = sorted(home.iterdir())
    command = python(PROJECT / "run_cluster.py", *TINY, *options)
    assert command.wait() == 2
    assert command.stdout == "" and command.stderr.startswith("error: ") and command.stderr.count("\n") == 1
    assert complaint in command.stderr
    assert sorted(home.iterdir()) == before
