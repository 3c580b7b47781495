"""Serving a run folder: from its experiment and an address to the summary of what was learned."""

import ipaddress
import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsim import assembly, metrics
from fedsim.errors import DiskFull, UserError, writing_to
from fedsim.models import groups
from fedsim.own import spelling
from fedsim.results.folder import RunFolder
from nodes import failures, likeness
from nodes.checkpoint import Checkpoints, Manifest
from nodes.launchers import processes
from nodes.launchers.placement import use_server_device, use_server_threads
from nodes.server.accounts import audit_summary, traffic_summary
from nodes.server.events import EventLog, Watcher
from nodes.server.learner import Learner
from nodes.server.loop import Outcome, ServerLoop
from nodes.server.reception import Reception
from protocol import keys
from protocol.addresses import host_of
from protocol.errors import AddressUnusable
from protocol.keys import KeyPair
from protocol.limits import Limits
from protocol.transport import ServerSocket

EXIT_LACKS_CLIENTS = 3
"""Beside 0 for a run that is complete, 1 for one that failed or whose bytes do not agree, 2 for bad input."""
CTRL_C = signal.SIGUSR2
"""How a launcher tells that the user pressed it: the terminal's own signal reaches every process of the group."""
WARNING = signal.SIGUSR1
"""Slurm's, a while before the time of a job is over."""

_STOPS: dict[int, str] = {
    signal.SIGTERM: "SIGTERM, or the launcher has died",
    WARNING: "SIGUSR1, a warning that the time is over soon",
}
_LAST_WORDS_SECONDS = 20
_OWN_FILES = 64  # of the server, beside its clients' connections


Security = tuple[KeyPair | None, dict[str, int] | None]
"""The server's own keys and who may join with which, where there are keys."""


def security_from(folder: Path | None) -> Security:
    if folder is None:
        return None, None
    return keys.load_secret(folder, keys.SERVER), keys.load_allow_list(folder)


def serve(
    folder: RunFolder,
    *addresses: str,
    security: Security = (None, None),
    resume: bool = False,
    watcher: Watcher | None = None,
    on_bound: Callable[[list[str]], None] = lambda addresses: None,
) -> int:
    """Run the experiment of a run folder to its end; returns the exit code."""
    started = time.monotonic()
    with folder.in_use(), writing_to(folder.path):
        learner, manifest, socket, facts = _prepare(folder, addresses, security, resume)
        with (
            closing(socket),
            closing(EventLog(folder.path / "events.jsonl", watcher, learner.experiment)) as events,
        ):
            on_bound(socket.addresses)
            reception = Reception(socket, learner.experiment, learner.border, manifest, facts=facts)
            loop = ServerLoop(learner, reception, events, first_round=manifest.round + 1 if manifest else 0)
            begun = {"address": socket.address, "resumed_from": manifest.round if manifest else None}
            with _stopped_by_signals(loop):
                code = _play(loop, begun, started, starts_over=resume and manifest is None)
    return code


def _play(loop: ServerLoop, begun: dict[str, Any], started: float, *, starts_over: bool) -> int:
    """The run from its first word, which is `begun`, to its last, however it ends."""
    folder, events, outcome = loop.learner.folder, loop.events, None
    try:
        events.say("started", **begun)
        if starts_over:
            events.say("starts_over")
        with writing_to(folder.path):
            outcome = loop.run()
            summary = summarise(loop, outcome, time.monotonic() - started)
            folder.write_summary(summary)
            events.say("finished", summary=summary)
    except DiskFull as error:
        for _ in loop.reception.goodbye(str(error), completed=False):
            pass
        with suppress(OSError):
            events.say("failed", reason=str(error), where="")
        return error.exit_code
    except Exception as error:
        story = failures.explained(error, f"its log: {folder.logs / 'server.log'}")
        reason, _, where = story.partition("\n")
        events.say("failed", reason=reason, where=where)
        if outcome is None:  # nobody has been told, and nothing has been kept
            outcome = loop.end(Outcome(False, f"the server failed: {reason}"))
            folder.write_summary(summarise(loop, outcome, time.monotonic() - started))
        raise
    if outcome.lacks_clients:
        return EXIT_LACKS_CLIENTS
    return 0 if outcome.completed and summary["audit_passed"] else 1


def _prepare(
    folder: RunFolder, addresses: Sequence[str], security: Security, resume: bool
) -> tuple[Learner, Manifest | None, ServerSocket, dict[str, str]]:
    """All that can be refused, before anything in the folder is touched."""
    experiment = folder.experiment()
    use_server_threads(experiment.cluster)
    try:
        _require_files(experiment.run.clients)
        federation = assembly.check(experiment)
        learner = Learner(experiment, federation, folder, use_server_device(experiment.cluster))
        manifest = _restore(learner, folder) if resume else None
        limits = Limits.of_frames(experiment.cluster.max_frame_mib)
        own, allowed = security
        heartbeat = experiment.cluster.heartbeat_seconds
        socket = ServerSocket(*addresses, limits=limits, keys=own, allowed=allowed, heartbeat_seconds=heartbeat)
    except (AddressUnusable, UserError):
        if not resume:
            shutil.rmtree(folder.path)  # a run that could not begin leaves nothing behind
        raise
    if resume:  # only now: nothing may be forgotten by a server that cannot begin
        folder.forget_after(manifest.round if manifest else -1)
    if not experiment.run.rehearsal:
        folder.write_partition(*federation.class_counts())
    return learner, manifest, socket, likeness.facts_of(federation)


def _require_files(num_clients: int) -> None:
    """Each client is a connection, and each connection two open files: ZeroMQ's, and the duplicate we keep."""
    limit = processes.raise_file_limit()
    if (wanted := 2 * num_clients + _OWN_FILES) > limit:
        raise UserError(
            f"{num_clients} clients need about {wanted} open files in the server's process, and {limit} are "
            "allowed; raise the limit (ulimit -Hn, or LimitNOFILE of a service), or take fewer clients."
        )


def summarise(loop: ServerLoop, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The numbers of the closing table."""
    reception = loop.reception
    ready = [member.ready for member in reception.members.by_id.values() if member.ready]
    audit = audit_summary(outcome.audits)
    return {
        **results_summary(loop.learner),
        "completed": outcome.completed,
        "reason": outcome.reason,
        "resumable": loop.checkpoints.exist,
        "seconds": seconds,
        "start_seconds_max": max((item.start_seconds for item in ready), default=None),
        "client_pss_bytes_mean": sum(item.pss_bytes for item in ready) / max(len(ready), 1),
        "client_gpu_peak_bytes": loop.learner.gpu_peak_bytes,
        "traffic": traffic_summary(reception.accounts.ledger),
        "audit": audit,
        "audit_passed": not audit["differences"],
    }


def results_summary(learner: Learner) -> dict[str, Any]:
    """What was learned: the papers report the best round."""
    experiment = learner.experiment
    return {
        "method": experiment.method_name,
        "dataset": spelling.label(experiment.data.dataset),
        "model_group": groups.label(experiment.model.group),
        "architectures": [entry.name for entry in groups.entries(experiment.model.group)],
        "clients": experiment.run.clients,
        "rounds": len([row for row in learner.history if row["round"] != learner.last_round]),
        "seed": experiment.run.seed,
        **metrics.summary(learner.history, count_partial=experiment.run.count_partial),
    }


def require_safe_address(address: str, *, has_keys: bool, insecure: bool) -> None:
    """Anyone who can reach a server without keys can join it: only this machine may, unless the user insists."""
    host = host_of(address, listens=True)
    if has_keys or insecure or host == "localhost":
        return
    with suppress(ValueError):  # a name
        if ipaddress.ip_address(host).is_loopback:
            return
    raise UserError(
        f"{address} can be reached from other machines and no keys are given; make keys with `fedsim keys new` "
        "and pass --keys, or accept the risk with --insecure."
    )


def _restore(learner: Learner, folder: RunFolder) -> Manifest | None:
    """Take up the last checkpoint; without one the run begins anew."""
    summary = folder.summary()
    if summary is not None and summary["completed"]:
        raise UserError(f"the run in {folder.path} is complete; there is nothing left to go on with.")
    loaded = Checkpoints(folder.checkpoints).load()
    if loaded is None:
        return None
    manifest, state = loaded
    learner.load_state(state, manifest.history)
    return manifest


@contextmanager
def _stopped_by_signals(loop: ServerLoop) -> Iterator[None]:
    """The first signal ends the run and keeps its results so far, a second one ends this process.

    Under a launcher, which has Ctrl-C ignored, the second is the launcher's matter: it tells us of a signal that
    we may have had already, with the whole group. There the handlers stay, for nothing follows the run here.
    """
    by_hand = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    numbers = (*_STOPS, CTRL_C, *([signal.SIGINT] if by_hand else []))
    before = {number: signal.getsignal(number) for number in numbers}

    def give_back() -> None:
        for number, handler in before.items() if by_hand else ():
            signal.signal(number, handler)

    def stop(number: int, frame: object) -> None:
        name = _STOPS.get(number, "Ctrl-C")
        logging.getLogger("server").warning("stopping: %s", name)
        give_back()
        signal.alarm(_LAST_WORDS_SECONDS)  # kills us if the results so far take longer than this to write
        loop.request_stop(f"the run was stopped ({name})")

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        signal.alarm(0)  # drawing the report may take longer
        give_back()
