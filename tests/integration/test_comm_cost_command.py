"""`fedsim comm-cost` as a user types it: real processes, real sockets, and an exit code that can be trusted."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Command, Start, rows

SMALL = (
    *("--dataset", "spiral", "--model-group", "MLP", "--feature-dim", "3", "--clients", "2"),
    *("--set", "data.samples_per_class=40"),
)

ODD_METHOD = '''
"""FedProto with one thing of its own."""
from fedsim.method import About
from fedsim.methods import fedproto
from fedsim.methods.fedproto import Client, Config, Server, contract

ABOUT = About(title="Odd", paper="nobody", evaluation="none")
{change}
'''


@pytest.fixture
def comm_cost(python: Start, tmp_path: Path) -> Callable[..., Command]:
    """`comm_cost("--rounds", "2", change="...")`: with a file odd.py that differs from FedProto in the change."""

    def start(*options: str, change: str = "") -> Command:
        (tmp_path / "odd.py").write_text(ODD_METHOD.format(change=change))
        return python("-m", "nodes", "comm-cost", *SMALL, "--out", "cost", *options)

    return start


def test_formula_ledger_and_kernel_agree(comm_cost: Callable[..., Command], tmp_path: Path) -> None:
    """Two rounds and encryption, for two numbers of clients: K = 3, C = 6, every number by hand."""
    command = comm_cost("--methods", "fedtgp,local", "--rounds", "2", "--clients", "3,2", "--curve").succeed()
    assert "4 of 4 formulae equal the measured elements" in command.stdout
    assert "the kernel agrees to the byte on 4 of 4 connections and on 4 of 4 counts of rounds" in command.stdout
    assert "spiral, MLP, 2 clients: 2 rounds, CURVE" in command.stdout
    assert "M = 1,000,000 *" in command.stdout
    by = {(row["clients"], row["method"], row["way"]): row for row in rows(tmp_path / "cost" / "comm_cost.csv")}
    for clients in (2, 3):
        down = by[str(clients), "fedtgp", "down"]
        assert int(down["elements"]) == 2 * clients * 3 * 6
        assert int(down["payload_bytes"]) == 4 * int(down["elements"])
        assert int(down["payload_bytes"]) < int(down["message_bytes"]) < int(down["wire_bytes"])
        assert int(down["kernel_bytes"]) == int(down["wire_bytes"])
        assert int(by[str(clients), "local", "up"]["elements"]) == 0
    last = rows(tmp_path / "cost" / "comm_cost_series.csv")[-2]
    assert (last["method"], last["clients"], last["elements_down"]) == ("fedtgp", "1000000", str(10**6 * 3 * 6))


def test_encodings_have_their_columns_and_their_formula(comm_cost: Callable[..., Command], tmp_path: Path) -> None:
    """K = 3 numbers become three bytes and a scale; what a method does not send is not encoded for it."""
    settings = ("--set", "wire.prototypes=int8", "--set", "wire.logits=float16")
    command = comm_cost("--methods", "fedtgp,feddistill", *settings).succeed()
    assert "4 of 4 formulae equal the measured elements" in command.stdout
    assert all(word in command.stdout for word in ("prototypes int8", "logits float16", "decoded B"))
    by = {(row["method"], row["way"]): row for row in rows(tmp_path / "cost" / "comm_cost.csv")}
    down = by["fedtgp", "down"]
    assert int(down["payload_bytes"]) == int(down["formula_bytes"]) == 2 * 6 * (3 + 4)
    assert (down["encoding"], int(down["decoded_bytes"])) == ("prototypes int8", 2 * 6 * 3 * 4)
    assert by["feddistill", "down"]["encoding"] == "logits float16"
    assert "encoding" in (tmp_path / "cost" / "comm_cost.md").read_text()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("wire.images=float16", "error: wire.images has no effect: none of fedtgp sends images.\n"),
        ("wire.prototypes=int4", "error: there is no encoding 'int4'; did you mean int8?\n"),
        ("wire.protoypes=int8", "error: there is no option 'wire.protoypes'; did you mean wire.prototypes?\n"),
    ],
)
def test_encodings_that_mean_nothing_are_refused(
    comm_cost: Callable[..., Command], setting: str, reason: str
) -> None:
    command = comm_cost("--methods", "fedtgp", "--set", setting)
    assert command.wait() == 2 and command.stderr == reason


def test_a_formula_that_is_wrong_fails(comm_cost: Callable[..., Command], tmp_path: Path) -> None:
    """A server that sends a row fewer than the formula says."""
    change = (
        "from fedsim.costs import rehearsal\n"
        "aggregate = rehearsal.Server.aggregate\n"
        "def short(self, round, uploads):\n"
        "    self._messages._letters['n'] = 5\n"
        "    self._messages._classes = self._messages._classes[:5]\n"
        "    return aggregate(self, round, uploads)\n"
        "rehearsal.Server.aggregate = short\n"
    )
    command = comm_cost("--methods", "./odd.py", change=change)
    assert command.wait() == 1
    assert "1 of 2 formulae equal the measured elements" in command.stdout
    table = {row["way"]: row for row in rows(tmp_path / "cost" / "comm_cost.csv")}
    assert (table["up"]["formula_agrees"], table["down"]["formula_agrees"]) == ("True", "False")
    assert int(table["down"]["formula_elements"]) == int(table["down"]["elements"]) + 2 * 3


def test_a_method_that_cannot_work_here_is_an_error_when_it_is_asked_for(
    comm_cost: Callable[..., Command], tmp_path: Path
) -> None:
    change = "from fedsim.errors import UserError\ndef check(setting): raise UserError('odd wants images.')"
    command = comm_cost("--methods", "./odd.py", change=change)
    assert command.wait() == 2
    assert command.stderr == "error: odd wants images.\n" and not (tmp_path / "cost").exists()


def test_a_rehearsal_that_fails_says_which_and_why(comm_cost: Callable[..., Command]) -> None:
    """The contract has a size that nobody knows; clients find out, and say so."""
    change = (
        "from fedsim.contract import Contract, Field, Payload\n"
        "def contract(config): return Contract(up={'x': Field(Payload.LATENTS, 'H')})"
    )
    command = comm_cost("--methods", "./odd.py", change=change)
    assert command.wait() == 2
    assert command.stderr.splitlines()[-1].startswith("error: the rehearsal of odd stopped early: client ")
    assert "odd cannot be rehearsed: the size 'H' of its field 'x' is not known" in command.stderr


def test_ctrl_c_ends_it_as_every_command(comm_cost: Callable[..., Command], tmp_path: Path) -> None:
    command = comm_cost("--methods", "fedtgp,fedproto", "--rounds", "500")
    command.role("client-00000")
    command.send(signal.SIGINT)
    assert command.wait() == 130
    assert "error" not in command.stderr and not (tmp_path / "cost").exists()
    command.wait_until_gone()
