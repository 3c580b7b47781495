"""`fedsim check` finds nothing wrong with what ships, and finds and names what is wrong with what is broken."""

import os
import signal
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from commands import PATIENCE_SECONDS, Start

from fedsim import methods

TEMPLATE = (resources.files("fedsim.templates") / "method.py").read_text()
UPLOADED = ".mean(dim=0).cpu().numpy()}"
RECEIVED = 'self.target_K = torch.from_numpy(down["mean"]).to(self.context.device) if down else None'

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(python: Start) -> Check:
    """`check("./mine.py")`: the exit code, and all that was printed as one line."""

    def run(*things: str) -> tuple[int, str]:
        command = python("-m", "nodes", "check", *things)
        code = command.wait(2 * PATIENCE_SECONDS)
        assert command.stderr == ""
        return code, " ".join(command.stdout.split())

    return run


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., str]:
    """`broken((old, new), ...)`: the method that `fedsim new` writes, changed."""

    def write(*changes: tuple[str, str]) -> str:
        text = TEMPLATE
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / "mine.py").write_text(text)
        return "./mine.py"

    return write


@pytest.mark.parametrize("name", methods.names())
def test_every_method_that_ships_passes(name: str, check: Check) -> None:
    code, output = check(name)
    assert code == 0 and output.endswith("all is well") and "✗" not in output
    assert "✓ a cluster gives the same bits ✓ it costs what its contract says: " in output
    assert "✓ its state survives a restart ✓ different models: " in output


def test_what_new_writes_passes(python: Start, check: Check, tmp_path: Path) -> None:
    for kind in ("method", "model", "data"):
        python("-m", "nodes", "new", kind, f"{kind}.py").succeed()
    code, output = check("./method.py", "./model.py:Small", "./model.py:make_wide", "./data.py:load")
    assert code == 0 and output.endswith("all is well") and output.count("✓ its state survives a restart") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.py", "method.py", "model.py"]


def test_a_wrong_shape_is_found(broken: Callable[..., str], check: Check) -> None:
    code, output = check(broken((UPLOADED, ".mean(dim=0, keepdim=True).cpu().numpy()}")))
    assert code == 1 and output.endswith(
        "✗ it sends what it declares: up mean (K); down mean (K) client 0, round 0, up: field 'mean' has 2 "
        "dimensions, declared 1 (K). 1 problem"
    )


def test_forgotten_state_of_a_client_is_found(broken: Callable[..., str], check: Check) -> None:
    remembers = f"old_K = self.target_K\n        {RECEIVED}\n        if old_K is not None:\n"
    code, output = check(broken((RECEIVED, f"{remembers}            self.target_K += old_K")))
    assert code == 1 and output.count("✗") == 1
    assert (
        "✗ its state survives a restart made anew from its state() after each round, its Client goes on" in output
    )
    assert "belongs into modules(), or into state() and load_state()." in output


def test_forgotten_state_of_a_server_is_found(broken: Callable[..., str], check: Check) -> None:
    summed = "mean_K = self.sum_K = mean_K + getattr(self, 'sum_K', 0)"
    end = '        return Step(down={"mean": mean_K}'
    code, output = check(broken((end, f"        {summed}\n{end}")))
    assert (
        code == 1
        and "✗ its state survives a restart made anew from its state() after each round, its Server" in output
    )


@pytest.mark.parametrize(
    "change",
    [
        (UPLOADED, f"{UPLOADED[:-1]} + np.random.rand(12).astype(np.float32)}}"),
        ("value = cross_entropy(", "value = NOISE * cross_entropy("),
    ],
    ids=["while it runs", "while it is imported"],
)
def test_hidden_randomness_is_found(change: tuple[str, str], broken: Callable[..., str], check: Check) -> None:
    drawn = ("class Config(", "NOISE = float(torch.rand(()))\n\n\nclass Config(")
    code, output = check(broken(change, drawn))
    assert code == 1 and output.count("✗") == 1
    assert (
        "✗ two runs give the same bits round " in output
        and "methods draw only from self.context.streams" in output
    )
    assert "– a cluster gives the same bits: not tried, because two runs differ" in output


def test_a_cost_that_is_not_what_was_declared_is_found(broken: Callable[..., str], check: Check) -> None:
    sparing = (
        "        batches =",
        "        if self.context.client == 1:\n            return {}\n        batches =",
    )
    code, output = check(broken(sparing))
    assert (
        code == 1
        and "✗ it costs what its contract says: M·K up, M·K down by its contract M·K = 36 elements" in output
    )


def test_code_that_fails_is_named_with_its_line(broken: Callable[..., str], check: Check) -> None:
    code, output = check(broken(("        mean_K = np", "        1 / 0\n        mean_K = np")))
    line = TEMPLATE.split("        mean_K = np")[0].count("\n") + 1
    assert code == 1 and output.endswith(
        f"✗ it runs it fails (line {line}, ZeroDivisionError: division by zero). 1 problem"
    )


def test_a_server_that_takes_every_upload_for_whole_is_found(broken: Callable[..., str], check: Check) -> None:
    code, output = check(broken(("sent = filled(uploads)", "sent = uploads")))
    assert code == 1 and output.count("✗") == 1
    assert "✗ a client that drops after training it fails (line 6" in output and "KeyError: 'mean'" in output


def test_a_setting_that_cannot_work_must_be_refused(broken: Callable[..., str], check: Check) -> None:
    pixels = ("        features_BK = self", "        self.context.task.input_shape[2]\n        features_BK = self")
    code, output = check(broken(pixels))
    complaint = (
        "it fails (line 47, IndexError: tuple index out of range); mend it, or refuse such a setting in check("
    )
    assert code == 1 and f"✗ samples that are no images {complaint}" in output


def test_what_is_nothing_of_the_kind_is_refused(python: Start, tmp_path: Path) -> None:
    command = python("-m", "nodes", "check", "fedtpg")
    assert command.wait() == 2
    assert command.stderr == "error: there is no method, model or data set 'fedtpg'; did you mean fedtgp?\n"


def test_who_stops_its_cluster_stops_the_checks(python: Start) -> None:
    command = python("-m", "nodes", "check", "fedproto", "--set", "run.rounds=60")
    command.role("client-00000")
    command.send(signal.SIGINT)
    assert command.wait() == 130
    assert "✓ two runs give the same bits" in command.stdout
    assert "a cluster" not in command.stdout and "all is well" not in command.stdout
    command.wait_until_gone()


def test_a_server_that_is_killed_is_a_finding_and_the_checks_go_on(python: Start) -> None:
    command = python("-m", "nodes", "check", "fedproto", "--set", "run.rounds=60")
    command.role("client-00000")
    os.kill(command.role("server"), signal.SIGKILL)
    assert command.wait() == 1
    output = " ".join(command.stdout.split())
    assert "✗ a cluster gives the same bits the server was killed by signal 9 (SIGKILL)" in output
    assert "✓ its state survives a restart" in output and output.endswith("1 problem")
