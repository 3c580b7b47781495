"""The command `fedsim`. Modules of this package are its subcommands; none is imported before it is asked for."""

import errno
import importlib
import pkgutil
import sys

import click

from fedsim.errors import DiskFull, FedsimError
from fedsim.version import __version__
from protocol.errors import ProtocolError

_HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """`fedsim --help` must not wait for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = (module.name for module in pkgutil.iter_modules(__path__))
        return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


@click.command(cls=LazyGroup, context_settings=_HELP)
@click.version_option(__version__)  # not the installed package's: a checkout needs no installation
def fedsim() -> None:
    """Heterogeneous federated learning with real processes, real sockets and measured bytes."""


def main() -> None:
    execute(fedsim)


def execute(command: click.Command) -> None:
    """Run a command; a user's mistake is one sentence on standard error and a code, never a traceback."""
    try:
        sys.exit(command(standalone_mode=False, **_HELP) or 0)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        click.echo(f"error: no space is left on the disk of {error.filename or 'what is written'}.", err=True)
        sys.exit(DiskFull.exit_code)
    except (FedsimError, ProtocolError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
