"""A client that computes in its own process, on the core or the GPU that is its place."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedsim import assembly
from fedsim.contract import Arrays
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.method import Client, Setting
from nodes import likeness
from nodes.border import unpack_experiment
from nodes.checkpoint import StateFiles
from nodes.client.worker import CannotTakePart, Started
from nodes.launchers import gpus, processes
from nodes.launchers.placement import Placement
from nodes.work import Order, Report, carry_out


class OwnWorker:
    """Keeps the half from the first round to the last. `code` are the user's files that may be run here."""

    def __init__(
        self, client: int, placement: Placement, turnstile: processes.Turnstile, code: Sequence[str] = ()
    ):
        self._client = client
        self._placement = placement
        self._turnstile = turnstile
        self._code = code
        self._device = gpus.Device(placement.device)
        self._half: Client
        self._states: StateFiles
        self._answer: Arrays = {}

    def join(self, welcome: Arrays, states: StateFiles, restore: int) -> Started:
        try:
            experiment = unpack_experiment(welcome, self._code)
        except UserError as error:
            raise CannotTakePart(str(error)) from None
        torch.set_num_threads(1)
        self._device.be_deterministic(experiment.cluster.deterministic)
        self._states = states
        with self._turnstile.through(self._client):
            federation = Federation(experiment)
            self._half = assembly.make_client(experiment, federation, self._client, self._device.open())
            if restore >= 0:
                self._half.load_state(states.load(restore))
            started = started_as(self._half, federation, assembly.setting_of(experiment, federation))
            processes.return_freed_memory()
        return started

    def agree(self, down: Arrays) -> None:
        self._half.receive_setup(down)

    def work(self, order: Order, down: Arrays, slot: int) -> Report:
        if self._placement.cores:
            processes.pin(self._placement.cores[slot])
        report = carry_out(self._half, order, down)
        self._answer = report.arrays
        return replace(report, seconds=report.seconds | self._device.memory())

    def answer(self) -> Arrays:
        return self._answer

    def save(self, round: int, keep: int) -> None:
        self._states.save(round, self._half.state())
        self._states.keep_only(round, keep)

    def rest(self) -> None:
        processes.return_freed_memory()
        self._device.rest()


def started_as(half: Client, federation: Federation, setting: Setting) -> Started:
    """The facts about a half that has just been built."""
    return Started(
        contract=assembly.contract_of(setting.experiment),
        dimensions=setting.dimensions,
        num_train=len(half.data.train),
        num_test=len(half.data.test),
        num_parameters=sum(p.numel() for p in half.model.parameters()),
        facts=likeness.facts_of(federation),
        setup=half.setup(),
    )
