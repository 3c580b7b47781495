"""Projections by formula and times on a link, worked out by hand; the files that hold them."""

import csv
import os
from itertools import pairwise
from pathlib import Path

import pytest
from cost_samples import flow, formulae_of, method, setting

from fedsim.costs.files import write_files
from fedsim.costs.projection import Link, parse_link, project
from fedsim.errors import UserError

MILLION = 1_000_000


def test_a_million_clients_by_the_formula():
    """Two clients hold 6 classes together, so a million hold 3 million; K = 4 and C = 3 stay."""
    far = project(method(), setting(), MILLION)
    assert (far.elements_up, far.elements_down) == (4 * 3 * MILLION, MILLION * 4 * 3)
    assert far.elements == 24 * MILLION
    # 160 bytes for 24 elements up, 300 for 24 down.
    assert far.wire_bytes == 12 * MILLION * 160 // 24 + 12 * MILLION * 300 // 24


def test_published_costs_grow_with_the_clients_alone():
    """FedTGP's table 5 for a million clients: FML 2 · 924,708 each, FedTGP's download 512 · 100 each."""
    letters = {"M": 20, "aux": 924_708}
    fml = method("fml", "FML", formulae=formulae_of("fml"), letters=letters)
    twenty = setting(fml, num_clients=20)
    assert project(fml, twenty, MILLION).elements == 2 * 924_708 * MILLION
    tgp = method(letters={"K": 512, "ΣC": 868, "M": 20, "C": 100})
    assert project(tgp, twenty, MILLION).elements_up == 512 * 43_400_000  # 868 / 20 = 43.4 classes each
    assert project(tgp, twenty, MILLION).elements_down == 51_200 * MILLION


def test_a_projection_to_the_measured_number_is_the_measurement():
    up, down = flow("up", elements=24), flow("down", elements=24, wire_bytes=300)
    same = project(method(up=up, down=down), setting(), 2)
    assert (same.elements_up, same.elements_down, same.wire_bytes) == (24, 24, 460)


def test_rounds_are_projected_one_by_one():
    five = method(up=flow("up", elements=120, wire_bytes=800), down=flow("down", elements=120, wire_bytes=1500))
    assert project(five, setting(five, num_rounds=5), 2).wire_bytes == 460


def test_without_elements_the_bytes_of_a_client_count():
    local = method(
        formulae=formulae_of("local"),
        letters={},
        up=flow("up", formula="0", elements=0, formula_elements=0),
        down=flow("down", formula="0", elements=0, formula_elements=0, wire_bytes=40),
    )
    far = project(local, setting(local), MILLION)
    assert (far.elements, far.wire_bytes) == (0, (160 + 40) * MILLION // 2)


def test_a_link_takes_as_long_as_its_slower_client():
    """90 bytes are 720 bits: 72 microseconds at 10 Mbit/s, 7.2 at 100."""
    link = parse_link("10/100")
    assert link == Link(10.0, 100.0)
    assert link.seconds(flow("up"), 1) == pytest.approx(72e-6)
    assert link.seconds(flow("down"), 1) == pytest.approx(7.2e-6)
    assert link.seconds(flow("up"), 9) == pytest.approx(8e-6)


@pytest.mark.parametrize("text", ["10", "10/", "a/b", "0/5", "-1/5", "nan/5", "inf/5", "1/2/3", ""])
def test_a_link_that_is_none(text):
    with pytest.raises(UserError, match="--link wants the speed up and down in Mbit/s, such as 10/50"):
        parse_link(text)


def test_one_setting_makes_tables_and_a_chart(tmp_path):
    paths = write_files(tmp_path / "cost", [[setting()]], MILLION)
    assert [path.name for path in paths] == [
        *("comm_cost.csv", "comm_cost.md", "comm_cost.tex"),
        *("comm_cost-digits-HtCNN8-2.png", "comm_cost-digits-HtCNN8-2.svg"),
    ]
    assert all(path.stat().st_size > 100 for path in paths)
    svg = paths[-1].read_text()
    assert svg.startswith("<?xml")
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_files(tmp_path / "cost", [[setting()]], MILLION)] == before


def test_a_series_is_measured_and_then_goes_on_by_formula(tmp_path):
    series = [setting(), setting(method(letters={"K": 4, "ΣC": 15, "M": 5, "C": 3}), num_clients=5)]
    paths = write_files(tmp_path, [series], 1000)
    assert "comm_cost_series.csv" in {path.name for path in paths}
    assert {"comm_cost-digits-HtCNN8-series.png", "comm_cost-digits-HtCNN8-series.svg"} <= {p.name for p in paths}
    with (tmp_path / "comm_cost_series.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["clients"], row["measured"]) for row in rows] == [("2", "True"), ("5", "True"), ("1000", "False")]
    assert rows[-1]["elements_up"] == str(4 * 3000) and rows[-1]["elements_down"] == str(1000 * 4 * 3)
    assert all(int(earlier["clients"]) < int(later["clients"]) for earlier, later in pairwise(rows))


def test_a_group_of_ones_own_makes_a_name_that_files_can_have(tmp_path):
    paths = write_files(tmp_path, [[setting(dataset="my.npz", group="CNN,ViT-B/16:256")]], MILLION)
    assert paths[-1] == tmp_path / "comm_cost-my-CNN_ViT-B_16_256-2.svg"


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made"):
        write_files(Path(tmp_path / "file" / "cost"), [[setting()]], MILLION)


def test_a_folder_that_only_the_attempt_shows_to_be_impossible(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    with pytest.raises(UserError, match=r"cannot be made: .*; choose another place"):
        write_files(Path("/proc/cost"), [[setting()]], MILLION)


def test_a_folder_of_somebody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(UserError, match=r"cannot be written: .* is closed to you"):
        write_files(tmp_path, [[setting()]], MILLION)


def test_nobody_measured_leaves_a_table_without_a_chart(tmp_path):
    nobody = setting(refused={"FedAvg": "no."}, methods=())
    assert [path.suffix for path in write_files(tmp_path, [[nobody]], MILLION)] == [".csv", ".md", ".tex"]
