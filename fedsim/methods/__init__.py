"""The methods, one module each. The module's name is the method's name on the command line.

A method module has a docstring (paper, equations, what travels, every deliberate deviation), a `Config`,
a function `contract(config)`, and the classes `Client` and `Server`. It may state `DEFAULTS` for other sections of
the experiment (`{"data": {"public_samples": 2500}}`) and have a function `notes(setting)` of what the user should
know before the start. Adding a method edits no other file.

A method need not lie here: `./my_method.py` is a file, `package.module` a module that Python finds, and installed
packages register theirs in the entry-point group `fedsim.methods`. None is imported before it is asked for.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from fedsim.errors import UnknownName, UserError
from fedsim.own import loading

ENTRY_POINTS = "fedsim.methods"
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def names() -> list[str]:
    """All methods that ship, found by module name without importing any of them."""
    return list(_names_in(tuple(__path__)))


@cache
def _names_in(folders: tuple[str, ...]) -> list[str]:
    """Looked up once: an executor asks for every piece of work."""
    return sorted(module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_"))


@cache
def installed() -> dict[str, str]:
    """Methods of installed packages: name -> module. Nothing is imported."""
    return {plain(found.name): found.value for found in metadata.entry_points(group=ENTRY_POINTS)}


def canonical(name: str) -> str:
    """`lg-fedavg` and `LG_FedAvg` are `lg_fedavg`; own code is named by its place; an unknown name is refused with
    the nearest ones."""
    if is_own(name):
        if label(name) in names():
            raise UserError(
                f"{name} would be called {label(name)}, as a method that comes with fedsim is; rename the file."
            )
        return name
    wanted = plain(name)
    if wanted in names():
        if wanted in installed():
            raise UserError(
                f"{wanted} is a method of fedsim and also one of an installed package ({installed()[wanted]}); "
                f"name the latter by its module, or uninstall it."
            )
        return wanted
    if wanted in installed():
        return wanted
    if (file := Path(f"{name}.py")).is_file():
        raise UserError(f"there is no method {name!r}; to run the file of that name, write ./{file}.")
    raise UnknownName("method", name, [*names(), *installed()])


def is_own(name: str) -> bool:
    """Whether this names a file or a module instead of a method known by its name."""
    return name.endswith(".py") or bool(_MODULE.fullmatch(name))


def place_of(name: str) -> str | None:
    """The file or module in which a method outside fedsim lies; None for those that ship."""
    return name if is_own(name) else installed().get(plain(name))


def label(name: str) -> str:
    """What a method is called in folders, tables and reports: `my_method` for ./my_method.py."""
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]


@cache
def title(name: str) -> str:
    """As papers write it, `FedTGP` for fedtgp: read from the method's file, since its module would load torch."""
    if is_own(name) and not name.endswith(".py"):
        return label(name)
    path = Path(name) if is_own(name) else Path(__file__).with_name(f"{name}.py")
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return label(name)
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["ABOUT"]:
            for keyword in node.value.keywords if isinstance(node.value, ast.Call) else ():
                if keyword.arg == "title" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return label(name)


def load(name: str) -> ModuleType:
    """Import a method module."""
    found = canonical(name)
    place = place_of(found)
    if place is None:
        return importlib.import_module(f"{__name__}.{found}")
    return _completed(loading.load_module(place), place, label(found))


def _completed(module: ModuleType, place: str, name: str) -> ModuleType:
    """What is wrong with it is said here, in one sentence; what it leaves out and can do without is added."""
    from fedsim import method
    from fedsim.config import Section
    from fedsim.contract import Contract

    known = vars(module)
    client = known.get("Client")
    if client is None:
        raise UserError(
            f"{place} has no Client, so it is no method; derive one from fedsim.method.Client, or let "
            "`fedsim new method` write a file to start from."
        )
    for half, base in (("Client", method.Client), ("Server", method.Server), ("Config", Section)):
        given = known.setdefault(half, base)
        if not (isinstance(given, type) and issubclass(given, base)):
            raise UserError(f"{half} in {place} is no class derived from {base.__module__}.{base.__name__}.")
    if "contract" not in known:
        if any(_overrides(client, method.Client, sends) for sends in ("upload", "setup")):
            raise UserError(
                f"Client in {place} sends something, but there is no contract(config) that declares it; add one."
            )
        known["contract"] = lambda config: Contract()
    if not callable(known["contract"]) or len(inspect.signature(known["contract"]).parameters) != 1:
        raise UserError(f"contract in {place} must be a function of one argument, the method's Config.")
    known.setdefault("ABOUT", method.About(title=name, paper="own", evaluation="its own"))
    return module


def _overrides(kind: type, base: type, name: str) -> bool:
    return getattr(kind, name) is not getattr(base, name)


def plain(name: str) -> str:
    """Spellings that mean the same."""
    return name.lower().replace("-", "_")
