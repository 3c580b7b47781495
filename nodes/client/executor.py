"""An executor: computes as one client after the other, for the clients of its host that share a core or a GPU.

It keeps what is the same for all of them: torch, the device, the mapped data, and a model of each architecture as
it is before the first round. All that is one client's own comes with the errand and leaves with the answer: its
half is built anew, its set-up replayed, its state loaded. Nothing of it stays, so no result tells who came before.
"""

import gc
import os
import socket
import time
import traceback
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict

import numpy as np
import torch

from fedsim import assembly, models
from fedsim.config import Experiment
from fedsim.contract import DIRECTIONS, Arrays
from fedsim.data import Federation, feeding
from fedsim.errors import UserError
from fedsim.method import Client
from fedsim.models import SplitModel
from nodes import failures
from nodes.border import unpack_experiment
from nodes.client import errands
from nodes.client.errands import Done, Errand, FieldNote, StartedNote, Trouble
from nodes.client.nameless import Nameless
from nodes.client.own import started_as
from nodes.client.worker import Started
from nodes.launchers import gpus, processes
from nodes.launchers.placement import Placement
from nodes.work import carry_out

_IDLE_SECONDS = 5.0  # then others may have the memory that the last work needed

Files = dict[str, Arrays]


def run_executor(end: socket.socket, slot: int, placement: Placement, code: Sequence[str]) -> int:
    """The main function of an executor's process: until the host hangs up."""
    os.environ.update(placement.environment)
    if placement.cores:
        processes.pin(placement.cores[slot])
    bench = Bench(gpus.Device(placement.device), code)
    while True:
        end.settimeout(_IDLE_SECONDS)
        try:
            received = errands.receive(end)
        except TimeoutError:
            bench.rest()
            end.settimeout(None)
            received = errands.receive(end)
        if received is None:
            return 0
        errand, files = received
        assert isinstance(errand, Errand)
        answer, made = bench.take(errand, files)
        errands.send(end, answer, made)
        for file in (*files, *made):
            file.close()


class Bench:
    """Where errands are done, on one device."""

    def __init__(self, device: gpus.Device, code: Sequence[str] = ()):
        self._device = device
        self._code = code
        self._run: _Run | None = None

    def take(self, errand: Errand, files: Sequence[Nameless]) -> tuple[Done | Trouble, list[Nameless]]:
        """Do it; what goes wrong is told, and harms nobody else."""
        try:
            return self._do(errand, {name: file.arrays() for name, file in zip(errand.files, files, strict=True)})
        except Exception as error:
            return _trouble(error), []
        finally:
            gc.collect()  # a half may hold itself, and with it all its weights

    def rest(self) -> None:
        """Give back what is kept for the next batch."""
        processes.return_freed_memory()
        self._device.rest()

    def _do(self, errand: Errand, files: Files) -> tuple[Done, list[Nameless]]:
        torch.set_num_threads(1)  # whatever own code has set
        clock = time.perf_counter()
        run = self._run_of(files["welcome"])
        half, started = run.half(errand.client, files)
        if errand.order is None:
            return Done(started=_note(started)), [Nameless.of(started.setup)]
        restored = time.perf_counter()
        report = carry_out(half, errand.order, files["down"])
        worked = time.perf_counter()
        made = [Nameless.of(report.arrays), Nameless.of(half.state())]
        seconds = {"restore": restored - clock, "keep": time.perf_counter() - worked} | self._device.memory()
        return Done(metrics=report.metrics, seconds=report.seconds | seconds), made

    def _run_of(self, welcome: Arrays) -> "_Run":
        """Of one run after the other: a server that was started again sends the same experiment."""
        key = {name: array.tobytes() for name, array in welcome.items()}
        if self._run is None or self._run.key != key:
            self._run = None
            feeding.forget()
            try:
                experiment = unpack_experiment(welcome, self._code)
            except UserError as error:
                raise _Refused(str(error)) from None
            self._device.be_deterministic(experiment.cluster.deterministic)
            self._run = _Run(key, experiment, self._device.open())
            if not experiment.run.rehearsal:
                self._keep_samples(self._run.federation.dataset.inputs)
        return self._run

    def _keep_samples(self, inputs: np.ndarray) -> None:
        """On the device, where all clients find them, if they are small."""
        if self._device.can_keep(inputs.nbytes):
            feeding.keep(inputs, self._device.torch)


class _Refused(UserError):
    """The code here is not the run's."""


class _Run:
    """What is the same for all clients of an experiment."""

    def __init__(self, key: dict[str, bytes], experiment: Experiment, device: torch.device):
        self.key = key
        self._experiment = experiment
        self._device = device
        self.federation = Federation(experiment)
        self._setting = assembly.setting_of(experiment, self.federation)
        self._models: dict[str, SplitModel] = {}

    def half(self, client: int, files: Files) -> tuple[Client, Started]:
        """A client as it was when its files were written."""
        model = None if self._experiment.run.rehearsal else deepcopy(self._first_model(client))
        half = assembly.make_client(self._experiment, self.federation, client, self._device, model)
        started = started_as(half, self.federation, self._setting)
        if "agreed" in files:
            half.receive_setup(files["agreed"])
        if "state" in files:
            half.load_state(files["state"])
        return half, started

    def _first_model(self, client: int) -> SplitModel:
        """The same for all clients of one architecture; kept where there is most room, which is not on a GPU."""
        name = models.architecture(self._experiment.model, client)
        if name not in self._models:
            self._models[name] = assembly.first_model(self._experiment, self.federation, client)
        return self._models[name]


def _note(started: Started) -> StartedNote:
    contract = {
        way: {
            name: FieldNote(str(field.payload), field.shape, field.dtype)
            for name, field in getattr(started.contract, way).items()
        }
        for way in DIRECTIONS
    }
    facts = {name: value for name, value in asdict(started).items() if name not in ("contract", "setup")}
    return StartedNote(contract=contract, **facts)


def _trouble(error: Exception) -> Trouble:
    if _is_shortage(error):
        return Trouble(kind="short", sentence=failures.sentence(error))
    if isinstance(error, _Refused):
        return Trouble(kind="refused", sentence=str(error))
    explained = failures.explained(error, "").rstrip()  # the client knows where its log is
    traces = traceback.format_exc()[-errands.MAX_TRACEBACK_CHARS :]
    return Trouble(kind="failed", sentence=explained, traceback=traces)


def _is_shortage(error: Exception) -> bool:
    """Whether memory gave out, of this machine or of its GPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
