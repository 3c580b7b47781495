"""Pictures of FedKTL from a run folder: which rounds and classes are shown, and where each image is."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim import config
from fedsim.data import ClientData, Federation
from fedsim.data.dataset import Dataset, Subset
from fedsim.metrics import ROUND_COLUMNS
from fedsim.results.folder import RunFolder
from fedsim.results.groups import collect
from fedsim.results.load import load
from fedsim.results.plots import ktl as ktl_plots
from fedsim.results.plots.drawing import save


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))


def run_folder(path: Path, *, channels: int = 3, rounds: int = 3, classes: int = 10) -> Path:
    """Image of class c in round r: all pixels r · 10 + c in the first channel, 200 in the others."""
    folder = RunFolder.create(path, config.build([{"run": {"clients": 2}, "method": {"name": "fedproto"}}]))
    for round in range(rounds):
        images = np.full((classes, channels, 28, 28), 200, np.uint8)
        images[:, 0] = (10 * round + np.arange(classes))[:, None, None]
        folder.add_records(round, {"images": images})
    folder.add_metrics(dict.fromkeys(ROUND_COLUMNS, 0))
    return path


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_has_its_place_in_the_grid(tmp_path, channels):
    images = load(run_folder(tmp_path / "run", channels=channels)).records("images")
    rows = {f"round {round}": images[round]["images"] for round in images}
    png, svg = save(ktl_plots.draw_images(rows), tmp_path / "grid")
    assert (png, svg) == (tmp_path / "grid.png", tmp_path / "grid.svg")
    with Image.open(png) as image:
        pixels = np.asarray(image.convert("RGB"))[:, :, 0]
    # The middle of each area of one value, whatever a few pixels of letters add: rounds go down, classes right.
    middle = {value: np.median(np.argwhere(pixels == value), axis=0) for value in (0, 9, 14, 20, 29)}
    rows_of, columns_of = ({value: at[axis] for value, at in middle.items()} for axis in (0, 1))
    assert rows_of[0] == pytest.approx(rows_of[9], abs=2)
    assert rows_of[20] == pytest.approx(rows_of[29], abs=2)
    assert columns_of[0] == pytest.approx(columns_of[20], abs=2)
    assert columns_of[9] == pytest.approx(columns_of[29], abs=2)
    assert rows_of[0] < rows_of[14] < rows_of[20] and columns_of[0] < columns_of[14] < columns_of[9]


def test_of_many_classes_some_are_shown(tmp_path):
    rows = {"round 0": np.zeros((100, 1, 4, 4), np.uint8)}
    _, svg = save(ktl_plots.draw_images(rows), tmp_path / "grid")
    text = svg.read_text()
    assert "<!-- 99 -->" in text and "<!-- 9 -->" in text and "<!-- 50 -->" not in text


def test_some_rounds_of_a_run_with_the_first_and_the_last(tmp_path):
    run = load(run_folder(tmp_path / "run", rounds=20))
    _, svg = save(ktl_plots.draw_generated(run), tmp_path / "images")
    text = svg.read_text()
    assert text.count("<!-- round ") == 8 and "<!-- round 0 -->" in text and "<!-- round 19 -->" in text


def test_pictures_of_a_run_are_the_same_bytes_every_time(tmp_path):
    run = load(run_folder(tmp_path / "run"))
    first = [path.read_bytes() for path in save(ktl_plots.draw_generated(run), tmp_path / "one")]
    again = [path.read_bytes() for path in save(ktl_plots.draw_generated(run), tmp_path / "two")]
    assert len(first) == 2 and first == again


def test_a_run_of_another_method_has_no_images(tmp_path):
    run = load(run_folder(tmp_path / "run", rounds=0))
    assert ktl_plots.draw_generated(run) is None
    assert ktl_plots.compare_generated(collect([tmp_path / "run"])) is None


def test_comparison_shows_a_client_s_own_images_first(tmp_path):
    folders = [run_folder(tmp_path / name, channels=1) for name in ("a", "b")]
    data = Federation(RunFolder.open(folders[0]).experiment()).client(1)
    own = ktl_plots.own_images(data)
    assert sorted(own) == data.classes.tolist()
    label = int(data.classes[-1])
    row = data.train.indices[data.train.labels == label][0]
    np.testing.assert_array_equal(own[label][0], data.train.dataset.inputs[row, :, :, 0])
    config = folders[1] / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.5"))
    paths = save(ktl_plots.compare_generated.draw(collect(folders), client=1), tmp_path / "plots")
    text = paths[1].read_text()
    names = ("client 1", "lr = 0.01", "lr = 0.5", str(label))
    assert all(f"<!-- {name} -->" in text for name in names)


def test_a_client_s_own_images_of_an_array_of_numbers(tmp_path):
    """As models read them: channels first, from -1 to 1."""
    values = np.linspace(-1, 1, 4 * 2 * 3, dtype=np.float32).reshape(4, 1, 2, 3)
    train = Subset(Dataset("own", values, np.array([0, 1, 1, 0]), 2, 4, kind="image"), np.array([2, 3]))
    own = ktl_plots.own_images(ClientData(train=train, test=train))
    assert own.keys() == {0, 1}
    np.testing.assert_array_equal(own[1], np.rint((values[2] + 1) * 127.5).astype(np.uint8))


def test_where_the_data_are_not_at_hand_the_generated_images_are_compared_alone(tmp_path):
    folders = [run_folder(tmp_path / name) for name in ("a", "b")]
    for folder, rate in zip(folders, ("0.01", "0.5"), strict=True):
        text = (folder / "config.toml").read_text().replace('dataset = "digits"', 'dataset = "./gone.npz"')
        (folder / "config.toml").write_text(text.replace("lr = 0.01", f"lr = {rate}"))
    text = save(ktl_plots.compare_generated.draw(collect(folders)), tmp_path / "plots")[1].read_text()
    assert "<!-- lr = 0.5 -->" in text and "client 0" not in text
