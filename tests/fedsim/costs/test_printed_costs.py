"""The papers' cost tables: which experiment each number belongs to, and what our formulae give for it.

Worked out by hand for CIFAR-100 (C = 100, 3 × 32 × 32), 20 clients, K = 512:
- a head has 512 · 100 + 100 = 51,300 weights;
- FedGen's generator (132 · 512 + 512) + 2 · 512 + (512 · 512 + 512) = 331,776, from 32 numbers and a label;
- the smallest model of HtFE8, the CNN, (3 · 32 · 25 + 32) + (32 · 64 · 25 + 64) + (1600 · 512 + 512) + 51,300
  = 924,708.
"""

import msgspec
import numpy as np
import pytest

from fedsim import config, methods
from fedsim.costs.formula import formulae, letters_of
from fedsim.costs.printed import Printed, printed_costs, printed_formulae
from fedsim.data import ClientData, Dataset, Subset
from fedsim.method import Setting, Task

NUM_CLIENTS, NUM_CLASSES = 20, 100
CLASSES_HELD = [30 + client for client in range(NUM_CLIENTS)]  # 30 + 31 + ... + 49 = 790


class Commons:
    """In the place of a Federation: client i holds the classes 0 to 29 + i, and one sample of each."""

    num_classes, input_shape = NUM_CLASSES, (3, 32, 32)

    def client(self, client):
        labels = np.arange(CLASSES_HELD[client])
        dataset = Dataset("labels", np.zeros((len(labels), 1, 1, 3), np.uint8), labels, NUM_CLASSES, len(labels))
        everything = Subset(dataset, labels)
        return ClientData(train=everything, test=everything)


def experiment(name="fedproto", /, **sections):
    layer = {
        "run": {"clients": NUM_CLIENTS},
        "data": {"dataset": "cifar100"},
        "model": {"group": "HtFE8"},
        "train": {"batch_size": 1},
        "method": {"name": name},
    }
    return config.build([layer, sections])


def elements(method, **options):
    """(up, down) of one round, by the formulae of the method's contract."""
    chosen = experiment(method, method={"name": method, **options})
    task = Task(NUM_CLIENTS, NUM_CLASSES, 512, (3, 32, 32))
    setting = Setting(chosen, chosen.method_config(), task, Commons())
    cost, letters = formulae(methods.load(method).contract(setting.config)), letters_of(setting)
    return cost["up"].evaluate(letters), cost["down"].evaluate(letters)


@pytest.mark.parametrize(
    ("method", "options", "up", "down"),
    [
        ("lg_fedavg", {}, 20 * 51_300, 20 * 51_300),  # 2.05 M together
        ("fedgen", {}, 20 * 51_300, 20 * (51_300 + 331_776)),  # 7.66 M down, 8.69 M together
        ("fedgh", {}, 512 * 790, 20 * 51_300),
        ("fml", {}, 20 * 924_708, 20 * 924_708),  # 36.99 M together
        ("feddistill", {}, 100 * 790, 20 * 100 * 49),  # nobody holds more than 49 classes
        ("fedproto", {}, 512 * 790, 20 * 512 * 49),
        ("fedtgp", {}, 512 * 790, 1_024_000),
        ("fedktl", {"generator": "stylegan.pkl"}, 100 * 790, 7_168_000),  # 20 · 100 · (3 · 32² + 512)
        ("fedktl", {"generator": "stylegan.pkl", "etf_dim": 500}, 500 * 790, 7_168_000),
        ("local", {}, 0, 0),
    ],
)
def test_formulae_give_the_numbers_worked_out_by_hand(method, options, up, down):
    assert elements(method, **options) == (up, down)


def test_sums_round_to_what_fedtgp_prints():
    for method in ("lg_fedavg", "fedgen", "fml"):
        printed = printed_costs(experiment(method))["both"]
        assert printed.source == "FedTGP, table 5"
        assert printed.agrees(sum(elements(method))), (method, elements(method))


def test_downloads_round_to_what_fedktl_prints():
    for method, options in (("lg_fedavg", {}), ("fedgen", {}), ("fedktl", {"generator": "stylegan.pkl"})):
        printed = printed_costs(experiment(method))["down"]
        assert printed.source == "FedKTL, table 5"
        assert printed.agrees(elements(method, **options)[1])


def test_numbers_belong_to_their_own_setting_only():
    assert printed_costs(experiment("fedproto")) == {
        "up": Printed("0.46", "FedKTL, table 5"),
        "down": Printed("1.02", "FedKTL, table 5"),
        "both": Printed("1.48", "FedTGP, table 5"),
    }
    for other in (
        {"data": {"dataset": "cifar10"}},
        {"data": {"partition": "iid"}},
        {"data": {"beta": 0.5}},
        {"model": {"group": "HtFE4"}},
        {"model": {"feature_dim": 256}},
        {"run": {"clients": 50}},
    ):
        assert printed_costs(experiment("fedproto", **other)) == {}
    spelled = experiment("fedproto", data={"dataset": "/somewhere/cifar100.npz"}, model={"group": "htfe8"})
    assert printed_costs(spelled)["both"].millions == "1.48"


@pytest.mark.parametrize(("etf_dim", "millions"), [(0, "0.07"), (500, "0.35"), (1000, "0.69")])
def test_fedktls_table_11_depends_on_an_option(etf_dim, millions):
    flowers = {"data": {"dataset": "flowers102"}, "method": {"name": "fedktl", "etf_dim": etf_dim}}
    assert printed_costs(experiment("fedktl", **flowers)) == {"up": Printed(millions, "FedKTL, table 11")}


def test_a_printed_number_agrees_with_all_that_rounds_to_it():
    printed = Printed("18.50", "somewhere")
    assert printed.agrees(18_495_000) and printed.agrees(18_504_999)
    assert not printed.agrees(18_494_160) and not printed.agrees(18_505_000)
    assert printed.difference_percent(18_315_000) == pytest.approx(-1.0)


def test_formulae_of_protonorms_table_7_are_kept_as_printed():
    assert printed_formulae("protonorm") == {"ProtoNorm, table 7": "Σ (K_i + K) × d"}
    assert set(printed_formulae("fedtgp")) == {"FedTGP, table 5", "ProtoNorm, table 7"}
    assert printed_formulae("local") == {}


def test_every_number_is_of_a_method_that_exists():
    from fedsim.costs.printed import _tables

    for table in _tables():
        for way in ("up", "down", "both", "formula"):
            assert set(table.get(way, {})) <= set(methods.names())
        known = msgspec.to_builtins(experiment("fedktl"))
        for path in table.get("when", {}):
            section, key = path.split(".")
            assert key in known[section]
