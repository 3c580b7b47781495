"""Costs as they might have been measured, in numbers small enough to work with by hand."""

from fedsim import methods
from fedsim.costs.formula import formulae
from fedsim.costs.measured import Flow, MethodCost, SettingCosts
from fedsim.costs.printed import Printed


def flow(way="up", **changes):
    values = {
        "way": way,
        "formula": "K*ΣC" if way == "up" else "M*K*C",
        "expected": 24,
        "elements": 24,
        "payload_bytes": 100,
        "message_bytes": 150,
        "wire_bytes": 160,
        "kernel_bytes": 160,
        "largest_client_bytes": 90,
    }
    return Flow(**{**values, **changes})


def formulae_of(name):
    module = methods.load(name)
    return formulae(module.contract(module.Config()))


def method(name="fedtgp", title="FedTGP", up=None, down=None, others=(), **changes):
    values = {
        "name": name,
        "title": title,
        "formulae": formulae_of("fedtgp"),
        "letters": {"K": 4, "ΣC": 6, "M": 2, "C": 3},
        "flows": (
            up or flow("up"),
            down or flow("down", payload_bytes=200, wire_bytes=300, kernel_bytes=300),
            *others,
        ),
        "num_connections": 2,
        "num_agreeing": 2,
        "num_reconciled": 2,
    }
    return MethodCost(**{**values, **changes})


def setting(*methods, **changes):
    values = {
        "dataset": "digits",
        "group": "HtCNN8",
        "num_clients": 2,
        "num_rounds": 1,
        "letters": {"K": 4, "ΣC": 6, "M": 2, "C": 3},
        "methods": methods or (method(),),
    }
    return SettingCosts(**{**values, **changes})


def printed(millions):
    return Printed(millions, "FedKTL, table 5")
