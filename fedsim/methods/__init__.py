"""The methods, one module each. The module's name is the method's name on the command line.

A method module has a docstring (paper, equations, what travels, every deliberate deviation), a `Config`,
a function `contract(config)`, and the classes `Client` and `Server`. It may state `DEFAULTS` for other sections of
the experiment (`{"data": {"public_samples": 2500}}`). Adding a method edits no other file.
"""

import importlib
import pkgutil
from types import ModuleType

from fedsim.errors import UnknownName


def names() -> list[str]:
    """All methods, found by module name without importing any of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def canonical(name: str) -> str:
    """`lg-fedavg` and `LG_FedAvg` are `lg_fedavg`; an unknown name is refused with the nearest ones."""
    wanted = name.lower().replace("-", "_")
    if wanted not in names():
        raise UnknownName("method", name, names())
    return wanted


def load(name: str) -> ModuleType:
    """Import a method module."""
    return importlib.import_module(f"{__name__}.{canonical(name)}")
