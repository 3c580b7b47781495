"""From the books of a rehearsal to a cost table: which rounds count, whose heartbeats, whose options."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from made_run import make_run
from rich.console import Console

from fedsim.contract import DIRECTIONS
from fedsim.costs.formula import Formula, formulae
from fedsim.costs.measured import Flow, MethodCost, SettingCosts
from fedsim.costs.projection import Link
from fedsim.errors import UnknownName, UserError
from fedsim.methods import fedtgp
from fedsim.results.load import load
from nodes.display.costs import count, show_series, show_setting
from nodes.tools import comm_cost
from nodes.tools.comm_cost import Books

COLUMNS = (
    *("round", "client", "direction", "purpose", "message", "payload"),
    *("frames", "elements", "payload_bytes", "message_bytes", "wire_bytes"),
)


def row(round: int, client: int, way: str, purpose: str, *levels: int) -> list[Any]:
    return [round, client, way, purpose, "result", "prototypes", 1, *levels]


def books(folder: Path, num_rounds: int = 2) -> Books:
    run = load(folder)
    return Books(run.ledger, run.rounds, num_rounds)


def found(**numbers: str) -> dict[str, Formula]:
    """Formulae that are numbers."""
    return {way: Formula(((numbers[way],),) if way in numbers else ()) for way in DIRECTIONS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients, two whole rounds: nothing comes down in round 0, nothing goes up in round 3."""
    ledger = [
        row(-1, 0, "up", "setup", 3, 12, 20, 30),
        row(-1, 0, "up", "control", 0, 0, 7, 9),
        row(0, 0, "up", "method", 10, 40, 50, 60),
        row(1, 0, "up", "method", 10, 40, 50, 60),
        row(1, 1, "up", "method", 20, 80, 90, 100),
        row(1, 0, "down", "method", 5, 20, 30, 40),
        row(2, 0, "up", "method", 10, 40, 50, 61),
        row(2, 1, "up", "method", 20, 80, 90, 101),
        row(2, 1, "down", "method", 5, 20, 30, 40),
        row(3, 0, "down", "method", 5, 20, 30, 40),
    ]
    path = make_run(tmp_path / "run")
    with (path / "ledger.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *ledger])
    events: list[dict[str, Any]] = [{"event": "joined"}] + [
        {"event": "round_finished", "round": number, "kernel_bytes_up": up, "kernel_bytes_down": down}
        for number, up, down in ((0, 1000, 500), (1, 1160, 540), (2, 1322, 580), (3, 1400, 700))
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_whole_rounds_alone_are_counted(folder: Path) -> None:
    whole = books(folder)
    assert whole.rounds("up")["elements"].tolist() == [10, 20, 10, 20]
    assert whole.rounds("down")["wire_bytes"].tolist() == [40, 40]
    assert whole.setup("up")["elements"].tolist() == [3]
    assert len(whole.setup("down")) == 0


def test_the_kernel_is_asked_at_both_ends_of_the_rounds(folder: Path) -> None:
    assert books(folder).kernel_bytes("up") == 1322 - 1000
    assert books(folder, 1).kernel_bytes("down") == 540 - 500
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace("kernel_bytes", "nothing"))
    assert books(folder).kernel_bytes("up") is None


def test_flows_hold_formula_ledger_and_kernel_side_by_side(folder: Path) -> None:
    experiment = comm_cost.config.build([{"method": {"name": "local"}}])
    cost = found(up="30", down="5", setup_up="3")
    flows = list(comm_cost._flows(experiment, cost, {"M": 1}, books(folder), {}, curve=False))
    up, down, setup = flows
    assert (up.way, up.expected, up.elements, up.wire_bytes, up.kernel_bytes) == ("up", 60, 60, 322, 322)
    assert up.formula_agrees and up.kernel_agrees
    assert up.largest_client_bytes == 100 + 101  # client 1 in both rounds
    assert (down.expected, down.elements, down.wire_bytes, down.kernel_bytes) == (10, 10, 80, 80)
    assert (setup.way, setup.expected, setup.elements, setup.wire_bytes) == ("set-up up", 3, 3, 30)
    assert setup.kernel_bytes is None


@pytest.mark.parametrize(("heartbeat", "beyond", "explained"), [(0.0, 18, 0), (1.0, 18, 18), (1.0, 17, 0)])
def test_only_whole_heartbeats_explain_what_the_kernel_saw_beyond(
    folder: Path, heartbeat: float, beyond: int, explained: int
) -> None:
    """A ping without encryption is a frame of 7 bytes and its header of 2."""
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace('"kernel_bytes_up": 1322', f'"kernel_bytes_up": {1322 + beyond}'))
    sections = {"cluster": {"heartbeat_seconds": heartbeat}, "method": {"name": "local"}}
    flows = comm_cost._flows(
        comm_cost.config.build([sections]), found(up="30", down="5"), {}, books(folder), {}, curve=False
    )
    up = next(flows)
    assert (up.heartbeat_bytes, up.wire_bytes) == (explained, 322 + explained)
    assert up.kernel_agrees == (explained == beyond)


def test_options_go_to_the_methods_that_have_them() -> None:
    found = comm_cost._options_by_method(
        ["fedtgp", "fedktl", "local"], {"tau": 5, "server_epochs": 1}, {"generator": "x"}
    )
    assert found == {
        "fedtgp": {"tau": 5, "server_epochs": 1},
        "fedktl": {"server_epochs": 1, "generator": "x"},
        "local": {},
    }
    with pytest.raises(UnknownName, match=r"no option 'method.tua'; did you mean method.tau"):
        comm_cost._options_by_method(["fedtgp", "local"], {"tua": 5}, {"generator": "x"})


def test_a_method_that_cannot_work_is_an_error_or_a_line() -> None:
    layers = [{"data": {"dataset": "digits"}, "model": {"group": "HtCNN8"}, "run": {"clients": 3}}]
    with pytest.raises(UserError, match="FedAvg averages whole models"):
        comm_cost.measure_setting(layers, ["fedavg"])
    costs = comm_cost.measure_setting(layers, ["fedavg"], leave_out_refused=True)
    assert costs.methods == () and list(costs.refused) == ["FedAvg"]
    assert costs.refused["FedAvg"].startswith("FedAvg averages whole models")


# ------------------------------------------------------------------------------------------------ on the terminal


def flow(way: str) -> Flow:
    formula = "K*ΣC" if way == "up" else "M*K*C"
    return Flow(way, formula, 1_024_000, 1_024_000, 4_096_000, 4_097_000, 4_098_440, 4_098_440, 204_922)


def costs(num_clients: int = 20) -> SettingCosts:
    letters = {"C": 100, "K": 512, "M": num_clients, "ΣC": 43 * num_clients}
    tgp = MethodCost(
        name="fedtgp",
        title="FedTGP",
        formulae=formulae(fedtgp.contract(fedtgp.Config())),
        letters=letters,
        flows=(flow("up"), flow("down")),
        num_connections=20,
        num_agreeing=20,
        num_reconciled=20,
        num_heartbeats=3,
    )
    return SettingCosts(
        "cifar100", "HtFE8", num_clients, 1, letters, (tgp,), {"FedAvg": "no."}, heartbeat_seconds=10.0
    )


def shown(width: int, *, link: Link | None = None) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    show_setting(console, costs(), link)
    return console.export_text()


def test_a_wide_terminal_shows_numbers_in_full_and_a_narrow_one_units() -> None:
    wide, narrow = shown(140), shown(100)
    assert "4,098,440 ✓" in wide and "1,024,000 ✓" in wide and "M·K·C" in wide
    assert "4.10 MB ✓" in narrow and "1.02 M ✓" in narrow and "4,098,440" not in narrow
    for text, width in ((wide, 140), (narrow, 100)):
        table = text[: text.index("C = 100")]
        assert max(len(line.rstrip()) for line in table.splitlines()) <= width
        assert "– FedAvg: no." in text
        assert "2 of 2 formulae equal the measured elements" in text


def test_heartbeats_are_told_for_an_hour_and_links_in_seconds() -> None:
    text = shown(140, link=Link(10.0, 50.0))
    assert "a heartbeat every 10 s is 9 B up and 7 B down, for a client in an hour 3.24 kB up and 2.52 kB" in text
    assert "a line of 10 Mbit/s up and 50 down" in text
    # 204,922 bytes are 1.639 Mbit: 0.164 s at 10 Mbit/s, 0.033 s at 50.
    assert text.splitlines()[-1].split() == ["FedTGP", "0.164", "0.033", "0.197"]


def test_a_series_ends_with_the_projection() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    show_series(console, [costs(10), costs(20)], 1_000_000)
    text = console.export_text()
    assert "M = 10" in text and "M = 20" in text and "M = 1,000,000 *" in text
    # Up 512 · 43 and down 512 · 100 for each client.
    assert f"{512 * 143 / 1000:.3g} G /" in text
    assert "each client with 43.0 classes as with M = 20" in text


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0"), (999, "999"), (1024, "1.02 k"), (18_494_160, "18.5 M"), (4 * 10**12, "4 T")]
)
def test_elements_for_people(number: int, words: str) -> None:
    assert count(number) == words
