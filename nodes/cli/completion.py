"""`fedsim completion`: the script with which a shell completes fedsim's commands and options."""

import click
from click.shell_completion import get_completion_class

_EXAMPLES = """
\b
Examples:
  eval "$(fedsim completion bash)"                                    in ~/.bashrc
  eval "$(fedsim completion zsh)"                                     in ~/.zshrc
  fedsim completion fish > ~/.config/fish/completions/fedsim.fish
"""


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL."""
    from nodes.cli import fedsim

    found = get_completion_class(shell)
    assert found is not None  # click knows all three
    click.echo(found(fedsim, {}, "fedsim", "_FEDSIM_COMPLETE").source())
