"""What a shell may complete where a command wants a name. Nothing is imported before somebody presses Tab."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def methods() -> Iterable[str]:
    from fedsim import methods

    return [*methods.names(), *methods.installed()]


def datasets() -> Iterable[str]:
    from fedsim.data import sources

    return sources.names()


def models() -> Iterable[str]:
    from fedsim.models import groups

    return groups.group_names()


def presets() -> Iterable[str]:
    from fedsim import presets

    return presets.names()


def links() -> Iterable[str]:
    from fedsim.world.links import PROFILES

    return PROFILES


def everything() -> Iterable[str]:
    return [*methods(), *models(), *datasets()]


def one_of(names: Callable[[], Iterable[str]], *, files: bool = True, listed: bool = False) -> Completer:
    """Completes these names; what begins like a path is one where `files` may be given. `listed`: with commas."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        if files and last.startswith((".", "/", "~")):
            return [] if comma else [CompletionItem(incomplete, type="file")]
        found = (name for name in names() if name.lower().startswith(last.lower()))
        return [CompletionItem(f"{before}{comma}{name}") for name in found]

    return complete


OF_OPTIONS: dict[str, Completer] = {
    "method": one_of(methods),
    "dataset": one_of(datasets),
    "model_group": one_of(models, listed=True),
    "partition": one_of(lambda: ("dirichlet", "pathological", "iid"), files=False),
    "preset": one_of(presets, files=False),
    "link": one_of(links, files=False),
}
"""By the name of the option."""
