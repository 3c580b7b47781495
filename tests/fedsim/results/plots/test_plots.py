"""Pictures of a run: the numbers behind them, that each is drawn, and that none is without its data."""

import re

import numpy as np
import pytest
from made_run import make_run
from PIL import Image

from fedsim.results.folder import RunFolder
from fedsim.results.groups import collect
from fedsim.results.load import load
from fedsim.results.plots import accuracy as accuracy_plots
from fedsim.results.plots import compared, drawing
from fedsim.results.plots import gallery as plots
from fedsim.results.plots import metrics as metric_plots
from fedsim.results.plots import prototypes as prototype_plots
from fedsim.results.plots import timing as timing_plots
from fedsim.results.plots import traffic as traffic_plots
from fedsim.results.plots.data import partition_counts

ALL = {plot.name for plot in plots.PLOTS}
NEED_MORE = {"generated_images", "norms"}
"""Pictures of what not every run has."""


@pytest.fixture
def path(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def run(path):
    return load(path)


def words(svg):
    """matplotlib notes every text beside its glyphs."""
    return set(re.findall(r"<!-- (.*?) -->", svg.read_text()))


# ------------------------------------------------------------------------------------------- numbers behind them


def test_bytes_until_an_accuracy_was_measured(run):
    """Round 0: headers down. Round 1: all of round 0, then what comes down. No handshakes."""
    first = 3 * 10
    second = 3 * (10 + 10 + 100) + 3 * (10 + 400)
    third = second + 3 * (10 + 100) + 3 * (10 + 400)
    assert accuracy_plots.bytes_until(run).to_dict() == {0: first, 1: second, 2: third}


def test_what_only_evaluates_others_is_not_the_method_s_cost(path):
    text = (path / "ledger.csv").read_text()
    (path / "ledger.csv").write_text(text.replace("1,2,down,method", "1,2,down,evaluation"))
    before = 3 * (10 + 10 + 100) + 3 * (10 + 400)
    assert accuracy_plots.bytes_until(load(path))[1] == before - 410


def test_client_accuracies(run):
    shares_MR = accuracy_plots.client_accuracies(run)
    assert shares_MR.index.tolist() == [0, 1, 2]
    assert shares_MR.columns.tolist() == [1, 2]  # nobody was tested in round 0
    np.testing.assert_allclose(shares_MR, [[1 / 4, 3 / 4], [2 / 4, 1], [1 / 5, 2 / 5]])


def test_payloads_are_sorted_by_meaning_then_size(run):
    sums = traffic_plots.by_payload(run, "wire_bytes")
    assert sums.to_dict("index") == {
        "prototypes": {"up": 600, "down": 2400},
        "handshake": {"up": 150, "down": 150},
        "header": {"up": 90, "down": 90},
    }
    assert sums.index.tolist() == ["prototypes", "handshake", "header"]


def test_the_parts_of_a_round_add_up_to_its_length(run):
    parts = timing_plots.seconds(run)
    assert parts.iloc[0].to_dict() == {
        "train": 1.0,
        "evaluate": 0.25,
        "other": 0.25,  # receive and upload
        "wire": 0.5,  # of a round trip of 2 s
        "wait": 2.5,
        "server": 0.5,
    }
    np.testing.assert_allclose(parts.sum(axis=1), 5.0)
    assert timing_plots.means(run, "round")["train"].to_dict() == {0: 1.0, 1: 1.0, 2: 0.0}


def test_in_one_process_there_is_no_wire(tmp_path):
    parts = timing_plots.seconds(load(make_run(tmp_path / "run", wire=False)))
    assert not parts["wire"].any() and parts["server"].any()
    np.testing.assert_allclose(parts.sum(axis=1), 5.0)


def test_margins_of_clients_and_of_what_they_use(run):
    """A client with one class has no margin; the global ones are multiplied by ten as clients do."""
    assert prototype_plots.margins_by_round(run).loc[1].to_dict() == {
        "client_mean": 2.0,
        "client_max": 4.0,
        "global_mean": 20.0,
        "global_max": 30.0,
    }


def test_the_best_client_of_each_class():
    margins_N, classes_N = np.array([1, np.nan, 5, 2.0]), np.array([0, 1, 0, 3])
    best_C = prototype_plots.best_client_margins(margins_N, classes_N, 4)
    np.testing.assert_array_equal(best_C, [5, np.nan, np.nan, 2])


@pytest.mark.parametrize("embed", [prototype_plots.pca, prototype_plots.t_sne])
def test_maps_keep_groups_together(embed):
    draw = np.random.default_rng(0)
    centres = np.repeat(20 * np.eye(3, 8), 10, axis=0)
    points_N2 = embed((centres + draw.normal(size=(30, 8))).astype(np.float32))
    distances_NN = np.linalg.norm(points_N2[:, None] - points_N2, axis=2) + 1e9 * np.eye(30)
    assert points_N2.shape == (30, 2)
    assert (distances_NN.argmin(axis=1) // 10 == np.arange(30) // 10).all()


@pytest.mark.parametrize("num", [3, 4])
def test_maps_of_a_few_points(num):
    vectors_NK = np.arange(num, dtype=np.float32)[:, None]
    for embed in (prototype_plots.pca, prototype_plots.t_sne):
        assert np.isfinite(embed(vectors_NK)).all()


def test_of_too_many_prototypes_those_of_some_clients_are_shown():
    clients_N = np.repeat(np.arange(50), 9)
    shown = prototype_plots._some_clients(clients_N, 100)
    picked = np.unique(clients_N[shown])
    assert 80 < shown.sum() <= 100 and all((clients_N[shown] == client).sum() == 9 for client in picked)
    assert picked[0] == 0 and picked[-1] == 49
    assert prototype_plots._some_clients(clients_N, 450).all()


def test_numbers_of_one_quantity_share_a_panel(run):
    panels = metric_plots.panels(run)
    assert {name: list(lines) for name, lines in panels.items()} == {
        "train_loss": [""],
        "server_loss": ["first", ""],  # margins have a picture of their own
    }
    assert panels["server_loss"][""].to_dict() == {0: 3.0, 1: 2.0}


def add_columns(path, **columns):
    """To the metrics.csv of a run of three rounds."""
    heading, *lines = (path / "metrics.csv").read_text().splitlines()
    fields = [",".join(values) for values in zip(*columns.values(), strict=True)]
    lines = [f"{line},{further}" for line, further in zip(lines, fields, strict=True)]
    (path / "metrics.csv").write_text("\n".join([f"{heading},{','.join(columns)}", *lines]) + "\n")


def test_each_number_is_drawn_once(path):
    """An accuracy with the accuracies, known or not; any other in a panel."""
    shares = ("0.5", "0.25", "0.75")
    add_columns(path, trained_accuracy=shares, logit_accuracy=shares, entropy=shares)
    run = load(path)
    with drawing.style():
        accuracies, panels = (
            words(drawing.save(draw(run), path / name)[1])
            for draw, name in ((accuracy_plots.draw_by_round, "a"), (metric_plots.draw_metrics, "b"))
        )
    assert {"before distillation 75.0 %", "by logits 75.0 %"} <= accuracies
    assert set(metric_plots.panels(run)) == {"train_loss", "server_loss", "entropy"}
    assert "entropy" in panels and not {"trained accuracy", "logit accuracy"} & panels


def test_lengths_of_features_and_prototypes_share_a_picture(path):
    shortest, longest = ("1", "2", "3"), ("5", "6", "9")
    add_columns(path, feature_norm=("", "1.5", "2.5"), prototype_norm=("2", "3", "4"))
    add_columns(path, prototype_norm_min=shortest, prototype_norm_max=longest)
    run = load(path)
    with drawing.style():
        shown = words(drawing.save(prototype_plots.draw_norms(run), path / "norms")[1])
    assert {"features", "prototypes", "length"} <= shown
    assert not {name for name in metric_plots.panels(run) if "norm" in name}, "drawn once"


def test_runs_are_compared_by_logits_where_one_has_both_read_outs(path, tmp_path):
    other = make_run(tmp_path / "other", method="local")
    assert compared.compare_by_logits(collect([path, other])) is None
    add_columns(path, logit_accuracy=("0.5", "0.25", "0.75"))
    with drawing.style():
        figure = compared.compare_by_logits(collect([path, other]))
        shown = words(drawing.save(figure, path / "logits")[1])
    last = 100 * load(other).series("accuracy").iloc[-1]
    assert {"FedProto 75.0", f"Local {last:.1f}"} <= shown, "of one without prototypes, its accuracy"


def test_numbers_that_are_not_finite_are_gaps(path, tmp_path):
    gaps = ("nan", "0.5", "inf")
    add_columns(path, server_accuracy=gaps, some_loss=gaps, nothing=("inf", "-inf", "nan"), huge=("1e300", "", ""))
    text = (path / "metrics.csv").read_text()
    assert ",2.0,4.0" in text
    (path / "metrics.csv").write_text(text.replace(",2.0,4.0", ",inf,4.0", 1))  # the training loss of round 0
    run = load(path)
    drawn = {picture.plot.name: words(picture.svg) for picture in plots.draw(plots.PLOTS, run, tmp_path / "plots")}
    assert "server 50.0 %" in drawn["accuracy_by_round"]
    assert set(metric_plots.panels(run)) == {"train_loss", "server_loss", "some_loss", "huge"}
    assert metric_plots.panels(run)["some_loss"][""].to_dict() == {1: 0.5}
    assert metric_plots.panels(run)["train_loss"][""].to_dict() == {1: 1.0}


def test_the_partition_as_a_matrix(run):
    assert partition_counts(run).tolist() == [[8, 5, 0], [0, 13, 0], [6, 6, 5]]


# ------------------------------------------------------------------------------------------------ the pictures


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    path = make_run(folder / "run")
    return {picture.plot.name: picture for picture in plots.draw(plots.PLOTS, load(path), path / "plots")}


def test_every_picture_that_has_data_is_drawn(drawn):
    assert set(drawn) == ALL - NEED_MORE


@pytest.mark.parametrize("name", sorted(ALL - NEED_MORE))
def test_a_picture_is_a_png_and_an_svg_with_something_on_it(drawn, name):
    picture = drawn[name]
    assert (picture.png.name, picture.svg.name) == (f"{name}.png", f"{name}.svg")
    with Image.open(picture.png) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
        num_pixels = image.width * image.height
    assert num_pixels > 100_000 and len(colours) > 20
    white = next(number for number, colour in colours if colour == (255, 255, 255))
    assert 0.05 < white / num_pixels < 0.995
    assert len(words(picture.svg)) > 3


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("accuracy_by_round", {"all samples 69.2 %", "mean client 71.7 %"}),
        ("accuracy_of_clients", {"75", "100", "40"}),
        ("traffic", {"prototypes", "up 600 B (71.4 %)", "down 2.40 kB (90.9 %)"}),
        ("margins", {"clients, mean", "clients, largest", "global, mean", "global, largest"}),
        ("prototype_map", {"PCA, round 1", "t-SNE, round 1", "0", "1", "2"}),
        ("server_margins", {"margin ξ of the class", "0", "1", "2"}),
        ("public_map", {"round 0", "round 1", "0", "1", "2"}),
        ("metrics", {"train loss", "server loss", "first", "end"}),
    ],
)
def test_what_is_written_in_a_picture(drawn, name, texts):
    assert texts <= words(drawn[name].svg)


def test_the_kernel_s_word_is_in_the_picture_of_the_traffic(drawn):
    sentence = "the kernel agrees to the byte on 3 of 3 connections, in both directions"
    assert sentence in words(drawn["traffic"].svg)


@pytest.mark.parametrize("name", ["prototype_map", "traffic"])
def test_a_picture_is_the_same_bytes_every_time(drawn, run, tmp_path, name):
    plot = next(plot for plot in plots.PLOTS if plot.name == name)
    with drawing.style():
        again = drawing.save(plot(run), tmp_path / name)
    assert [path.read_bytes() for path in again] == [drawn[name].png.read_bytes(), drawn[name].svg.read_bytes()]


def test_without_data_nothing_is_drawn(tmp_path, run):
    folder = RunFolder.create(tmp_path / "bare", run.experiment)
    row = dict.fromkeys(("accuracy", "pooled_accuracy", "client_mean_accuracy", "train_loss"))
    row |= {"correct": 0, "tested": 0, "clients": 3, "expected": 3, "absent": 0, "lost": 0}
    folder.add_metrics({"round": 0, **row})
    assert plots.draw(plots.PLOTS, load(folder.path), tmp_path / "plots") == []
    assert not (tmp_path / "plots").exists()
