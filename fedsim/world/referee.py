"""Who counts in a round, where clients have devices, come and go, and are waited for no longer than a deadline.

Decided by the virtual clock alone: operations at the device's speed, bytes of the arrays over the link. So it is
the same on every machine, however busy, bit for bit. Who does not count is absent as planned, and not lost:

    away      it was not there when the round began, so it is not asked to train
    dropped   it trained and went (run.drop_rate)
    late      it trained, and its answer came after the deadline; its own model has learned all the same

At least one client counts unless all that are there drop: where all are late, the first of them is waited for.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from fedsim.config import Experiment
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.world import availability, devices, links
from fedsim.world.availability import Trace
from fedsim.world.clock import Air, Part, finish
from fedsim.world.cohort import cohort_of, dropped_of
from fedsim.world.ruling import COUNTS, Ruling
from fedsim.world.work import training_flops


class Referee:
    """Keeps the virtual time of a run. Between rounds `now` is all that it remembers."""

    def __init__(self, experiment: Experiment, federation: Federation):
        self.now = 0.0
        self._run, world = experiment.run, experiment.world_config()
        self._air = Air(links.of_clients(experiment), self._run.seed)
        dealt = devices.of_clients(experiment)
        flops: Sequence[float] = training_flops(experiment, federation) if any(dealt) else ()
        self._seconds = [flops[c] / device.flops_per_second if device else 0.0 for c, device in enumerate(dealt)]
        self._deadline = world.deadline_seconds or math.inf
        self._presence = availability.of(world.availability, self._run.clients, self._run.seed)
        self._require_possible()

    @staticmethod
    def is_needed(experiment: Experiment) -> bool:
        world = experiment.world_config()
        return bool(world.deadline_seconds or world.availability)

    def cohort(self, round: int) -> list[int]:
        """Who is asked to train: those that were drawn, of the clients that are there."""
        begins = self._begins()
        return cohort_of(self._run, round, [c for c in range(self._run.clients) if self._is_there(c, begins)])

    def rule(
        self, round: int, cohort: Collection[int], down_bytes: int, up_bytes: Mapping[int, int]
    ) -> list[Ruling]:
        """Of all clients that were drawn or away. `up_bytes` has those that answered. Time goes on to the round's
        end: to the deadline if anybody was late, else to the last answer."""
        begins = self._begins()
        gone = dropped_of(self._run, round)
        rulings = [
            Ruling(client, "away", begins, begins)
            for client in range(self._run.clients)
            if not self._is_there(client, begins)
        ]
        lengths = {
            client: finish(Part(client, down_bytes, self._seconds[client], up_bytes[client]), self._air, round)
            for client in sorted(set(cohort) & set(up_bytes))
        }
        in_time = [length for client, length in lengths.items() if client not in gone and length <= self._deadline]
        waited = self._deadline
        if not in_time:
            waited = min((length for client, length in lengths.items() if client not in gone), default=waited)
        for client, length in lengths.items():
            outcome = "dropped" if client in gone else COUNTS if length <= waited else "late"
            rulings.append(Ruling(client, outcome, begins, begins + length))
        self.now = begins + min(max(lengths.values(), default=0.0), waited)
        return sorted(rulings, key=lambda ruling: ruling.client)

    def _begins(self) -> float:
        """A round begins as soon as anybody is there."""
        if self._presence is None:
            return self.now
        begins = min(self._presence.next_from(client, self.now) for client in range(self._run.clients))
        if begins == math.inf:
            raise UserError(f"nobody is there any more after {self.now:.0f} s of the virtual clock.")
        return begins

    def _is_there(self, client: int, time: float) -> bool:
        return self._presence is None or self._presence.next_from(client, time) == time

    def _require_possible(self) -> None:
        """Before the first round: can anybody ever count, and is it known for long enough who is there?"""
        run, fastest = self._run, min(finish(Part(c, 0, s, 0), self._air, 0) for c, s in enumerate(self._seconds))
        if fastest > self._deadline:
            raise UserError(
                f"nobody can meet world.deadline_seconds = {self._deadline:g}: the fastest client needs "
                f"{fastest:.3g} s for its training and the delays alone; raise it, or give faster devices."
            )
        if isinstance(self._presence, Trace):
            if self._deadline == math.inf:
                raise UserError("a trace needs world.deadline_seconds, so that it is known how long it must be.")
            if self._presence.ends < (needed := run.rounds * self._deadline):
                raise UserError(
                    f"the trace {self._presence.path} ends after {self._presence.ends:g} s, and {run.rounds} "
                    f"rounds of at most {self._deadline:g} s may take {needed:g} s; give a longer one."
                )
