"""A client whose work is done by the executors of its host. Its process never loads torch.

What makes the client is kept here, in files without a name: the experiment, what was agreed at set-up, its state
and its last answer. An executor is lent them for each piece of work; a new state replaces the old one only when
the work is done, so an executor may die at any moment.
"""

import socket
import sys
from collections.abc import Sequence

from fedsim.contract import Arrays, Contract, Field, Fields, Payload
from fedsim.errors import FedsimError
from nodes.checkpoint import StateFiles
from nodes.client import errands
from nodes.client.errands import Done, Errand, StartedNote
from nodes.client.nameless import Nameless
from nodes.client.worker import CannotTakePart, Started
from nodes.launchers import processes
from nodes.work import Order, Report


class WorkFailed(FedsimError):
    """The method's code raised, in another process."""


class SharedWorker:
    """`pool` is the address of the executors of the client's place."""

    def __init__(self, client: int, place: str, pool: str):
        self._client = client
        self._place = place
        self._pool = pool
        self._end: socket.socket | None = None
        self._files: dict[str, Nameless] = {}
        self._answer: Nameless | None = None
        self._states: StateFiles

    def join(self, welcome: Arrays, states: StateFiles, restore: int) -> Started:
        for name in list(self._files):
            self._keep(name, None)
        self._states = states
        self._keep("welcome", Nameless.of(welcome))
        if restore >= 0:
            self._keep("state", Nameless.opened(states.path(restore)))
        done, (setup,) = self._run(None)
        assert done.started is not None
        started = _started(done.started, setup.arrays())
        setup.close()
        return started

    def agree(self, down: Arrays) -> None:
        self._keep("agreed", Nameless.of(down))

    def work(self, order: Order, down: Arrays, slot: int) -> Report:
        self._keep("down", Nameless.of(down))
        done, (answer, state) = self._run(order)
        self._keep("down", None)
        self._keep("state", state)
        if self._answer is not None:
            self._answer.close()
        self._answer = answer
        return Report(done.metrics, done.seconds, self.answer())

    def answer(self) -> Arrays:
        return {} if self._answer is None else self._answer.arrays()

    def save(self, round: int, keep: int) -> None:
        self._states.write(round, self._files["state"].content())
        self._states.keep_only(round, keep)

    def rest(self) -> None:
        processes.return_freed_memory()

    def _keep(self, name: str, file: Nameless | None) -> None:
        if (old := self._files.pop(name, None)) is not None:
            old.close()
        if file is not None:
            self._files[name] = file

    def _run(self, order: Order | None) -> tuple[Done, list[Nameless]]:
        """Have it done; waits as long as it takes."""
        names = tuple(name for name in errands.FILES if name in self._files)
        errand = Errand(client=self._client, place=self._place, order=order, files=names)
        received = self._ask(errand, [self._files[name] for name in names])
        if received is None:
            raise CannotTakePart("the executors of this host have gone.")
        answer, files = received
        if isinstance(answer, Done):
            return answer, files
        assert not isinstance(answer, Errand)
        if answer.kind != "failed":
            raise CannotTakePart(answer.sentence)
        print(answer.traceback, file=sys.stderr, flush=True)
        raise WorkFailed(answer.sentence)

    def _ask(self, errand: Errand, files: Sequence[Nameless]) -> tuple[errands.Note, list[Nameless]] | None:
        if self._end is None:
            self._end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._end.connect(self._pool)
        errands.send(self._end, errand, files)
        return errands.receive(self._end)


def _started(note: StartedNote, setup: Arrays) -> Started:
    def fields(way: str) -> Fields:
        noted = note.contract[way]
        return {name: Field(Payload(item.payload), item.shape, item.dtype) for name, item in noted.items()}

    return Started(
        contract=Contract(fields("up"), fields("down"), fields("setup_up"), fields("setup_down")),
        dimensions=note.dimensions,
        num_train=note.num_train,
        num_test=note.num_test,
        num_parameters=note.num_parameters,
        facts=note.facts,
        setup=setup,
    )
