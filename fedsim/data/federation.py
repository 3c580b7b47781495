"""The data side of one experiment: which samples each client holds, what is public, what tests the server."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedsim.config import Data, Experiment
from fedsim.data import partition, sources, store
from fedsim.data.dataset import ClientData, Dataset, Subset
from fedsim.data.inputs import InputShape
from fedsim.errors import UserError
from fedsim.seeds import Streams

GLOBAL_TEST_SHARE = 6
"""Where a data set has no official test set, one sample in six is it, as in CIFAR and about as in MNIST."""


@dataclass
class _Drawn:
    """A partition, and what there is to say of it."""

    parts: list[partition.Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


_DRAWN: dict[tuple[object, ...], _Drawn] = {}
"""The last partition, by all that it depends on: a thousand draws take a second, and processes that are forked
afterwards find it ready."""


class Federation:
    """A pure function of (labels, settings, seed): every process that makes one sees the same partition.

    Nothing is read or drawn before it is asked for. The rows of the data set fall apart into the global test
    set, the public samples and the pool that the clients share.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self._seed = experiment.data.seed or experiment.run.seed
        self._streams = Streams(self._seed)

    @cached_property
    def _stored(self) -> store.Stored:
        settings = self.experiment.data
        wish = sources.Wish(
            text=settings.text,
            vocabulary=settings.vocabulary,
            length=settings.sequence_length,
            tokenizer=settings.tokenizer,
            group=settings.group,
            published=settings.preparation == "published",
        )
        where = settings.dataset, settings.data_dir
        stored = store.open_dataset(*where, settings.image_size, settings.label, wish, settings.shape)
        if stored.client_sizes is not None:
            self._refuse_what_is_ready_made(stored.dataset.name)
        return stored

    def _refuse_what_is_ready_made(self, name: str) -> None:
        settings, defaults = self.experiment.data, Data()
        if settings.public_samples or settings.global_test or settings.samples_per_class:
            raise UserError(
                f"{name} is a ready-made partition that gives all samples to clients; unset "
                "data.public_samples, data.global_test and data.samples_per_class, or choose another data set "
                f"where {self.experiment.method_name} needs them."
            )
        for option in ("partition", "beta", "classes_per_client", "train_fraction", "min_samples", "stratified"):
            if getattr(settings, option) != getattr(defaults, option):
                raise UserError(
                    f"{name} is a ready-made partition, so data.{option} = {getattr(settings, option)} has no "
                    f"effect; leave it at {getattr(defaults, option)}."
                )

    @property
    def dataset(self) -> Dataset:
        return self._stored.dataset

    @property
    def ready_made(self) -> bool:
        """Whether the data set brings its own partition."""
        return self._stored.client_sizes is not None

    @property
    def ready_made_clients(self) -> int | None:
        """Among how many clients it does so."""
        sizes = self._stored.client_sizes
        return None if sizes is None else len(sizes)

    @property
    def num_train(self) -> int:
        """Samples that clients or the public may have for training."""
        return len(self._rows_before(self.dataset.num_train, without=self._global_test_rows))

    @property
    def notes(self) -> list[str]:
        """What whoever starts the experiment should know of its data, a line each."""
        train, parts = self.experiment.train, self._drawn.parts
        idle = sum(len(part.train) < train.batch_size for part in parts) if train.drop_last else 0
        few = (
            f"{idle} of {len(parts)} clients hold less than a batch of {train.batch_size} training samples and "
            "never train; lower train.batch_size or set train.drop_last=false."
        )
        return [*self._drawn.notes, *([few] if idle else [])]

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    @property
    def input_shape(self) -> InputShape:
        return self.dataset.input_shape

    @property
    def public(self) -> Subset:
        """The public samples; their labels cannot be read."""
        if not self.experiment.data.public_samples:
            raise UserError("there are no public samples; set data.public_samples (FedProtoKD uses 2500).")
        return Subset(self.dataset, self._public_rows, labelled=False)

    @property
    def global_test(self) -> Subset:
        """Samples of all classes that no client holds."""
        if not self.experiment.data.global_test:
            raise UserError("there is no global test set; set data.global_test = true.")
        return Subset(self.dataset, self._global_test_rows)

    def client(self, client: int) -> ClientData:
        part = self._drawn.parts[client]
        return ClientData(train=Subset(self.dataset, part.train), test=Subset(self.dataset, part.test))

    def client_name(self, client: int) -> str:
        """Who this client is in a natural partition, such as `subject 3`; nothing in others."""
        if self.experiment.data.partition != "natural" or self.ready_made:
            return ""
        return self._natural_names[client]

    @property
    def num_natural_clients(self) -> int:
        """Subjects or domains of the samples that clients share."""
        return len(self._natural_names)

    @cached_property
    def _natural_names(self) -> list[str]:
        groups = self._pool_groups
        return [self._stored.group_names[group] for group in np.unique(groups)]

    @property
    def _pool_groups(self) -> np.ndarray:
        """Whose samples those of the pool are."""
        if self._stored.groups is None:
            name = self.dataset.name
            hint = {"har": "; its subject_train.txt and subject_test.txt would say so"}.get(name, "")
            raise UserError(
                f"data.partition = natural needs to know whose samples those of {name} are, and its files do not "
                f"tell{hint}; choose dirichlet, pathological or iid, or give data with subjects or domains "
                "(docs/data.md)."
            )
        return self._stored.groups[self._pool_rows]

    def class_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """(M, C) training samples and (M, C) test samples of every client and class."""

        def counts(parts: list[np.ndarray]) -> np.ndarray:
            return np.stack([np.bincount(self.dataset.labels[rows], minlength=self.num_classes) for rows in parts])

        parts = self._drawn.parts
        return counts([part.train for part in parts]), counts([part.test for part in parts])

    @cached_property
    def _global_test_rows(self) -> np.ndarray:
        num_samples, num_train = len(self.dataset.labels), self.dataset.num_train
        if not self.experiment.data.global_test:
            return np.empty(0, dtype=np.int64)
        if num_train < num_samples:
            return np.arange(num_train, num_samples)
        drawn = self._streams.numpy("data/global test").permutation(num_samples)
        return np.sort(drawn[: num_samples // GLOBAL_TEST_SHARE])

    @cached_property
    def _public_rows(self) -> np.ndarray:
        wanted = self.experiment.data.public_samples
        candidates = self._rows_before(self.dataset.num_train, without=self._global_test_rows)
        if wanted >= len(candidates):
            raise UserError(
                f"data.public_samples = {wanted} leaves nothing of the {len(candidates)} training samples of "
                f"{self.dataset.name}; ask for fewer, as in --set data.public_samples={len(candidates) // 5}."
            )
        return np.sort(self._streams.numpy("data/public").permutation(candidates)[:wanted])

    @cached_property
    def _pool_rows(self) -> np.ndarray:
        """What the clients share, in dataset order. The published rule merges training and test set."""
        end = self.dataset.num_train if self._stored.train_only else len(self.dataset.labels)
        taken = np.concatenate([self._global_test_rows, self._public_rows])
        pool = self._rows_before(end, without=taken)
        if wanted := self.experiment.data.samples_per_class:
            pool = self._few_per_class(pool, wanted)
        return pool

    def _rows_before(self, end: int, *, without: np.ndarray) -> np.ndarray:
        free = np.ones(len(self.dataset.labels), dtype=bool)
        free[without] = False
        return np.flatnonzero(free[:end])

    def _few_per_class(self, pool: np.ndarray, wanted: int) -> np.ndarray:
        shuffled = self._streams.numpy("data/samples per class").permutation(pool)
        labels = self.dataset.labels[shuffled]
        counts = np.bincount(labels, minlength=self.num_classes)
        if counts.min() < wanted:
            raise UserError(
                f"class {counts.argmin()} of {self.dataset.name} has {counts.min()} samples, fewer than "
                f"data.samples_per_class = {wanted}; ask for at most {counts.min()}."
            )
        grouped = shuffled[np.argsort(labels, kind="stable")]
        starts = np.cumsum(counts) - counts
        return np.sort(grouped[(starts[:, None] + np.arange(wanted)).ravel()])

    @cached_property
    def fingerprint(self) -> str:
        """Equal where every client has the same rows in the same order."""
        digest = hashlib.sha256()
        for part in self._drawn.parts:
            for rows in (part.train, part.test):
                digest.update(f"/{len(rows)}".encode() + rows.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def _drawn(self) -> _Drawn:
        settings, num_clients = self.experiment.data, self.experiment.run.clients
        key = self.dataset.fingerprint, settings, num_clients, self._seed, self.experiment.train.batch_size
        if key not in _DRAWN:
            drawn = self._draw()
            _DRAWN.clear()
            _DRAWN[key] = drawn
        return _DRAWN[key]

    def _draw(self) -> _Drawn:
        """Every client's rows. One stream is drawn from throughout, first the partition, then each split."""
        if self._stored.client_sizes is not None:
            parts = self._ready_made_parts(self._stored.client_sizes)
            return _Drawn([self._few_shots(part) for part in parts])
        settings, drawn = self.experiment.data, _Drawn()
        labels = self.dataset.labels[self._pool_rows]
        # numpy's legacy generator takes 32 bits; the published partitions are those of seed 1.
        random = np.random.RandomState(self._seed % 2**32)
        for client, rows in enumerate(self._partition(labels, random, drawn.notes)):
            if int(settings.train_fraction * len(rows)) == 0:
                public = settings.public_samples
                others = f" that {public} public ones leave" if public else ""
                remedy = "lower data.public_samples or run.clients, " if public else "lower run.clients "
                name = self.client_name(client)
                raise UserError(
                    f"client {client}{f' ({name})' if name else ''} gets {len(rows)} of {len(labels)} "
                    f"samples{others}, too few for a training "
                    f"part of {settings.train_fraction:.0%}; {remedy}or raise data.min_samples."
                )
            if settings.stratified:
                part = partition.stratified_split(rows, labels[rows], settings.train_fraction, random)
            else:
                part = partition.split(rows, settings.train_fraction, random)
            own = partition.Part(self._pool_rows[part.train], self._pool_rows[part.test])
            drawn.parts.append(self._few_shots(own))
        return drawn

    def _few_shots(self, part: partition.Part) -> partition.Part:
        """The first samples of each class to train on, as many as `data.few_shot` allows; all to be tested on."""
        if not (most := self.experiment.data.few_shot):
            return part
        labels = self.dataset.labels[part.train]
        before = [(labels[:row] == label).sum() for row, label in enumerate(labels)]
        return partition.Part(part.train[np.array(before, dtype=np.int64) < most], part.test)

    def _partition(self, labels: np.ndarray, random: np.random.RandomState, notes: list[str]) -> list[np.ndarray]:
        settings, num_clients = self.experiment.data, self.experiment.run.clients
        batch_size = self.experiment.train.batch_size
        least = settings.min_samples or partition.least_samples(
            batch_size, settings.train_fraction, len(labels), num_clients
        )
        match settings.partition:
            case "dirichlet":
                try:
                    return partition.dirichlet(
                        labels, self.num_classes, num_clients, settings.beta, least, settings.max_redraws, random
                    )
                except partition.TooUneven as error:
                    if settings.min_samples or not error.best:
                        raise
                    notes.append(
                        f"{self.dataset.name} is small for {num_clients} clients: the best Dirichlet draw at β = "
                        f"{settings.beta:g} left one with {error.smallest} samples, so the largest clients gave "
                        f"some of theirs until all had {least}."
                    )
                    return partition.levelled(error.best, least)
            case "pathological":
                return partition.pathological(
                    labels, self.num_classes, num_clients, settings.classes_per_client, least, random
                )
            case "iid":
                return partition.iid(labels, num_clients)
            case "natural":
                return partition.natural(self._pool_groups, num_clients, self.dataset.name)

    def _ready_made_parts(self, client_sizes: np.ndarray) -> list[partition.Part]:
        """A PFLlib folder brings its own partition: all clients' training parts, then their test parts."""
        wanted = self.experiment.run.clients
        if wanted != len(client_sizes):
            raise UserError(
                f"{self.dataset.name} is a ready-made partition for {len(client_sizes)} clients, not for "
                f"{wanted}; set run.clients = {len(client_sizes)}."
            )
        train_ends, test_ends = np.cumsum(client_sizes, axis=0).T
        train = np.split(np.arange(self.dataset.num_train), train_ends[:-1])
        test = np.split(np.arange(self.dataset.num_train, len(self.dataset.labels)), test_ends[:-1])
        return [partition.Part(*rows) for rows in zip(train, test, strict=True)]
