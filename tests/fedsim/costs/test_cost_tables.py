"""Cost tables: what agrees is marked, what does not is seen, and every format says the same."""

import csv
import io

import pytest
from cost_samples import audit, flow, method, printed, setting

from fedsim.costs import tables as cost_tables


def test_a_line_of_a_table():
    sample = method(up=flow("up", printed=printed("0.09"), elements=86_800, formula_elements=86_800))
    assert list(cost_tables.cells(sample, sample.flow("up")).values()) == [
        *("FedTGP", "up", "K·ΣCᵢ", "86,800", "86,800 ✓", "100", "150", "160", "160 ✓", "60 %", "0.09 ✓")
    ]
    both = list(cost_tables.cells(sample, sample.flow("both")).values())
    assert both[:5] == ["", "both", "", "86,824", "86,824 ✓"]
    assert both[5:9] == ["300", "300", "460", "460 ✓"]


def test_what_does_not_agree_is_marked_and_spoils_everything():
    assert setting().agrees
    for wrong in (
        method(up=flow("up", elements=23)),
        method(down=flow("down", kernel_bytes=161)),
        method(audit=audit(agree=1)),
    ):
        assert not setting(method(), wrong).agrees
    assert cost_tables.cells(method(), flow("up", elements=23))["elements"] == "23 ✗"
    assert cost_tables.cells(method(), flow("up", kernel_bytes=161))["kernel B"] == "161 ✗"


def test_a_platform_without_counters_has_nothing_to_disagree_with():
    blind = method(
        up=flow("up", kernel_bytes=None), down=flow("down", kernel_bytes=None), audit=audit(checked=0, agree=0)
    )
    assert blind.agrees and blind.flow("both").kernel_bytes is None
    assert cost_tables.cells(blind, blind.flow("both"))["kernel B"] == "–"
    assert cost_tables.verdict(setting(blind)) == (
        "2 of 2 formulae equal the measured elements; this platform has no TCP byte counters to compare with"
    )


def test_the_verdict_counts_formulae_connections_and_rounds():
    wrong = method(down=flow("down", elements=1, kernel_bytes=1), audit=audit(agree=1))
    assert cost_tables.verdict(setting(method(), wrong)) == (
        "3 of 4 formulae equal the measured elements; the kernel agrees to the byte on 3 of 4 connections and on "
        "3 of 4 counts of rounds"
    )


@pytest.mark.parametrize(
    ("payload", "wire", "shown"),
    [(0, 50, "–"), (100, 160, "60 %"), (1000, 1003, "0.3 %"), (10, 1010, "10,000 %")],
)
def test_overhead_is_what_the_wire_carries_beyond_the_payload(payload, wire, shown):
    assert cost_tables.overhead(flow(payload_bytes=payload, wire_bytes=wire)) == shown


def test_a_paper_that_says_otherwise_is_quoted_with_the_difference():
    assert cost_tables.printed(flow(elements=437_000, printed=printed("0.46"))) == "0.46 (-5 %)"
    assert cost_tables.printed(flow(elements=460_400, printed=printed("0.46"))) == "0.46 ✓"
    assert cost_tables.printed(flow()) == ""


def test_the_legend_tells_shared_letters_own_letters_and_notes():
    gen = method("fedgen", "FedGen", letters={"M": 2, "head": 51_300})
    lg = method("lg_fedavg", "LG-FedAvg", letters={"M": 2, "head": 51_300})
    kd = method("fedkd", "FedKD", letters={"M": 2, "ΣC": 5}, note="f moves")
    assert cost_tables.legend(setting(gen, lg, kd)) == [
        "K = 4  ΣCᵢ = 6  M = 2  C = 3",
        "head = 51,300 (FedGen, LG-FedAvg)  ΣCᵢ = 5 (FedKD)",
        "FedKD: f moves.",
    ]


def test_csv_holds_every_number_for_every_way():
    once = flow("set-up up", formula="M*C", formula_elements=6, elements=6, kernel_bytes=None)
    text = cost_tables.to_csv([setting(method(others=(once,))), setting(num_clients=9)])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["clients"], row["way"]) for row in rows] == [
        *(("2", "up"), ("2", "down"), ("2", "both"), ("2", "set-up up")),
        *(("9", "up"), ("9", "down"), ("9", "both")),
    ]
    first, _, both, setup = rows[:4]
    assert (first["method"], first["formula"], first["formula_elements"]) == ("fedtgp", "K*ΣC", "24")
    assert (first["wire_bytes"], first["kernel_bytes"], first["overhead_percent"]) == ("160", "160", "60.0")
    assert (first["formula_agrees"], first["kernel_agrees"], first["paper_millions"]) == ("True", "True", "")
    assert (both["elements"], both["wire_bytes"]) == ("48", "460")
    assert (setup["formula"], setup["kernel_bytes"], setup["kernel_agrees"]) == ("M*C", "", "")


def test_markdown_has_a_table_and_who_is_not_in_it():
    text = cost_tables.to_markdown(setting(refused={"FedAvg": "needs equal models."}, curve=True))
    lines = text.splitlines()
    assert lines[0] == "## digits, HtCNN8, 2 clients: one round, CURVE"
    assert lines[2].startswith("| method | way | formula |")
    assert lines[3].count("---:") == 8
    assert lines[4].startswith("| FedTGP | up | K·ΣCᵢ | 24 | 24 ✓ |")
    assert "- FedAvg: needs equal models." in lines
    assert "| FedTGP | ProtoNorm, table 7 | Σ (K_i + K) × d |" in lines
    weights = cost_tables.to_markdown(setting(method("fml", "FML")))
    assert r"| FML | FedTGP, table 5 | M × (\|θ_g\| + \|w_g\|) × 2 |" in weights


def test_latex_is_mathematics():
    assert cost_tables.latex_formula("K*ΣC") == r"$K \cdot \textstyle\sum_i C_i$"
    assert cost_tables.latex_formula("M*(head+gen)") == r"$M \cdot (\mathit{head}+\mathit{gen})$"
    assert cost_tables.latex_formula("(K+1)*500") == r"$(K+1) \cdot 500$"
    text = cost_tables.to_latex(setting(method(up=flow("up", elements=1_026_000, printed=printed("1.03")))))
    assert text.count(r"\begin{tabular}{lllrrrrrr}") == 1
    row = next(line for line in text.splitlines() if line.startswith("FedTGP & up"))
    assert row.count("&") == 8
    assert row.endswith(r"& 1\,026\,000 & 100 & 150 & 160 & 160 & 1.03 \\")


def test_several_rounds_are_named():
    assert setting(num_rounds=5).title == "digits, HtCNN8, 2 clients: 5 rounds"
