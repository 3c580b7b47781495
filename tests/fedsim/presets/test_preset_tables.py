"""The papers' tables: every cell is a valid experiment, every printed number is there and in its place."""

import pytest

from fedsim import presets
from fedsim.errors import UnknownName, UserError
from fedsim.presets.tables import Printed, parse_printed, plain, preset_layers

COUNTS = {
    # preset: numbers that the paper prints, dashes that it prints
    "fedtgp-claim1": (3 * 3, 0),
    "fedtgp-table1": (7 * 8, 0),
    "fedtgp-table2": (5 * 8 + 2 * 6, 2 * 2),
    "fedtgp-table3": (7 * 3, 0),
    "fedtgp-table4": (7 * 3, 0),
    "fedtgp-table6": (3 * 5, 0),
    "fedtgp-table7": (4 + 4, 0),
    "fedtgp-table10": (7 * 2, 0),
    "fedtgp-table11": (7 * 3, 0),
    "fedktl-table1": (8 * 8, 0),
    "fedktl-table2": (5 * 8 + 3 * 7, 3),
    "fedktl-table3": (8 * 3, 0),
    "fedktl-table4": (8 * 3, 0),
    "fedktl-table5": (8, 0),
    "fedktl-table6": (4 * 3, 0),
    "fedktl-table7": (7, 0),
    "fedktl-table8": (2, 0),
    "fedktl-table9": (2 * 3, 0),
    "fedktl-table10": (4, 0),
    "fedktl-table11": (3, 0),
    "fedktl-table12": (6, 0),
    "fedktl-table13": (5, 0),
    "fedktl-table14": (4, 0),
    "fedktl-table15": (5, 0),
    "fedktl-table16": (5, 0),
    "fedktl-table17": (2 * 4, 0),
    "fedprotokd-table1": (4 * 8, 0),
    "fedprotokd-table2": (6 * 8, 0),
    "fedprotokd-table3": (4 * 8, 0),
    "fedprotokd-table4": (7 * 8, 0),
    "fedprotokd-table5": (2 * 6 + 3 * 6, 0),
    "fedprotokd-table6": (3 * 6 + 5 * 6, 0),
    "fedprotokd-table7": (3 * 6, 0),
    "fedprotokd-table8": (4 * 3, 0),
    "fedprotokd-table9": (4 * 3, 0),
    "protonorm-table1": (7 * 7, 0),
    "protonorm-table2": (7 * 7, 0),
    "protonorm-table3": (3 * 6, 0),
    "protonorm-table4": (3 * 6 - 1, 1),
    "protonorm-table5": (2 * 2 * 5 - 4, 4),
}

WITHOUT_RUNS = {
    *("fedtgp-table5", "fedtgp-table8", "fedtgp-table9", "fedtgp-table12", "protonorm-table6", "protonorm-table7"),
    *(f"fedtgp-figure{number}" for number in (7, 8, 9, 10, 11)),
    *(f"fedktl-figure{number}" for number in (10, 11, 12)),
    *(f"protonorm-figure{number}" for number in (1, 7, 8)),
}


def only(name: str, *words: str) -> presets.Cell:
    (cell,) = presets.select(name, presets.load(name).cells(), words)
    return cell


@pytest.mark.parametrize("name", presets.names())
def test_every_cell_is_a_valid_experiment(name):
    for cell in presets.load(name).cells():
        assert cell.experiment().method["name"] == cell.experiment().method_name
        assert cell.metric in ("accuracy", "server_accuracy")


def test_all_printed_numbers_are_there():
    counted = {}
    for name in presets.names():
        cells = presets.load(name).cells()
        if any(cell.printed or cell.dash for cell in cells):
            counted[name] = (sum(cell.printed is not None for cell in cells), sum(bool(c.dash) for c in cells))
            assert name in OURS or all(cell.printed or cell.dash for cell in cells)
    assert counted == COUNTS


def test_tables_without_runs_name_a_command():
    without = {name for name in presets.names() if not presets.load(name).cells()}
    assert without == WITHOUT_RUNS
    assert all(presets.load(name).see for name in without)


OURS = {"fedtgp-claim1"}
"""Comparisons that no paper makes, with its numbers where it has them."""

# Read off the papers by eye, at least one of each table, with a preference for corners.
PRINTED = [
    ("fedtgp-table1", "LG-FedAvg,pathological,cifar10", "86.82±0.26"),
    ("fedtgp-table1", "FedTGP,practical,tiny-imagenet", "27.37±0.12"),
    ("fedtgp-table1", "FedGen,pathological,Tiny-ImageNet", "29.80±1.11"),
    ("fedtgp-table1", "FedProto,practical,cifar10", "82.07±1.64"),
    ("fedtgp-table2", "FedProto,HtFE8-HtC4", "25.57±0.72"),
    ("fedtgp-table2", "FedTGP,100 clients", "41.57±0.30"),
    ("fedtgp-table3", "FML,E=20", "36.02±0.22"),
    ("fedtgp-table4", "FedProto,K=64", "30.71±0.65"),
    ("fedtgp-table6", "w/o F,flowers102", "49.39"),
    ("fedtgp-table7", "tau=10", "44.81"),
    ("fedtgp-table7", "S=1000", "47.01"),
    ("fedtgp-table10", "FedKD,pathological", "99.37±0.06"),
    ("fedtgp-table10", "FedTGP,practical", "97.58±0.05"),
    ("fedtgp-table11", "FedTGP,ResNet34", "46.42±0.95"),
    ("fedktl-table1", "FedGH,practical,flowers102", "46.13±0.17"),
    ("fedktl-table1", "FedKTL,pathological,cifar100", "62.01±0.28"),
    ("fedktl-table2", "FedKTL,HtM10", "45.84±0.15"),
    ("fedktl-table2", "FedKD,200 clients", "31.82±0.50"),
    ("fedktl-table3", "FedGH,E=10", "39.87±0.27"),
    ("fedktl-table4", "FedKTL,K=256", "47.81±0.43"),
    ("fedktl-table5", "FedKTL", "46.94±0.23"),
    ("fedktl-table6", "FFHQ-U,lambda=0.05", "27.28±0.23"),
    ("fedktl-table7", "-MMD", "20.14"),
    ("fedktl-table7", "+CS", "24.13"),
    ("fedktl-table8", "Stable Diffusion", "87.71"),
    ("fedktl-table9", "Client Data,2-shot", "4.44±1.66"),
    ("fedktl-table10", "NC + NG", "50.51"),
    ("fedktl-table11", "K=500", "54.42"),
    ("fedktl-table12", "mu=100", "53.99"),
    ("fedktl-table13", "lambda=100", "48.45"),
    ("fedktl-table14", "eta_S=0.0001", "49.84"),
    ("fedktl-table15", "E_S=500", "54.35"),
    ("fedktl-table16", "B_S=10", "54.97"),
    ("fedktl-table17", "*LA,cifar100", "41.63"),
    ("fedprotokd-table1", "FedProtoKD,alpha=0.3,cifar10", "71.56"),
    ("fedprotokd-table1", "Fed2PKD,k=3/20,cifar100", "15.70"),
    ("fedprotokd-table2", "FedProtoKD-zeta,k=5/40,cifar100", "61.02"),
    ("fedprotokd-table3", "FedAvg,k=3/20,cifar10", "42.40"),
    ("fedprotokd-table4", "FedProx,alpha=0.1,cifar100", "60.70"),
    ("fedprotokd-table5", "server,FedProtoKD,epochs=500", "63.43"),
    ("fedprotokd-table5", "client,FedTGP,zeta=10", "86.36"),
    ("fedprotokd-table6", "client,FedPKD,N=50", "63.56"),
    ("fedprotokd-table7", "FedPKD,10/15,server", "59.10"),
    ("fedprotokd-table8", "alpha=0.1,cifar100,phi=40%", "29.72"),
    ("fedprotokd-table9", "k=3/20,cifar10,W/O I", "58.15"),
    ("protonorm-table1", "ProtoNorm,pathological,Tiny ImageNet", "38.75±0.26"),
    ("protonorm-table1", "FedDistill,practical,Flowers-102", "49.28±0.12"),
    ("protonorm-table2", "FedDistill,d=1024", "38.78±1.11"),
    ("protonorm-table2", "FedProto,M=100", "23.98±0.34"),
    ("protonorm-table3", "FedNH,4-layer CNN,Flowers-102", "36.61±1.29"),
    ("protonorm-table4", "Tiny ImageNet,gamma=400", "31.20"),
    ("protonorm-table5", "FedTGP,CIFAR-100,gamma=1.2", "47.33"),
]


@pytest.mark.parametrize(("name", "words", "text"), PRINTED)
def test_printed_numbers_are_in_their_place(name, words, text):
    assert only(name, *words.split(",")).printed == parse_printed(text)


def test_numbers_that_two_tables_share_agree():
    """FedKTL took six rows of FedTGP's tables over, and later tables repeat earlier ones."""
    for table in ("table1", "table3", "table4"):
        ours, theirs = ({tuple(c.labels.values()): c.printed for c in presets.load(f"{paper}-{table}").cells()}
                        for paper in ("fedtgp", "fedktl"))  # fmt: skip
        common = ours.keys() & theirs.keys()
        assert len(common) == 6 * len({labels[1:] for labels in common})
        assert all(ours[labels] == theirs[labels] for labels in common)
    for dataset in ("cifar100", "flowers102", "tiny-imagenet"):
        for method in ("FedProto", "FedTGP"):
            repeated = only("fedtgp-table6", dataset, method).printed.mean
            assert repeated == only("fedtgp-table1", dataset, method, "practical").printed.mean
    for method in ("FedGH", "FedKTL"):
        assert (
            only("fedktl-table5", method).printed == only("fedktl-table1", method, "practical", "cifar100").printed
        )
    assert (
        only("fedprotokd-table6", "server", "FedProtoKD", "N=10").printed
        == only("fedprotokd-table1", "FedProtoKD", "alpha=0.3", "CIFAR-10").printed
    )


def test_cells_say_what_the_papers_say_of_their_settings():
    experiment = only("fedtgp-table1", "tiny-imagenet", "pathological", "fedtgp").experiment()
    assert (experiment.run.clients, experiment.run.rounds, experiment.train.batch_size) == (20, 1000, 10)
    assert (experiment.data.dataset, experiment.data.partition) == ("tiny_imagenet", "pathological")
    assert experiment.data.classes_per_client == 20
    assert only("fedtgp-table2", "fedkd", "50clients").experiment().run.participation == 0.5
    assert only("fedtgp-table6", "scl", "cifar100").experiment().method["margin"] == "none"
    # γ is 100, 200, 200 and 400, and table 4 varies it on all of them.
    scales = {
        cell.labels["dataset"]: cell.experiment().method["prototype_scale"]
        for cell in presets.select("x", presets.load("protonorm-table1").cells(), ["protonorm", "practical"])
    }
    assert scales == {"CIFAR-10": 100, "CIFAR-100": 200, "Flowers-102": 200, "Tiny ImageNet": 400}
    assert only("protonorm-table4", "tinyimagenet", "gamma=600").experiment().method["prototype_scale"] == 600
    # 3 of 10 and 20 of 100 classes.
    for dataset, classes in (("cifar10", 3), ("cifar100", 20)):
        data = only("fedprotokd-table1", "fedpkd", "k=3/20", dataset).experiment().data
        assert (data.partition, data.classes_per_client, data.public_samples) == ("pathological", classes, 2500)
    # What three tables print as one number is one experiment.
    for method in ("fedtgp", "fedprotokd"):
        published = only("fedprotokd-table2", method, "alpha=0.1", "cifar10").experiment()
        for option in ("zeta=50", "epochs=100"):
            assert only("fedprotokd-table5", "client", method, option).experiment() == published
    assert published.method["evaluate_after"] == "training"
    options = only("fedprotokd-table5", "client", "fedtgp", "zeta=10").experiment().method
    assert (options["tau"], options["server_epochs"]) == (10, 100)
    options = only("fedprotokd-table5", "client", "fedprotokd", "epochs=500").experiment().method
    assert (options["zeta"], options["prototype_epochs"]) == (50, 500)


def test_metrics_are_those_of_the_server_or_of_the_clients():
    assert only("fedprotokd-table7", "fedpkd", "5/10", "server").metric == "server_accuracy"
    assert only("fedprotokd-table7", "fedpkd", "5/10", "client").metric == "accuracy"
    assert {cell.metric for cell in presets.load("fedprotokd-table1").cells()} == {"server_accuracy"}


def test_a_dash_is_not_run_where_a_method_is_not_applicable_and_run_where_it_failed():
    assert not only("fedtgp-table2", "lg-fedavg", "res34-htc4").is_run
    failed = only("protonorm-table4", "tiny imagenet", "gamma=1000")
    assert failed.is_run and failed.printed is None and failed.dash == "failed to converge"


def test_typos_are_refused_with_the_nearest_names():
    with pytest.raises(UnknownName, match="no preset 'fedtgp-tabel1'; did you mean fedtgp-table1"):
        presets.load("fedtgp-tabel1")
    cells = presets.load("fedtgp-table1").cells()
    with pytest.raises(UnknownName, match="no label in fedtgp-table1 'ciafr10'; did you mean cifar10"):
        presets.select("fedtgp-table1", cells, ["Ciafr10"])
    with pytest.raises(UserError, match="has no cell with all of pathological, Flowers-102"):
        presets.select(
            "protonorm-table1", presets.load("protonorm-table1").cells(), ["pathological", "Flowers-102"]
        )


def test_words_of_one_axis_are_alternatives_and_those_of_several_all_count():
    cells = presets.load("fedtgp-table1").cells()
    chosen = presets.select("fedtgp-table1", cells, ["cifar10", "CIFAR-100", "practical"])
    assert len(chosen) == 7 * 2
    assert {cell.labels["dataset"] for cell in chosen} == {"Cifar10", "Cifar100"}
    assert presets.select("fedtgp-table1", cells, []) == cells


def test_a_preset_is_a_layer_of_the_config():
    base = preset_layers("fedtgp-table10")
    assert {"fmnist"} == {layer["data"]["dataset"] for layer in base[1:]}
    (*_, method, setting) = preset_layers("fedtgp-table10/practical,fedtgp")
    assert method["method"]["name"] == "fedtgp" and setting == {"data": {"partition": "dirichlet"}}
    with pytest.raises(UserError, match="is 7 cells, such as LG-FedAvg, practical and FedGen, practical; add"):
        preset_layers("fedtgp-table10/practical")


def test_every_label_can_be_typed():
    """Commas separate labels on the command line, and two labels of an axis must differ in more than case."""
    for name in presets.names():
        labels = {(axis, label) for cell in presets.load(name).cells() for axis, label in cell.labels.items()}
        assert not [label for _, label in labels if "," in label or not plain(label).isascii()]
        assert len({(axis, plain(label)) for axis, label in labels}) == len(labels), name


def test_names_are_in_the_order_of_the_papers():
    names = presets.names()
    assert names.index("fedtgp-table2") < names.index("fedtgp-table10")
    assert len(names) == len(set(names))


def test_numbers_are_shown_as_printed():
    assert str(Printed(97.3, 0.04)) == "97.30 ± 0.04"
    assert str(Printed(47.01)) == "47.01"
