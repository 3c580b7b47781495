"""From the books of a rehearsal to a cost table: which rounds count, whose options."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_run import make_run
from rich.console import Console

from fedsim.contract import DIRECTIONS
from fedsim.costs.formula import Formula, formulae
from fedsim.costs.measured import Flow, MethodCost, SettingCosts, both_ways
from fedsim.costs.projection import Link
from fedsim.errors import UnknownName, UserError
from fedsim.methods import fedtgp
from fedsim.results.load import load
from nodes.display.costs import count, show_series, show_setting
from nodes.tools import comm_cost

COLUMNS = (
    *("round", "client", "direction", "purpose", "message", "payload"),
    *("frames", "elements", "payload_bytes", "message_bytes", "wire_bytes"),
)


def row(round: int, client: int, way: str, purpose: str, *levels: int) -> list[Any]:
    return [round, client, way, purpose, "result", "prototypes", 1, *levels]


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


def flows_of(folder: Path, num_rounds: int = 2, **numbers: str) -> tuple[Flow, ...]:
    sections = {"run": {"rounds": num_rounds + 1}}
    run = replace(load(folder), experiment=comm_cost.config.build([{"method": {"name": "local"}}, sections]))
    return comm_cost.flows_of(run, found(**numbers), {})


def test_formula_ledger_and_kernel_stand_side_by_side(folder: Path) -> None:
    """Of whole rounds alone, and the kernel is asked at both ends of them."""
    up, down, both, setup = flows_of(folder, up="30", down="5", setup_up="3")
    assert (up.way, up.formula_elements, up.elements, up.wire_bytes, up.kernel_bytes) == ("up", 60, 60, 322, 322)
    assert up.agrees and up.kernel_bytes == 1322 - 1000
    assert up.largest_client_bytes == 100 + 101  # client 1 in both rounds
    assert (down.formula_elements, down.elements, down.wire_bytes, down.kernel_bytes) == (10, 10, 80, 80)
    assert (both.elements, both.wire_bytes, both.kernel_bytes) == (70, 402, 402)
    assert (setup.way, setup.formula_elements, setup.elements, setup.wire_bytes) == ("set-up up", 3, 3, 30)
    assert setup.kernel_bytes is None


def test_one_round_is_counted_without_those_around_it(folder: Path) -> None:
    up, down, _ = flows_of(folder, num_rounds=1, up="30", down="5")[:3]
    assert (up.elements, up.wire_bytes, up.kernel_bytes) == (30, 160, 1160 - 1000)
    assert (down.elements, down.wire_bytes, down.kernel_bytes) == (5, 40, 540 - 500)


def test_without_counters_there_is_nothing_to_compare(folder: Path) -> None:
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace("kernel_bytes", "nothing"))
    assert [flow.kernel_agrees for flow in flows_of(folder, up="30", down="5", setup_up="3")] == [None] * 4


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
    return Flow(
        way=way,
        formula="K*ΣC" if way == "up" else "M*K*C",
        formula_elements=1_024_000,
        elements=1_024_000,
        payload_bytes=4_096_000,
        message_bytes=4_097_000,
        wire_bytes=4_098_440,
        kernel_bytes=4_098_440,
        largest_client_bytes=204_922,
    )


def costs(num_clients: int = 20, **changes: Any) -> SettingCosts:
    letters = {"C": 100, "K": 512, "M": num_clients, "ΣC": 43 * num_clients}
    up, down = flow("up"), replace(flow("down"), **changes)
    tgp = MethodCost(
        name="fedtgp",
        title="FedTGP",
        formulae=formulae(fedtgp.contract(fedtgp.Config())),
        letters=letters,
        flows=(up, down, both_ways(up, down)),
        audit={"connections": 20, "agree": 20, "checked": 20, "differences": [], "cut": []},
    )
    return SettingCosts(
        dataset="cifar100",
        group="HtFE8",
        num_clients=num_clients,
        num_rounds=1,
        letters=letters,
        methods=(tgp,),
        refused={"FedAvg": "no."},
    )


def shown(width: int, *, link: Link | None = None, **changes: Any) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    show_setting(console, costs(**changes), link)
    return console.export_text()


@pytest.mark.parametrize("width", [140, 110, 80])
def test_a_table_fits_and_says_what_agrees(width: int) -> None:
    text = shown(width)
    table = text[: text.index("C = 100")]
    assert max(len(line.rstrip()) for line in table.splitlines()) <= width
    assert "M·K·C" in table and "paper" not in table, "columns without any content are left out"
    assert "– FedAvg: no." in text
    assert "2 of 2 formulae equal the measured elements" in text


def test_a_wide_terminal_shows_numbers_in_full_and_a_narrow_one_units() -> None:
    wide, narrow, narrowest = shown(140), shown(110), shown(80)
    assert "4,098,440 ✓" in wide and "1,024,000 ✓" in wide
    assert "4.10 MB ✓" in narrow and "1.02 M ✓" in narrow and "4,098,440" not in narrow
    assert "payload" in narrow and "payload" not in narrowest and "4.10 MB ✓" in narrowest


def test_where_the_kernel_disagrees_its_number_is_shown() -> None:
    assert "4.10 MB ✗ 3.00 MB" in shown(80, kernel_bytes=3_000_000)


def test_links_are_told_in_seconds() -> None:
    text = shown(140, link=Link(10.0, 50.0))
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
