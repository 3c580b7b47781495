"""The smaller scales and the estimate of what runs cost."""

from dataclasses import replace

import msgspec
import pytest

from fedsim import presets
from fedsim.config import build
from fedsim.data import Federation, sources
from fedsim.data.sources.known import sizes_of
from fedsim.models import groups, sensors, text
from fedsim.presets import cost
from fedsim.presets.scales import LAPTOP, LIGHT, QUICK, SCALES


def mflops(model: str) -> float:
    return groups.MODELS[model].training_mflops


def cell(name: str, *words: str):
    (found,) = presets.select(name, presets.load(name).cells(), words)
    return found.experiment()


def test_quick_keeps_what_is_compared_and_shrinks_the_rest():
    full = cell("fedtgp-table10", "fedtgp", "pathological")
    small = QUICK.shrink(full)
    assert (small.run.rounds, small.run.clients, small.model.group) == (10, 20, "HtCNN8")
    assert small.data.samples_per_class == 200  # 100 samples × 20 clients over 10 classes
    assert (small.data.partition, small.data.classes_per_client) == ("pathological", 2)
    assert small.method == full.method


def test_quick_has_fewer_rounds_of_more_epochs():
    rounds = {e: QUICK.shrink(cell("fedtgp-table3", "fedtgp", f"E={e}")).run.rounds for e in (5, 10, 20)}
    assert rounds == {5: 5, 10: 5, 20: 5}
    assert QUICK.shrink(cell("protonorm-table1", "fedproto", "practical", "cifar10")).train.batch_size == 10


def test_quick_never_asks_for_more_samples_than_a_class_has():
    small = QUICK.shrink(cell("fedtgp-table1", "fedtgp", "practical", "flowers102"))
    assert small.data.samples_per_class == 20  # ⌈2000 / 102⌉
    many = QUICK.shrink(build([{"run": {"clients": 100}, "data": {"dataset": "flowers102"}}]))
    assert many.data.samples_per_class == 40  # its smallest class
    few = QUICK.shrink(cell("fedktl-table9", "our ktl", "2-shot"))
    assert few.data.samples_per_class == 3
    assert QUICK.shrink(build([{"data": {"dataset": "own/data.npz"}}])).data.samples_per_class == 0


def test_quick_has_as_many_models_and_the_same_heads():
    for group, light in LIGHT.items():
        ours, theirs = groups.entries(light), groups.entries(group)
        assert len(ours) == len(theirs)
        if "HtC4" in group:
            assert [entry.head_hidden for entry in ours] == [entry.head_hidden for entry in theirs]
        for entry in ours:
            assert mflops(entry.model) <= 1000


def test_quick_needs_no_published_generator_and_no_large_server_model():
    assert QUICK.shrink(cell("fedktl-table7", "-LM")).method["generator"] == "tiny"
    small = QUICK.shrink(cell("fedprotokd-table1", "fedprotokd", "alpha=0.1", "cifar10"))
    assert (small.method["server_model"], small.data.public_samples) == ("ResNet8", 200)


@pytest.mark.parametrize("name", presets.names())
def test_every_smaller_experiment_is_valid(name):
    for item in presets.load(name).cells():
        for scale in SCALES.values():
            small = scale.shrink(item.experiment())
            assert build([msgspec.to_builtins(small)]) == small
            assert 0 < cost.operations(small) <= cost.operations(item.experiment())


def test_laptop_keeps_partitions_and_batches_and_resizes_images():
    full = cell("fedtgp-table1", "fedtgp", "practical", "flowers102")
    small = LAPTOP.shrink(full)
    assert (small.run.rounds, small.run.clients, small.model.group) == (60, 20, "CNN2,CNN4,CNN6,CNN8")
    assert (small.data.image_size, small.data.samples_per_class) == (32, 0), "all 8,189 flowers"
    assert (small.train, small.method) == (full.train, full.method)
    assert (small.data.beta, small.data.min_samples) == (full.data.beta, full.data.min_samples)
    cifar = LAPTOP.shrink(cell("fedtgp-table1", "fedtgp", "practical", "cifar100"))
    assert (cifar.data.image_size, cifar.data.samples_per_class) == (0, 200)
    assert LAPTOP.shrink(cell("fedprotokd-table1", "fedpkd", "alpha=0.1", "cifar10")).run.rounds == 20
    assert "20,000 samples in all" in LAPTOP.rule and "γ times 0.1" in LAPTOP.rule


def test_laptop_shortens_what_prototypes_are_scaled_to():
    small = LAPTOP.shrink(cell("protonorm-table1", "protonorm", "practical", "flowers-102"))
    assert small.method["prototype_scale"] == 20 and small.train.batch_size == 32


def test_the_server_of_fedtgp_has_its_cost():
    """Flowers102: 100 epochs over 0.4 · 20 · 102 prototypes in batches of 10, twelve C·K·K operations each."""
    fedtgp, fedproto = (cell("fedtgp-table1", name, "practical", "flowers102") for name in ("fedtgp", "fedproto"))
    extra = 1000 * 100 * 0.4 * 20 * 102 / 10 * 12 * 102 * 512**2
    assert cost.operations(fedtgp) - cost.operations(fedproto) == pytest.approx(extra)


def test_every_model_and_data_set_that_has_a_name_has_a_cost():
    """Of models of images: what those of texts, signals and tables cost was not measured."""
    of_tables = {name for name in groups.MODELS if name.startswith("MLP-")}
    images = groups.MODELS.keys() - text.MODELS.keys() - sensors.MODELS.keys() - of_tables
    everything = build([{"data": {"dataset": "digits"}, "model": {"group": ",".join(sorted(images))}}])
    assert cost.operations(everything) > 0
    assert all(sizes_of(name) for name in sources.names())


@pytest.mark.parametrize("name", sorted(sources.SYNTHETIC))
def test_sizes_are_those_of_the_data(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    federation = Federation(build([{"data": {"dataset": name}}]))
    counts_C = sum(federation.class_counts()).sum(axis=0)
    sizes = sizes_of(name)
    assert (sizes.input_shape, sizes.num_classes) == (federation.input_shape, federation.num_classes)
    assert (sizes.num_samples, sizes.smallest_class) == (counts_C.sum(), counts_C.min())


def test_operations_are_samples_times_the_cost_of_the_models():
    experiment = build(
        [
            {
                "run": {"clients": 4, "rounds": 10, "participation": 0.5},
                "data": {"dataset": "fmnist", "samples_per_class": 100},
                "model": {"group": "CNN1,CNN3"},
                "train": {"local_epochs": 2},
                "method": {"name": "fedproto"},
            }
        ]
    )
    # 1000 samples: 750 for training, of which half the clients hold half on average, and 250 for testing.
    trained, passed = 750 * 2 * 0.5, 750 * 0.5 + 250
    each = (mflops("CNN1") + mflops("CNN3")) / 2 * (28 * 28) / (32 * 32)
    assert cost.operations(experiment) == pytest.approx(10 * (trained + passed / 4) * each * 1e6)
    assert cost.seconds([experiment, experiment], speed=1e9) == pytest.approx(
        2 * cost.operations(experiment) / 1e9
    )


def test_what_cannot_be_estimated_is_not(monkeypatch):
    own = build([{"data": {"dataset": "own/data.npz"}}])
    assert cost.operations(own) is None and cost.seconds([own], 1e9) is None
    monkeypatch.setitem(groups.MODELS, "CNN3", replace(groups.MODELS["CNN3"], training_mflops=None))
    assert cost.operations(build([{"model": {"group": "CNN2"}}])) is not None
    assert cost.operations(build([{"model": {"group": "CNN2,CNN3"}}])) is None
    assert cost.duration(None) == "?"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.2, "1 s"), (89, "89 s"), (240, "4 min"), (3 * 3600, "3 h")),
        *((12 * 86400, "12 days"), (2e7, "8 months"), (1e9, "32 years")),
    ],
)
def test_durations(seconds, text):
    assert cost.duration(seconds) == text


def test_a_machine_computes_something():
    assert 0 < cost.machine_speed() < float("inf")
