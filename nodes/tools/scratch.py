"""A cluster in a folder that is thrown away: what went wrong has to be said here, for its logs will be gone."""

from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.display.run import Display
from nodes.launchers.base import LaunchOptions
from nodes.launchers.local import LocalLauncher

_LAST_LINES = 8


def run_cluster(folder: RunFolder, display: Display, *, curve: bool = False) -> str:
    """Why it has no result, with what its server wrote last; empty where it has one. Who stops it stops the
    command, not this run alone."""
    launcher, reason = LocalLauncher(folder, display, LaunchOptions(curve=curve)), "its server ended"
    try:
        launcher.run()
    except UserError as error:
        reason = str(error).rstrip(".")
    if launcher.interrupted:
        raise KeyboardInterrupt
    if summary := folder.summary():
        return "" if summary["completed"] else str(summary["reason"])
    log = folder.logs / "server.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"{reason.removesuffix(f'; see {log}')}.", *lines[-_LAST_LINES:]])
