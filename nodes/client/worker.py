"""What a client's process asks of whoever computes for it.

The process itself has the socket, the keys and the border; it never touches a tensor. Its worker does, such as
`own.OwnWorker`, which computes in this very process. Arrays go in and come out as the contract has them: the
border has looked at them, or will.
"""

from dataclasses import dataclass
from typing import Protocol

from fedsim.contract import Arrays, Contract
from fedsim.errors import UserError
from nodes.checkpoint import StateFiles
from nodes.work import Order, Report


@dataclass(frozen=True, kw_only=True)
class Started:
    """What is known of a client once its half stands."""

    contract: Contract
    dimensions: dict[str, int]
    """The letters that the contract's shapes use."""
    num_train: int
    num_test: int
    num_parameters: int
    facts: dict[str, str]
    """By which machines are compared."""
    setup: Arrays
    """What goes up once, before the first round."""


class CannotTakePart(UserError):
    """Here this client's work cannot be done. The run is not at fault: it may go on without this client."""


class Worker(Protocol):
    """Computes as one client of one run after the other."""

    def join(self, welcome: Arrays, states: StateFiles, restore: int) -> Started:
        """Build the client's half from the experiment that Welcome carries, anew for every run.

        `restore` is the round of the saved state that it takes up; -1 for a fresh start.
        """

    def agree(self, down: Arrays) -> None:
        """The server's answer to all set-ups, once."""

    def work(self, order: Order, down: Arrays, slot: int) -> Report:
        """One round's part, on this slot of the client's place."""

    def answer(self) -> Arrays:
        """What the last work sent up, once more."""

    def save(self, round: int, keep: int) -> None:
        """Write the state down as that of this round, and forget all others but `keep`."""

    def rest(self) -> None:
        """There has been nothing to do for a while: others may have the memory that the last work needed."""
