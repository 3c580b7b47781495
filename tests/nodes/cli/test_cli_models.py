"""`fedsim models`: what is printed, and what is refused."""

import pytest
from click.testing import CliRunner

from fedsim.errors import UnknownName, UserError
from nodes.cli.models import command


def run(*arguments):
    result = CliRunner().invoke(command, arguments, env={"COLUMNS": "160"})
    if result.exception:
        raise result.exception
    return result.output


def row(output, first_cell):
    """The cells of the table row that begins with this."""
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in output.splitlines()]
    return next(cells for cells in rows if cells[0] == first_cell)


def test_list_names_groups_and_models():
    output = run("list")
    assert row(output, "HtFE3") == ["HtFE3", "3", "ResNet10, ResNet18, ResNet34"]
    assert "MobileNetV2" in output


def test_show_gives_costs_clients_and_the_flops_of_the_paper():
    output = run("show", "htfe8")
    assert row(output, "CNN") == ["CNN", "924,708", "15,744,000", "512 → 512", "512 → 100", "0, 8, 16"]
    assert row(output, "ResNet152")[3:] == ["2048 → 512", "512 → 100", "7, 15"]
    assert row(output, "forward passes")[2] == "24.692"
    assert row(output, "× 4")[2] == "98.768"
    assert row(output, "× 4, with CNN as auxiliary (FML, FedKD)")[2] == "99.808"


def test_the_factor_can_be_set():
    output = run("show", "CNN", "--clients", "10", "--flop-factor", "3")
    assert row(output, "× 3")[1:] == ["0.472", "0.390"]  # 3 · 10 · 15.744 M, and with the paper's 13 M


def test_htcnn8_is_shown_on_the_task_it_was_published_with():
    output = run("show", "HtCNN8", "--clients", "200")
    assert "HtCNN8 on 1x28x28, 10 classes" in output
    assert row(output, "CNN1")[1] == "2,365,770"
    assert row(output, "CNN8")[-1] == "7, 15, … 199 (25)"
    assert "Table 8" not in output


def test_clients_may_be_fewer_than_models():
    output = run("show", "HtCNN8", "--clients", "2")
    assert [row(output, name)[-1] for name in ("CNN1", "CNN2", "CNN3")] == ["0", "1", "none"]


def test_sizes_can_be_given():
    output = run("show", "CNN", "--input", "3x64x64", "--classes", "200", "--feature-dim", "64")
    # Two convolutions, 10816 → 512, and the head 64 → 200.
    parameters = (75 * 32 + 32) + (800 * 64 + 64) + (10816 * 512 + 512) + (64 * 200 + 200)
    assert row(output, "CNN")[1] == f"{parameters:,}"
    assert row(output, "CNN")[3:5] == ["512 → 64", "64 → 200"]
    # Five layers of the default width 64, from four numbers to K = 2, and the head 2 → 100.
    vector = run("show", "MLP", "--input", "4", "--classes", "100", "--feature-dim", "2")
    assert row(vector, "MLP")[1] == f"{(4 * 64 + 64) + 3 * (64 * 64 + 64) + (64 * 2 + 2) + (2 * 100 + 100):,}"


def test_sizes_can_come_from_a_dataset(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    assert "CNN on 1x28x28, 10 classes" in run("show", "CNN", "--dataset", "digits")


def test_options_reach_the_models():
    projected = row(run("show", "ResNet18", "--feature-mapping", "project"), "ResNet18")
    pooled = row(run("show", "ResNet18"), "ResNet18")
    assert projected[1] == f"{int(pooled[1].replace(',', '')) + 512 * 513:,}"
    # Without a stride in the stem the four stages see 32, 16, 8 and 4 pixels a side, and the last three cost
    # the same: half a convolution, three whole ones, and the shortcut.
    convolution = 32 * 32 * 64 * 64 * 9
    later_stage = convolution // 2 + 3 * convolution + 16 * 16 * 128 * 64
    multiply_adds = 32 * 32 * 64 * 27 + 4 * convolution + 3 * later_stage + 512 * 100
    assert row(run("show", "ResNet18", "--cifar-stem"), "ResNet18")[2] == f"{2 * multiply_adds:,}"


@pytest.mark.parametrize("size", ["32x", "3x0x32", "3x32x32x1", "big"])
def test_bad_sizes_are_refused(size):
    with pytest.raises(UserError, match="--input wants"):
        run("show", "CNN", "--input", size)


def test_bad_names_and_contradictions_are_refused():
    with pytest.raises(UnknownName):
        run("show", "HtFE7")
    with pytest.raises(UserError, match="give one of them"):
        run("show", "CNN", "--dataset", "digits", "--input", "3x32x32")
