"""`fedsim from-htfl`: a command line of HtFLlib as one of ours."""

import click

_EXAMPLES = """
\b
Examples:
  fedsim from-htfl "-algo FedTGP -m HtFE-img-8 -data Cifar10 -nc 20 -gr 100 -lam 10"
  eval "$(fedsim from-htfl "-algo FedProto -data MNIST -m HtFE-img-2 -nc 20 -gr 5")"
"""


# Not -h: a whole command line in one word begins with a dash, and any h in it would ask for help.
_CONTEXT = {"ignore_unknown_options": True, "help_option_names": ["--help"]}


@click.command(epilog=_EXAMPLES, context_settings=_CONTEXT)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> None:
    """Translate an HtFLlib command line, with or without its "python main.py".

    The command goes to standard output; what differs, and what has no counterpart, to standard error.
    """
    import shlex

    from nodes.tools.from_htfl import translate

    translation = translate(words[0] if len(words) == 1 else shlex.join(words))
    click.echo(translation)
    for note in translation.notes:
        click.echo(f"- {note}.", err=True)
