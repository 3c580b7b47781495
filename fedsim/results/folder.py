"""The run folder. It is enough to reproduce, resume or redraw a run.

config.toml      the complete experiment
code/            copies of the user's own files that it names
partition.csv    how many samples of which class each client holds
metrics.csv      one row a round; the same bits for the same config and seed, however it was run
clients.csv      one row a round and client, likewise
timings.csv      where each client's time went (never the same twice)
server_timings.csv  where the time of the server's step went, and the processors' time
world.csv        who counted in a round by the virtual clock, where that decides; the same bits likewise
ledger.csv       every byte, by round, client, direction, message and payload
events.jsonl     what happened, as it happened
metrics.tfevents settings and what each round reports, for TensorBoard
records/         arrays that a method's server recorded, one file a round
final.safetensors  what the server would send next: the final global knowledge
summary.json     the numbers of the closing table, and where they come from
report.html, plots/  all of it for people, drawn when the run is over
logs/, checkpoints/
"""

import csv
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import load_file, save

from fedsim.config import Experiment, build, read_toml, to_layer
from fedsim.errors import UserError, writing_to
from fedsim.learning.stopwatch import Spent
from fedsim.metrics import CLIENT_COLUMNS, GPU_PEAK_BYTES
from fedsim.own import files
from fedsim.results.trackers.tensorboard import FILE_NAME as TENSORBOARD_FILE
from fedsim.results.trackers.tensorboard import EventFile
from fedsim.version import __version__
from fedsim.world.ruling import Ruling

PARTITION_COLUMNS = ("client", "class", "train", "test")
TIMING_COLUMNS = ("round", "client", "receive", "evaluate", "train", "upload", "save", "round_trip")
WORLD_COLUMNS = ("round", "client", "outcome", "begins", "ends")
SERVER_TIMING_COLUMNS = ("round", "part", "seconds", "cpu_seconds")
_MADE_BY = "# fedsim "
"""The first line of config.toml, before the version."""
BY_ROUND = ("metrics.csv", "clients.csv", "timings.csv", "server_timings.csv", "world.csv")


class RunFolder:
    """Writes a run's files as the run goes on."""

    def __init__(self, path: Path):
        self.path = path
        self.provenance: Mapping[str, Any] = {}
        """Taken down when a run begins, see `provenance`; part of its summary."""

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> "RunFolder":
        """A new folder; one that exists is never written over."""
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UserError(
                f"the results folder {path} exists already; choose another with --out, or go on with --resume."
            ) from None
        except OSError as error:
            raise UserError(f"the results folder {path} cannot be made: {error.strerror}.") from None
        with writing_to(path):
            (path / "logs").mkdir()
            layer = files.save_copies(to_layer(experiment), path / "code")
            _replace(path / "config.toml", f"{_MADE_BY}{__version__}\n{tomli_w.dumps(layer)}".encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        if not (path / "config.toml").is_file():
            raise UserError(f"{path} is not a run folder: it has no config.toml.")
        return cls(path)

    @property
    def version(self) -> str:
        """Of the fedsim that made it; empty where it does not say."""
        first, _, _ = (self.path / "config.toml").read_text().partition("\n")
        return first.removeprefix(_MADE_BY) if first.startswith(_MADE_BY) else ""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Two servers that write into one folder would mix up their results."""
        with (self.path / "config.toml").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"the run in {self.path} is being worked on by another process; wait for its end."
                ) from None
            yield

    def experiment(self) -> Experiment:
        """With the folder's own copies of the code that it names."""
        files.check_copies(self.path / "code")
        layer = read_toml(self.path / "config.toml")
        if layer.get("cluster", {}).get("heartbeat_seconds") == 0:  # as older runs had it; it changes no result
            del layer["cluster"]["heartbeat_seconds"]
        return build([layer])

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def write_partition(self, train_MC: np.ndarray, test_MC: np.ndarray) -> None:
        """Samples by client and class; pairs without any have no row."""
        held = np.argwhere(train_MC + test_MC)
        rows = [
            {"client": client, "class": label, "train": train_MC[client, label], "test": test_MC[client, label]}
            for client, label in held
        ]
        _rewrite(self.path / "partition.csv", PARTITION_COLUMNS, rows)

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        _extend(self.path / "metrics.csv", (), [row])

    def add_client_metrics(self, round: int, metrics: Mapping[int, Mapping[str, float]]) -> None:
        _extend(self.path / "clients.csv", CLIENT_COLUMNS, _of_clients(round, metrics))

    def add_timings(self, round: int, seconds: Mapping[int, Mapping[str, float]]) -> None:
        """And the memory of GPUs, where there are any."""
        columns = (*TIMING_COLUMNS, GPU_PEAK_BYTES)
        rows = _of_clients(round, seconds)
        wanted = [{name: row[name] for name in columns if name in row} for row in rows]
        _extend(self.path / "timings.csv", TIMING_COLUMNS, wanted)

    def add_server_timings(self, round: int, parts: Mapping[str, Spent]) -> None:
        rows = [{"round": round, "part": part, **asdict(spent)} for part, spent in parts.items()]
        _append(self.path / "server_timings.csv", SERVER_TIMING_COLUMNS, rows)

    def add_rulings(self, round: int, rulings: Sequence[Ruling]) -> None:
        rows = [{**asdict(ruling), "round": round} for ruling in rulings]
        _append(self.path / "world.csv", WORLD_COLUMNS, rows)

    def add_records(self, round: int, records: Mapping[str, np.ndarray]) -> None:
        if records:
            folder = self.path / "records"
            folder.mkdir(exist_ok=True)
            (folder / f"round-{round:06d}.safetensors").write_bytes(save(_contiguous(records)))

    def write_ledger(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            _rewrite(self.path / "ledger.csv", list(rows[0]), rows)

    def write_final(self, arrays: Mapping[str, np.ndarray]) -> None:
        _replace(self.path / "final.safetensors", save(_contiguous(arrays)))

    def final(self) -> dict[str, np.ndarray]:
        """The final global knowledge; empty for a method that sends none."""
        path = self.path / "final.safetensors"
        return dict(load_file(path)) if path.exists() else {}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        whole = {**summary, "provenance": self.provenance} if self.provenance else summary
        _replace(self.path / "summary.json", (json.dumps(whole, indent=2) + "\n").encode())

    def summary(self) -> dict[str, Any] | None:
        """None when the run did not get as far as writing one."""
        path = self.path / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def forget_after(self, round: int) -> None:
        """Before a run is resumed: drop all rows of rounds that will be played again."""
        EventFile(self.path / TENSORBOARD_FILE).forget_after(round)
        for name in BY_ROUND:
            columns, rows = _read(self.path / name)
            if columns:
                _rewrite(self.path / name, columns, [row for row in rows if int(row["round"]) <= round])


def _of_clients(round: int, of_client: Mapping[int, Mapping[str, float]]) -> list[Mapping[str, float]]:
    return [{**values, "round": round, "client": client} for client, values in sorted(of_client.items())]


def _extend(path: Path, first: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows. Columns that the file does not have come after its own; in earlier rows they are empty."""
    known = _columns(path)
    columns = list(dict.fromkeys([*(known or first), *(name for row in rows for name in row)]))
    if columns == known:
        _append(path, columns, rows)
    else:
        _rewrite(path, columns, [*_read(path)[1], *rows])


def _columns(path: Path) -> list[str]:
    """The first line is enough: files grow with rounds and clients, and rows are added in every round."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    if not path.exists():
        return [], []
    text = path.read_text()
    reader = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())  # a line cut off by a crash does not count
    return list(reader.fieldnames or []), list(reader)


def _append(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def _rewrite(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)
    _append(temporary, columns, rows)
    temporary.rename(path)


def _replace(path: Path, content: bytes) -> None:
    """All of it or nothing, whenever the run is killed or the disk is full."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(content)
    temporary.rename(path)


def _contiguous(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}
