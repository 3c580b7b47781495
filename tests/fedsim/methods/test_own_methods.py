"""Methods that do not lie in fedsim: how they are named, what they may leave out, what is wrong with them."""

from importlib import metadata
from pathlib import Path

import pytest

from fedsim import config, method, methods
from fedsim.contract import Contract
from fedsim.errors import UnknownName, UserError

ALONE = "from fedsim.methods.local import Client\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`write("...")`: a file mine.py in the folder that the test is in."""
    monkeypatch.chdir(tmp_path)

    def write(content: str, name: str = "mine.py") -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(content)
        return f"./{name}"

    return write


@pytest.fixture
def install(monkeypatch):
    """`install(fancy="package.module")`: methods of installed packages."""

    def install(**entries: str) -> None:
        points = [metadata.EntryPoint(name, value, methods.ENTRY_POINTS) for name, value in entries.items()]
        monkeypatch.setattr(metadata, "entry_points", lambda group: points)
        methods.installed.cache_clear()

    yield install
    monkeypatch.undo()
    methods.installed.cache_clear()


def refused(name: str) -> str:
    with pytest.raises(UserError) as caught:
        methods.load(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_client_is_enough(write):
    module = methods.load(write(ALONE))
    assert module.Config() == config.Section() and module.contract(module.Config()) == Contract()
    assert module.Server is method.Server
    assert module.ABOUT.title == methods.label("./mine.py") == "mine"


def test_what_a_method_has_is_left_as_it_is(write):
    module = methods.load(
        write(
            "from fedsim.methods.fedproto import Client, Config, Server, contract\n"
            "from fedsim.method import About\nABOUT = About(title='Mine', paper='p', evaluation='e')\n"
        )
    )
    shipped = methods.load("fedproto")
    assert (module.Config, module.Server, module.contract) == (shipped.Config, shipped.Server, shipped.contract)
    assert module.ABOUT.title == "Mine"


def test_a_module_of_a_package_may_import_the_package(write, tmp_path, monkeypatch):
    write("", "bundle/__init__.py")
    write(ALONE.replace("Client", "Client as Base"), "bundle/base.py")
    write("from .base import Base\nclass Client(Base): ...\n", "bundle/inner.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = config.build([{"method": {"name": "bundle.inner"}}])
    assert experiment.method["name"] == "bundle.inner" and experiment.method_name == "inner"
    assert experiment.method_module.Client.__module__ == "bundle.inner"


def test_installed_packages_add_methods_by_name(write, tmp_path, monkeypatch, install):
    write(ALONE, "plugin_package.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    install(**{"Fancy-Method": "plugin_package"})
    assert methods.canonical("fancy-method") == "fancy_method" not in methods.names()
    assert methods.load("Fancy_Method").__name__ == methods.place_of("fancy_method") == "plugin_package"


def test_a_broken_package_breaks_nothing_else(install):
    install(fancy="no_such_package")
    assert methods.load("local").ABOUT.title == "Local"
    assert refused("fancy").startswith("Python finds no module no_such_package;")


def test_a_name_that_is_both_is_refused(write, install):
    assert refused(write(ALONE, "fedtgp.py")) == (
        "./fedtgp.py would be called fedtgp, as a method that comes with fedsim is; rename the file."
    )
    install(fedtgp="other.fedtgp")
    assert "fedtgp is a method of fedsim and also one of an installed package (other.fedtgp)" in refused("fedtgp")


def test_a_file_must_be_written_as_one(write):
    write(ALONE)
    assert refused("mine") == "there is no method 'mine'; to run the file of that name, write ./mine.py."
    with pytest.raises(UnknownName, match="did you mean fedtgp"):
        methods.load("fedtpg")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "./mine.py has no Client, so it is no method; derive one from fedsim.method.Client, or let "),
        ("class Client: ...", "Client in ./mine.py is no class derived from fedsim.method.Client."),
        (ALONE + "Server = 3", "Server in ./mine.py is no class derived from fedsim.method.Server."),
        (ALONE + "class Config: ...", "Config in ./mine.py is no class derived from fedsim.config.Section."),
        (
            "from fedsim.methods.fedproto import Client",
            "Client in ./mine.py sends something, but there is no contract(config) that declares it; add one.",
        ),
        (ALONE + "def contract(): ...", "contract in ./mine.py must be a function of one argument, the method's"),
        (ALONE + "\n1 / 0", "./mine.py cannot be imported (line 3, ZeroDivisionError: division by zero); mend it"),
        ("def (", "./mine.py cannot be imported (line 1, SyntaxError: invalid syntax (mine.py, line 1)); mend it"),
        (
            "import no_such",
            "./mine.py cannot be imported (line 1, ModuleNotFoundError: No module named 'no_such')",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(content, complaint, write):
    assert refused(write(content)).startswith(complaint)


def test_a_file_that_is_not_there(write, tmp_path):
    write(ALONE)
    assert (
        refused("./other.py")
        == f"there is no file {tmp_path}/other.py; give the path of a Python file that exists."
    )
