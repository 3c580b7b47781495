import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.results.plots import data as data_plots
from fedsim.results.plots.drawing import save

COUNTS_MC = np.array([[10, 0, 90], [0, 40, 0]])


def circle_diameters(svg: str) -> list[float]:
    """Heights of the circles in the first group that holds any; those after it belong to the legend."""
    group = re.findall(r'<g id="PathCollection_\d+">(.*?)</g>', svg, re.DOTALL)[0]
    outlines = re.findall(r'd="(M.*?)z', group, re.DOTALL)
    heights = [[float(y) for y in re.findall(r"[\d.]+ ([\d.]+) ", outline)] for outline in outlines]
    return [max(ys) - min(ys) for ys in heights]


def test_areas_of_circles_are_proportional_to_samples(tmp_path):
    _, svg = save(data_plots.draw_bubbles(COUNTS_MC, "title"), tmp_path / "bubbles")
    small, large, middle = circle_diameters(svg.read_text())  # client by client: 10, 90; 40
    assert large / small == pytest.approx(3.0, rel=1e-4)  # nine times the samples, three times the diameter
    assert middle / small == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("draw", [data_plots.draw_bubbles, data_plots.draw_heat_map])
@pytest.mark.parametrize("shape", [(1, 1), (8, 3), (30, 14)])
def test_pictures_are_written_as_png_and_svg(tmp_path, draw, shape):
    counts_MC = np.random.default_rng(0).integers(0, 50, shape) + np.eye(*shape, dtype=np.int64)
    png, svg = save(draw(counts_MC, "some partition"), tmp_path / "new" / "a.b")
    assert (png, svg) == (tmp_path / "new" / "a.b.png", tmp_path / "new" / "a.b.svg")
    with Image.open(png) as image:
        pixels = np.asarray(image.convert("L"))
    assert min(pixels.shape) > 300 and pixels.min() < 50 < 200 < pixels.max()
    assert svg.read_text().startswith("<?xml")


@pytest.mark.parametrize("draw", [data_plots.draw_bubbles, data_plots.draw_heat_map])
def test_the_same_partition_gives_the_same_bytes(tmp_path, draw):
    first = [path.read_bytes() for path in save(draw(COUNTS_MC, "title"), tmp_path / "first")]
    again = [path.read_bytes() for path in save(draw(COUNTS_MC, "title"), tmp_path / "again")]
    assert first == again


def test_the_heat_map_writes_every_number(tmp_path: Path):
    _, svg = save(data_plots.draw_heat_map(COUNTS_MC, "title"), tmp_path / "heat")
    comments = re.findall(r"<!-- (\d+) -->", svg.read_text())  # matplotlib notes the text beside its glyphs
    assert {"10", "40", "90"} <= set(comments)
