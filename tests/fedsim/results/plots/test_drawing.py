"""What pictures share: labels that do not overlap, and SVGs that follow a page's theme."""

import re

import numpy as np
import pandas
import pytest
from matplotlib.figure import Figure

from fedsim.errors import UserError
from fedsim.results.plots import drawing


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([0, 100], [0, 100]),  # far apart: where they want to be
        ([50, 50], [45, 55]),  # centred on the mean of what they want
        ([0, 1, 2, 100], [-9, 1, 11, 100]),
        ([0, 12, 14], [-1.333333, 8.666667, 18.666667]),  # the two upper ones push the lowest
    ],
)
def test_labels_keep_their_distance(wanted, expected):
    assert drawing._spread_apart(np.array(wanted), 10) == pytest.approx(expected)


def test_labels_of_lines_stand_apart_in_the_picture():
    with drawing.style():
        figure = drawing.new_figure()
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 100])
        drawing.label_ends(axes, [(1, 50, "b", "k"), (1, 49.9, "a", "k"), (1, 90, "c", "k")], size=8)
        figure.draw_without_rendering()
        heights = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert heights["a"].y1 <= heights["b"].y0 and heights["b"].y1 < heights["c"].y0
    wanted = axes.transData.transform((1, 90))[1]
    assert (heights["c"].y0 + heights["c"].y1) / 2 == pytest.approx(wanted, abs=3)  # it has no neighbour


@pytest.mark.parametrize("height", [None, 3.0])
def test_labels_that_have_no_room_beside_their_lines_stand_below_within_the_picture(height):
    long = [f"distance = l2, prototype scale = {scale}, prototype weight = 1: 49.{scale}" for scale in (1, 2, 3)]
    with drawing.style(), drawing.fitted(3.3, height):
        figure, axes = drawing.new_axes()
        before = figure.get_size_inches()
        line = pandas.Series([1.0, 2.0], index=[0, 1])
        drawing.draw_lines(axes, [(label, line) for label in long])
        figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [" ".join(text.get_text().split()) for text in legend.get_texts()] == long
    assert not any(part.endswith("=") for text in legend.get_texts() for part in text.get_text().split("\n"))
    page, around = figure.bbox, [text.get_window_extent() for text in legend.get_texts()]
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 for box in around)
    assert not axes.texts and axes.get_window_extent().width > 0.7 * page.width
    assert (figure.get_size_inches() == before).all() == (height is not None)


def test_axes_beside_each_other_share_the_labels_below():
    with drawing.style():
        figure = drawing.new_figure()
        for axes in figure.subplots(1, 2):
            drawing.draw_lines(axes, [("a label with very many letters in it", pandas.Series([1.0, 2.0]))])
    assert len(figure.legends) == 1


@pytest.mark.parametrize(
    ("num", "most", "expected"), [(3, 8, [0, 1, 2]), (9, 5, [0, 2, 4, 6, 8]), (1, 4, [0]), (100, 2, [0, 99])]
)
def test_spread_keeps_the_first_and_the_last(num, most, expected):
    assert drawing.spread(range(num), most) == expected


def test_thirty_two_lines_look_different():
    looks = [tuple(drawing.series_style(index).values()) for index in range(33)]
    assert len(set(looks)) == 32 and looks[32] == looks[0]


def test_an_svg_for_a_page_has_its_own_ids_and_the_page_s_colours(tmp_path):
    figure = Figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color=drawing.PALETTE[1])
    axes.fill_between([0, 1], [0, 1], color="#123456")
    _, path = drawing.save(figure, tmp_path / "some")
    svg = drawing.themed(path.read_text(), "one")
    assert svg.startswith("<svg") and "viewBox" in svg
    assert not re.search(r'<svg[^>]* (width|height)="', svg)
    ids = re.findall(r'\bid="([^"]*)"', svg)
    used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg)
    assert ids and all(name.startswith("one-") for name in ids)
    assert used and {a or b for a, b in used} <= set(ids)
    assert "stroke: var(--c1)" in svg and "fill: var(--paper)" in svg
    assert "#123456" in svg and drawing.PALETTE[1] not in svg


def test_colours_of_the_page_are_defined_for_both_themes():
    from importlib.resources import files

    css = (files("fedsim.results.report") / "templates" / "style.css").read_text()
    light, dark = css.split("prefers-color-scheme: dark")
    for name in {*drawing._THEMED.values(), "back", "line"}:
        assert f"--{name}:" in light and f"--{name}:" in dark
    for colour, name in drawing._THEMED.items():
        if name != "muted":  # letters of the page are a little darker than the ticks of a picture
            assert f"--{name}: {colour};" in light
    luminances = [np.mean([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) for colour in drawing.PALETTE]
    assert max(luminances) < 200  # all show on white


def test_a_place_that_takes_no_pictures_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^no picture can be written to .*/file: File exists\.$"):
        drawing.save(drawing.new_figure(2, 2), tmp_path / "file" / "some")
