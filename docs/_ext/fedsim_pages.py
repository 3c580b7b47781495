"""Pages that follow from the code: one for each method, every option of an experiment, every command's help.

They are written when a build begins, below folders that git ignores, so that they cannot be out of date.
"""

import inspect
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from fedsim import config, methods
from fedsim.config.option_docs import options_of
from fedsim.costs.formula import formulae, pretty
from nodes.cli import fedsim as program

WAYS = {"up": "up, every round", "down": "down, every round", "setup_up": "up, once", "setup_down": "down, once"}


def setup(app):
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir)))
    app.connect("autodoc-process-docstring", lambda *event: as_restructured(event[-1]))
    return {"parallel_read_safe": True}


def write_pages(docs: Path) -> None:
    for name in methods.names():
        write(docs / "methods" / f"{name}.md", method_page(name))
    write(docs / "reference" / "options.md", options_page())
    write(docs / "reference" / "commands.md", commands_page())


def write(path: Path, lines: Iterable[str]) -> None:
    """Only what has changed, or every build would read every page again."""
    text = "\n".join(lines) + "\n"
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def as_restructured(lines: list[str]) -> None:
    """Our docstrings are plain text with `code` in single backticks."""
    lines[:] = [line.replace("`", "``") if "``" not in line else line for line in lines]


def method_page(name: str) -> Iterable[str]:
    module = methods.load(name)
    about, contract = module.ABOUT, module.contract(module.Config())
    yield f"# {about.title}\n\n{about.paper}. `--method {name}`"
    first, _, rest = inspect.getdoc(module).partition("\n\n")
    yield f"\n{first}\n\n{rest}"
    yield f"\n**Needs:** {', '.join(about.needs) or 'nothing in particular'}. **Prediction:** {about.evaluation}."
    yield "\n## What travels\n"
    rows = [
        (way, field_name, field.payload, field.shape, field.dtype)
        for direction, way in WAYS.items()
        for field_name, field in getattr(contract, direction).items()
    ]
    yield from table(("way", "field", "kind", "shape", "type"), rows) if rows else ["Nothing."]
    yield "\nElements of a round with all clients:"
    for direction, formula in formulae(contract).items():
        if formula.products or direction in ("up", "down"):
            yield f"- {WAYS[direction]}: {pretty(str(formula))}"
    if contract.note:
        yield f"\n{contract.note}."
    yield "\n## Options\n\nAs `--set method.NAME=VALUE`, or `method_options={...}` in Python.\n"
    yield from option_table(module.Config)
    yield f"\nThe method's own file is `fedsim/methods/{name}.py`; [what our runs show](../methods.md) of it."


def options_page() -> Iterable[str]:
    yield "# Every option of an experiment"
    yield "\nAs `--set SECTION.NAME=VALUE` on the command line, `SECTION={'NAME': VALUE}` in `fedsim.run`, or in a"
    yield "file for `--config`. `config.toml` of a run folder has all of them with the values that were used."
    for item in msgspec.structs.fields(config.Experiment):
        if isinstance(item.type, type) and issubclass(item.type, config.Section):
            yield f"\n## {item.name}\n\n{inspect.getdoc(item.type)}\n"
            yield from option_table(item.type)
    yield "\n## wire\n\nWhich payloads travel in which [encoding](../encodings.md); by default none does.\n"
    known = msgspec.structs.fields(config.Wire)
    yield from table(("option", "default"), [(f"`{item.name}`", f"`{item.default}`") for item in known])
    yield f"\n## world\n\n{inspect.getdoc(config.World)} [More](../time.md).\n"
    yield from option_table(config.World)
    yield "\n## method\n\n`name` says which; its own options are on the method's page.\n"


def commands_page() -> Iterable[str]:
    yield "# Every command"
    yield "\n`python run_cluster.py` is `fedsim run`; `python -m nodes.server` and `python -m nodes.client` are"
    yield "`fedsim server` and `fedsim client`. What follows is what `--help` prints."
    yield from help_of(program, click.Context(program, info_name="fedsim"))


def help_of(command: click.Command, context: click.Context) -> Iterable[str]:
    """Of a command, then of those below it."""
    context.max_content_width = 100
    yield f"\n{'##' if context.parent else '## fedsim'} {context.command_path if context.parent else ''}".rstrip()
    yield f"\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from help_of(below, click.Context(below, info_name=name, parent=context))


def option_table(section: type[config.Section]) -> Iterable[str]:
    rows = [
        (f"`{item.name}`", f"`{default_of(item)}`", " ".join(item.doc.split())) for item in options_of(section)
    ]
    return table(("option", "default", "meaning"), rows) if rows else ["None."]


def default_of(option) -> str:
    if option.default is msgspec.NODEFAULT:
        return "–"
    return '""' if option.default == "" else str(option.default)


def table(headings: tuple[str, ...], rows: Iterable[tuple]) -> Iterable[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"
