"""The three packages and the one direction of their imports, read from the source and from a running client."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PROJECT, Start

FORBIDDEN = {
    "protocol": {"torch", "torchvision", "fedsim", "nodes"},
    "fedsim": {"zmq", "msgpack", "protocol", "nodes"},
}

LEDGE = ("fedsim.config", "fedsim.contract", "fedsim.data", "fedsim.errors", "fedsim.models", "fedsim.seeds")
ROOMS = {
    "fedsim/equations": {"fedsim.equations"},
    "fedsim/learning": {"fedsim.learning", *LEDGE},
    "fedsim/families": {
        "fedsim.families",
        "fedsim.equations",
        "fedsim.learning",
        "fedsim.method",
        *LEDGE,
    },
    "fedsim/server_optimizers": {"fedsim.server_optimizers", "fedsim.equations"},
}
"""What the modules of a room may import of ours. A family knows no method, and equations know nothing."""


def imported_modules(path: Path) -> set[str]:
    """The modules that a module imports, anywhere in it. Nothing here imports relatively."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = node.module or ""
            names = {f"{module}.{alias.name}" for alias in node.names}
            is_package = (PROJECT / module.replace(".", "/")).is_dir()
            found |= (
                {name for name in names if is_module(name)}
                if is_package and any(map(is_module, names))
                else {module}
            )
    return found


def is_module(name: str) -> bool:
    path = PROJECT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def imported(path: Path) -> set[str]:
    """The top-level packages that a module imports."""
    return {name.partition(".")[0] for name in imported_modules(path)}


def modules(package: str) -> list[Path]:
    return sorted((PROJECT / package).rglob("*.py"))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_the_wire_and_the_learning_know_nothing_of_each_other(package: str) -> None:
    offenders = {
        str(path.relative_to(PROJECT)): wrong
        for path in modules(package)
        if (wrong := imported(path) & FORBIDDEN[package])
    }
    assert offenders == {}


def test_all_three_packages_are_looked_at() -> None:
    assert all(len(modules(package)) > 5 for package in ("protocol", "fedsim", "nodes"))
    assert {"protocol", "fedsim", "zmq"} & imported(PROJECT / "nodes/server/loop.py") == {"protocol", "fedsim"}
    assert "torch" in imported(PROJECT / "nodes/launchers/zygote.py"), "imports inside functions count too"


def test_only_nodes_import_both() -> None:
    """The round's logic is a state machine without a socket, a clock or a process in it."""
    both = {path for package in FORBIDDEN for path in modules(package) if imported(path) >= {"fedsim", "protocol"}}
    assert both == set()
    standard = imported(PROJECT / "nodes/server/rounds.py")
    assert standard <= set(sys.stdlib_module_names) - {"socket", "time", "os", "subprocess"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_knows_only_its_neighbours(room: str) -> None:
    for path in modules(room):
        ours = {name for name in imported_modules(path) if name.startswith("fedsim")}
        strangers = {
            name for name in ours if not any(name == good or name.startswith(f"{good}.") for good in ROOMS[room])
        }
        assert strangers == set(), path


def test_the_server_knows_no_client_and_its_parts_know_only_what_they_need() -> None:
    """Only the loop speaks to the reception, which the program makes; the learner knows no wire and no process."""
    imports = {path.stem: imported_modules(path) for path in modules("nodes/server")}
    assert not {name for names in imports.values() for name in names if name.startswith("nodes.client")}
    assert {part for part, names in imports.items() if "nodes.server.reception" in names} == {"loop", "program"}
    assert {name for name in imports["learner"] if name.startswith(("protocol", "nodes"))} == {
        "nodes.border",
        "nodes.work",
    }


def test_the_packages_import_nothing_of_the_tests() -> None:
    for package in ("protocol", "fedsim", "nodes"):
        for path in modules(package):
            assert not imported(path) & {"tests", "pytest", "hypothesis", "commands"}, path


PROBE = """
import sys
from nodes.launchers import zygote
import nodes.cli.client, nodes.client.node, nodes.launchers.local
zygote.preload()
ours = ("fedsim", "nodes", "protocol", "torch", "pandas")
print(*sorted(name for name in sys.modules if name.split(".")[0] in ours))
"""


def test_a_client_never_loads_a_generator_nor_methods_that_it_may_not_need(python: Start, tmp_path: Path) -> None:
    """Generators belong to the server; a client must not pay for them, and cannot look into them."""
    (tmp_path / "probe.py").write_text(PROBE)
    loaded = set(python(tmp_path / "probe.py", fresh=True).succeed().stdout.split())
    assert {"fedsim.assembly", "nodes.client.node", "protocol.transport", "torch"} <= loaded
    assert not {name for name in loaded if name.startswith(("fedsim.generators", "fedsim.methods."))}
    assert "pandas" not in loaded, "tables are for those who look at results"


def test_clients_that_compute_nothing_are_forked_from_a_parent_without_torch(
    python: Start, tmp_path: Path
) -> None:
    heavy = ("torch", "torchvision", "scipy", "pandas", "sklearn", "PIL", "rich", "psutil")
    (tmp_path / "probe.py").write_text(
        f"import sys\nimport nodes.client.light\nprint('loaded', *sorted(set({heavy}) & sys.modules.keys()))\n"
    )
    assert python(tmp_path / "probe.py", fresh=True).succeed().stdout == "loaded\n"


def test_help_does_not_wait_for_torch(python: Start, tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import sys\nfrom nodes.cli import fedsim\nfedsim(['--help'], standalone_mode=False)\n"
        "fedsim(['run', '--help'], standalone_mode=False)\n"
        "print('loaded', *({'torch', 'pandas', 'matplotlib'} & sys.modules.keys()))\n"
    )
    command = python(tmp_path / "probe.py", fresh=True).succeed()
    assert command.stdout.endswith("loaded\n")
    assert all(name in command.stdout for name in ("client", "keys", "run", "server"))


@pytest.mark.process
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["PASSIVE", "10000"]),
        ({"GOMP_SPINCOUNT": "7"}, ["PASSIVE", "7"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", "None"]),
    ],
)
def test_threads_are_told_how_to_wait_before_torch_is_loaded(given: dict[str, str], expected: list[str]) -> None:
    """OpenMP reads its settings when it is loaded, and a user's own setting stays."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    program = f"import nodes, os, sys; print(*map(os.environ.get, {names}), 'torch' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key not in names} | given
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [*expected, "False"]
