"""`fedsim new`: a file to start from, for a method, a model or data of your own."""

import shlex
from importlib import resources
from pathlib import Path

import click

from fedsim.errors import UserError

_EXAMPLES = """
\b
Examples:
  fedsim new method my_method.py
  fedsim new model nets.py
  fedsim new data data.py
"""


@click.command(epilog=_EXAMPLES)
@click.argument("kind", type=click.Choice(["method", "model", "data"]))
@click.argument("file", type=click.Path(path_type=Path))
def command(kind: str, file: Path) -> None:
    """Write FILE: a small working method, model or data loader, with comments."""
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise UserError(f"{file} is no name for a Python file; use letters, digits, underscores and .py.")
    text = (resources.files("fedsim.templates") / f"{kind}.py").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text.replace("NAME", file.stem).replace("FILE", file.name))
    except FileExistsError:
        raise UserError(f"{file} exists already; choose another name.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}.") from None
    what = {"method": "", "model": ":Small", "data": ":load"}[kind]
    place = file if file.is_absolute() else f"./{file}"
    click.echo(f"wrote {file}; try it with: fedsim check {shlex.quote(f'{place}{what}')}")
