"""Several runs in one picture: the numbers behind the lines and bands, what is a line and what a panel."""

import re

import numpy as np
import pytest
from made_run import DOWN_BYTES, make_run

from fedsim.errors import UserError
from fedsim.results.groups import collect
from fedsim.results.plots import compared, drawing, gallery, paper

RIGHT = {1: (3, 4, 2), 2: (2, 2, 1), 3: (4, 4, 5)}
"""Seed -> right answers of the three clients in the last round, of 4, 4 and 5."""


def sweep(folder, methods=("fedproto", "fedtgp", "local"), betas=(0.1, 1.0)):
    for method in methods:
        for beta in betas:
            for seed, right in RIGHT.items():
                settings = {"run": {"seed": seed}, "data": {"beta": beta, "seed": 1}}
                correct = {0: (0, 0, 0), 1: (1, 2, 1), 2: right}
                make_run(folder / f"{method}-{beta}-{seed}", method=method, settings=settings, correct=correct)
    return collect([folder])


def words(svg):
    """matplotlib notes every text beside its glyphs."""
    return set(re.findall(r"<!-- (.*?) -->", svg.read_text()))


def test_a_line_is_the_mean_over_seeds_and_its_band_their_deviation(tmp_path):
    (group,) = sweep(tmp_path, ["fedtgp"], [0.1]).groups
    curve = compared.mean_curve(group, lambda run: compared._points(run, run.series("accuracy").index))
    shares = [100 * sum(right) / 13 for right in RIGHT.values()]
    assert curve["x"].tolist() == [1, 2]
    np.testing.assert_allclose(curve["mean"], [100 * 4 / 13, np.mean(shares)])
    np.testing.assert_allclose(curve["deviation"], [0, np.std(shares, ddof=1)])


def test_seconds_are_those_of_the_rounds_before(tmp_path):
    run = sweep(tmp_path, ["fedtgp"], [0.1]).runs[0]
    assert compared.seconds_until(run).to_dict() == {0: 0.0, 1: 5.0, 2: 10.0}


def test_methods_are_lines_other_settings_are_panels_and_local_is_the_baseline(tmp_path):
    panels, looks = compared.arranged(sweep(tmp_path))
    assert {title: list(lines) for title, lines in panels.items()} == {
        "β = 0.1": ["Local", "FedProto", "FedTGP"],
        "β = 1": ["Local", "FedProto", "FedTGP"],
    }
    assert looks["Local"] == {"color": drawing.MUTED, "linestyle": "--"}
    assert looks["FedProto"]["color"] == drawing.PALETTE[0]


def test_of_one_method_what_was_varied_are_the_lines(tmp_path):
    panels, _ = compared.arranged(sweep(tmp_path, ["fedtgp"]))
    assert {title: list(lines) for title, lines in panels.items()} == {"": ["β = 0.1", "β = 1"]}


def test_all_comparisons_are_drawn_with_the_names_of_groups(tmp_path):
    drawn = {
        picture.plot.name: words(picture.svg)
        for picture in gallery.draw(gallery.COMPARISONS, sweep(tmp_path / "runs"), tmp_path / "plots")
    }
    assert set(drawn) == {
        *("accuracy_by_round", "accuracy_by_bytes", "accuracy_by_seconds", "accuracy_over_links"),
        *("accuracy_of_clients", "margins"),
    }
    for name in ("accuracy_by_round", "accuracy_by_bytes", "accuracy_by_seconds"):
        assert {"Local", "FedProto", "FedTGP", "β = 0.1", "β = 1"} <= drawn[name]
    worst = np.mean([100 * min(np.divide(right, (4, 4, 5))) for right in RIGHT.values()])
    assert any(f"worst tenth {worst:.1f}, σ" in text for text in drawn["accuracy_of_clients"])


def test_a_run_without_a_wire_and_one_that_stopped_are_no_obstacle(tmp_path):
    make_run(tmp_path / "alone", wire=False)
    make_run(tmp_path / "other", method="fedtgp")
    (tmp_path / "alone" / "summary.json").unlink()
    runs = collect([tmp_path])
    _, svg = drawing.save(compared.compare_by_bytes(runs), tmp_path / "plots" / "bytes")
    assert "FedTGP 69.2" in words(svg) and "FedProto 69.2" not in words(svg)
    assert runs.stopped == ["stopped early, and left out where others of their group are complete: alone"]


def test_a_wide_range_of_costs_is_drawn_on_a_logarithmic_axis(tmp_path):
    make_run(tmp_path / "cheap"), make_run(tmp_path / "dear", method="fedtgp")
    ledger = tmp_path / "dear" / "ledger.csv"
    ledger.write_text(ledger.read_text().replace(f",{DOWN_BYTES}\n", f",{1000 * DOWN_BYTES}\n"))
    _, svg = drawing.save(compared.compare_by_bytes(collect([tmp_path])), tmp_path / "plots" / "bytes")
    assert {"10 kB", "100 kB", "1 MB"} <= words(svg)


# ---------------------------------------------------------------------------------------------------- for a paper


ELSEWHERE = {"generated_images", "accuracy_by_logits"}  # runs made by hand have neither


@pytest.mark.parametrize("plot", [plot.name for plot in gallery.COMPARISONS if plot.name not in ELSEWHERE])
def test_a_figure_has_the_width_that_was_asked_for_and_fonts_that_are_accepted(tmp_path, plot):
    subject, plots = gallery.for_runs(sweep(tmp_path / "runs"))
    path = paper.draw(gallery.named(plots, plot), subject, tmp_path / "a.pdf", paper.Page(3.3, font="serif"))
    content = path.read_bytes()
    width = float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)[1])
    assert width == pytest.approx(3.3 * 72, abs=0.1)
    assert b"/Type3" not in content and b"/Type /Font" in content and b"CreationDate" not in content


@pytest.mark.parametrize("plot", ["accuracy_by_round", "accuracy_of_clients", "accuracy_over_links"])
def test_settings_with_long_names_leave_room_for_the_picture(tmp_path, plot):
    for scale, distance in ((20.0, "mse"), (200.0, "l2")):
        settings = {"method": {"prototype_scale": scale, "distance": distance, "prototype_weight": 1 / scale}}
        make_run(tmp_path / distance, method="protonorm", settings=settings)
    with drawing.style(), drawing.fitted(3.3):
        figure = gallery.named(gallery.COMPARISONS, plot)(collect([tmp_path]))
        figure.draw_without_rendering()
    axes = figure.axes[0]
    texts = [*axes.get_yticklabels(), *(text for legend in figure.legends for text in legend.get_texts())]
    assert any("prototype scale = 200" in text.get_text() for text in texts)
    assert axes.get_window_extent().width > 0.4 * figure.bbox.width
    assert all(figure.bbox.x0 <= text.get_window_extent().x0 for text in texts)
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in texts)


def test_lengths():
    assert [round(paper.inches(text), 2) for text in ("column", "page", "2", "8.5cm", "90 mm")] == [
        *(3.3, 7.0, 2.0, 3.35, 3.54),
    ]
    for text in ("wide", "3px", "0.1in", "90in", "-3in", ""):
        with pytest.raises(
            UserError, match=r"is no length for a figure; write column, page, or between 1\.5 and 20"
        ):
            paper.inches(text)
