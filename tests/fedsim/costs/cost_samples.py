"""Costs as they might have been measured, in numbers small enough to work with by hand."""

from fedsim import methods
from fedsim.costs.formula import formulae
from fedsim.costs.measured import Flow, MethodCost, SettingCosts, both_ways
from fedsim.costs.printed import Printed


def flow(way="up", **changes):
    values = {
        "way": way,
        "formula": "K*ΣC" if way == "up" else "M*K*C",
        "formula_elements": 24,
        "elements": 24,
        "payload_bytes": 100,
        "message_bytes": 150,
        "wire_bytes": 160,
        "kernel_bytes": 160,
        "largest_client_bytes": 90,
    }
    return Flow(**{**values, **changes})


def audit(**changes):
    return {"connections": 2, "agree": 2, "checked": 2, "differences": [], "cut": [], **changes}


def formulae_of(name):
    module = methods.load(name)
    return formulae(module.contract(module.Config()))


def method(name="fedtgp", title="FedTGP", up=None, down=None, others=(), **changes):
    up = up or flow("up")
    down = down or flow("down", payload_bytes=200, wire_bytes=300, kernel_bytes=300)
    values = {
        "name": name,
        "title": title,
        "formulae": formulae_of("fedtgp"),
        "letters": {"K": 4, "ΣC": 6, "M": 2, "C": 3},
        "flows": (up, down, both_ways(up, down), *others),
        "audit": audit(),
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
