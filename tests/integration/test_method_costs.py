"""Every method that is found: its formula, what it sends when it trains, and what its rehearsal sends are one."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from commands import PATIENCE_SECONDS, PROJECT, Shell, Start, rows

from fedsim import assembly, methods
from fedsim.costs.formula import formulae, letters_of
from fedsim.method import About, Setting
from fedsim.results.folder import RunFolder

# Equal models, which every method accepts; fewer classes on a client than there are; images, which FedKTL needs.
SETTING = (
    *("--dataset", "digits", "--model-group", "CNN", "--feature-dim", "12", "--clients", "3"),
    *("--partition", "pathological", "--classes-per-client", "4", "--batch-size", "5"),
    *("--set", "model.feature_mapping=project", "--set", "data.samples_per_class=12"),
    *("--set", "cluster.server_threads=1"),
)
PUBLIC = ("--set", "data.public_samples=60", "--set", "data.global_test=true")
LITTLE_WORK = {"server_epochs": "1", "server_model": "CNN"}


def little_work(*names: str) -> list[str]:
    """Options that keep servers from taking long, as far as these methods have them."""
    known = {field.name for name in names for field in msgspec.structs.fields(methods.load(name).Config)}
    chosen = [f"method.{option}={value}" for option, value in LITTLE_WORK.items() if option in known]
    return [word for option in chosen for word in ("--set", option)]


def data_of(name: str) -> tuple[str, ...]:
    return PUBLIC if hasattr(methods.load(name), "DEFAULTS") else ()


@pytest.fixture(scope="module")
def rehearsals(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, dict[str, str]]]:
    """By method: the rows of the cost table, by way. One command rehearses all that share their data."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for options in ((), PUBLIC):
        names = [name for name in methods.names() if data_of(name) == options]
        folder = tmp_path_factory.mktemp("rehearsals")
        with shell.commands(folder) as start:
            command = start(
                *("-m", "benchmarks.comm_cost", *SETTING, *options, "--methods", ",".join(names)),
                *("--generator", "tiny", "--out", folder, *little_work(*names)),
            )
            assert command.wait(PATIENCE_SECONDS * len(names)) == 0, command.stdout + command.stderr
        assert f"formulae equal the measured elements; the kernel agrees to the byte on {3 * len(names)} of" in (
            command.stdout
        )
        for row in rows(folder / "comm_cost.csv"):
            found.setdefault(row["method"], {})[row["way"]] = row
    return found.__getitem__


def setting_of(folder: Path) -> Setting:
    experiment = RunFolder.open(folder).experiment()
    return assembly.setting_of(experiment, assembly.check(experiment))


@pytest.mark.parametrize("name", methods.names())
def test_formula_training_and_rehearsal_agree(
    name: str,
    python: Start,
    tmp_path: Path,
    rehearsals: Callable[[str], dict[str, dict[str, str]]],
    command_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    python(
        *(PROJECT / "run_cluster.py", "--method", name, *SETTING, *data_of(name), *little_work(name)),
        *("--lr", "0.001", "--rounds", "2", "--out", folder, "--quiet"),
    ).succeed()
    monkeypatch.setenv("FEDSIM_CACHE", str(command_cache))
    setting = setting_of(folder)
    cost, letters = formulae(methods.load(name).contract(setting.config)), letters_of(setting)
    used = {*cost["up"].letters, *cost["down"].letters}
    depends_on_weights = used - set(setting.dimensions) - {"ΣC", "U"}
    ledger = rows(folder / "ledger.csv")
    for way in ("up", "down"):
        for purpose, round, formula in (
            ("method", 1, cost[way]),  # the round in which all come down and all go up
            ("setup", -1, cost[f"setup_{way}"]),
        ):
            booked = [row for row in ledger if row["direction"] == way and row["purpose"] == purpose]
            sent = [row for row in booked if int(row["round"]) == round]
            elements = sum(int(row["elements"]) for row in sent)
            expected = formula.evaluate(letters)
            rehearsed = rehearsals(name).get(way if purpose == "method" else f"set-up {way}")
            assert int(rehearsed["elements"] if rehearsed else 0) == expected
            if purpose == "method" and "seen" in depends_on_weights:  # classes in a study batch, of all C at most
                assert 0 < elements <= 3 * letters["C"] * letters["K"]
            elif purpose == "method" and depends_on_weights:
                whole = 3 * methods.load("fml").sizes(setting)["aux"]
                assert 0 < elements <= whole
            else:
                assert elements == expected
                if rehearsed:
                    assert sum(int(row["payload_bytes"]) for row in sent) == int(rehearsed["payload_bytes"])
    assert json.loads((folder / "summary.json").read_text())["audit_passed"]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_says_what_it_is(name: str) -> None:
    about = methods.load(name).ABOUT
    assert isinstance(about, About)
    assert about.title and about.paper and about.evaluation
    assert methods.canonical(about.title) == name, "people type the title"
