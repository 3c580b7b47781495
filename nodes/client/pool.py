"""The executors of one host: which piece of work goes to which of them, and what happens when one dies.

    host ─┬─ executor 0 ...      one for each slot of a core or a GPU, forked from here when it is first needed
          └─ parent ─┬─ client 0 ...     without torch; see `light.py`

The pool runs in the host's preloaded process, which never computes: whatever an executor did, the next one is
forked from a clean parent. It is one loop over sockets. An errand is read only when an executor is free for it.
"""

import logging
import os
import selectors
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodes.client import errands
from nodes.client.errands import Done, Errand, Trouble
from nodes.client.nameless import Nameless
from nodes.launchers import processes
from nodes.launchers.placement import Placement

log = logging.getLogger(__name__)

_MOST_TRIES = 2
_MEBIBYTE = 1 << 20

StartExecutor = Callable[[socket.socket, int, Placement], int]
"""Forks the executor of a slot of a place, which lets go of the pool and serves this end. Returns its process."""


@dataclass
class _Piece:
    """An errand on its way, with all it takes to try it again."""

    asked_by: socket.socket
    errand: Errand
    files: list[Nameless]
    num_tries: int = 0
    alone: bool = False
    """With nobody else at work at its place."""


@dataclass
class _Seat:
    """A slot, and the executor that sits there now."""

    place: "_Place"
    slot: int
    process: int = 0
    end: socket.socket | None = None
    piece: _Piece | None = None


@dataclass
class _Place:
    """A place with its slots. Clients of it connect to its own address."""

    placement: Placement
    listener: socket.socket
    seats: list[_Seat] = field(default_factory=list)
    waiting: deque[socket.socket] = field(default_factory=deque)
    """Clients that have said something; it is read when there is a seat for it."""
    again: deque[_Piece] = field(default_factory=deque)
    """What went wrong once, to be tried alone."""


class Pool:
    """Executors for all places of a host."""

    def __init__(self, placements: Mapping[str, Placement], start: StartExecutor):
        self._start = start
        self._selector = selectors.DefaultSelector()
        self._sizes: dict[int, int] = {}
        self._places = {name: self._open(placement) for name, placement in placements.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """Where clients of each place find it: names that only this machine knows, and no file system."""
        return {name: place.listener.getsockname().decode() for name, place in self._places.items()}

    def serve_until_ended(self, process: int) -> None:
        """Until this child has ended."""
        ending = os.pidfd_open(process)
        self._selector.register(ending, selectors.EVENT_READ, None)
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.data is None:
                        return
                    key.data()
        finally:
            self._selector.unregister(ending)
            os.close(ending)

    def close(self) -> None:
        """The executors end, whatever they are at."""
        for place in self._places.values():
            for seat in place.seats:
                if seat.end is not None:
                    os.kill(seat.process, signal.SIGKILL)
                    self._reap(seat)
        self.let_go()

    def let_go(self) -> None:
        """Close all that is open here: also in an executor, which is forked with it. There the files of other
        pieces, for example, would take memory as long as it lives."""
        for key in self._selector.get_map().values():
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()
        for place in self._places.values():
            pieces = [seat.piece for seat in place.seats if seat.piece is not None] + [*place.again]
            for piece in pieces:
                for file in piece.files:
                    file.close()
            for end in (*place.waiting, *(piece.asked_by for piece in pieces)):
                end.close()

    # ------------------------------------------------------------------------------------------ clients

    def _open(self, placement: Placement) -> _Place:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind("")  # the kernel finds a name
        listener.listen(socket.SOMAXCONN)
        place = _Place(placement, listener)
        place.seats += [_Seat(place, slot) for slot in range(placement.slots)]
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._on_connection(place))
        return place

    def _on_connection(self, place: _Place) -> None:
        end, _ = place.listener.accept()
        _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():  # anybody on this machine may try
            end.close()
            return
        self._listen_to(end, place)

    def _listen_to(self, end: socket.socket, place: _Place) -> None:
        def on_words() -> None:
            self._selector.unregister(end)
            place.waiting.append(end)
            self._assign(place)

        self._selector.register(end, selectors.EVENT_READ, on_words)

    def _answer(self, piece: _Piece, answer: Done | Trouble, files: list[Nameless], place: _Place) -> None:
        try:
            errands.send(piece.asked_by, answer, files)
        except ConnectionError:  # it was killed meanwhile
            piece.asked_by.close()
        else:
            self._listen_to(piece.asked_by, place)
        for file in (*files, *piece.files):
            file.close()

    # ---------------------------------------------------------------------------------------- executors

    def _assign(self, place: _Place) -> None:
        """Give work to whoever is free. What is to be tried alone waits until all others of the place are done,
        and they wait for it."""
        while free := [seat for seat in place.seats if seat.piece is None]:
            if any(seat.piece is not None and seat.piece.alone for seat in place.seats):
                return
            if place.again:
                if len(free) == len(place.seats):
                    self._hand_over(free[0], place.again.popleft())
                return
            if not place.waiting:
                return
            end = place.waiting.popleft()
            received = errands.receive(end)
            if received is None:
                end.close()
                continue
            errand, files = received
            assert isinstance(errand, Errand)
            self._hand_over(free[0], _Piece(end, errand, files))

    def _hand_over(self, seat: _Seat, piece: _Piece) -> None:
        was_idle = seat.end is not None
        seat.piece = piece
        piece.num_tries += 1
        if seat.end is None:
            seat.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._selector.register(seat.end, selectors.EVENT_READ, lambda: self._on_answer(seat))
            seat.process = self._start(theirs, seat.slot, seat.place.placement)  # last: it lets go of what is here
            theirs.close()
        try:
            errands.send(seat.end, piece.errand, piece.files)
        except ConnectionError:  # it is dead; its end says so in its turn, and then the piece is tried again
            piece.num_tries -= was_idle  # it died before it was asked, so this was no try

    def _on_answer(self, seat: _Seat) -> None:
        """An executor is done, or dead."""
        assert seat.end is not None
        place, piece, received = seat.place, seat.piece, errands.receive(seat.end)
        seat.piece = None
        if received is None:
            how = processes.describe_exit(self._reap(seat))
            answer: errands.Note = Trouble(kind="short", sentence=f"an executor {how}")
            files: list[Nameless] = []
        else:
            answer, files = received
        assert not isinstance(answer, Errand)
        if piece is not None:
            self._conclude(piece, answer, files, place)
        self._assign(place)

    def _conclude(self, piece: _Piece, answer: Done | Trouble, files: list[Nameless], place: _Place) -> None:
        errand = piece.errand
        if isinstance(answer, Done) and answer.started is not None:
            self._sizes[errand.client] = answer.started.num_parameters
        if isinstance(answer, Trouble) and answer.kind == "short":
            if piece.num_tries < _MOST_TRIES:
                log.warning("%s: %s; trying again, alone on %s", errand.name, answer.sentence, errand.place)
                piece.alone = True
                place.again.append(piece)
                return
            answer = Trouble(kind="short", sentence=self._shortage(errand, answer.sentence))
        self._answer(piece, answer, files, place)

    def _shortage(self, errand: Errand, reason: str) -> str:
        parameters = self._sizes.get(errand.client)
        model = f" with a model of {parameters * 4 / _MEBIBYTE:.0f} MiB" if parameters else ""
        free = processes.available_bytes() / _MEBIBYTE
        return (
            f"{errand.name}{model}, the work could not be done on {errand.place}: {reason}, twice, the second "
            f"time alone; {free:.0f} MiB of memory are free there now. Free more, or take a smaller model or "
            "train.batch_size."
        )

    def _reap(self, seat: _Seat) -> int:
        assert seat.end is not None
        self._selector.unregister(seat.end)
        seat.end.close()
        seat.end = None
        return os.waitpid(seat.process, 0)[1]
