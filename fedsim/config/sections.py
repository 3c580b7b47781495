"""The sections of an experiment: every option with its type, its limits, its default and what it means."""

import re
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fedsim.contract import Payload
from fedsim.errors import UserError

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
# Finite, because the experiment travels as JSON, which has no infinity.
NonNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
AboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]

MAX_HEARTBEAT_SECONDS = 3600


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all config sections and of every method's `Config`."""

    __module__ = "fedsim.config"  # from where one imports it, and what one is told who derives from something else


class Run(Section, frozen=True, kw_only=True):
    """What is run: changing any of these changes the result."""

    clients: Positive = 10
    """How many there are, each a process with its own data, model and connection."""
    rounds: Positive = 15
    """Of training and aggregation; an evaluation of the last aggregation follows."""
    participation: Fraction = 1.0
    """Share of the clients that train in a round; int(clients × participation), at least one."""
    seed: Count = 1
    """Draws weights, batches, cohorts, and the partition unless data.seed does. Same seed, same bits."""
    evaluate_every: Positive = 1
    """Rounds between evaluations; the last round is always followed by one."""
    metric: Literal["pooled", "client_mean"] = "pooled"
    """pooled: Σ correct / Σ tested over all clients, as the papers do. client_mean: mean of client accuracies."""
    measures: Literal["accuracy", "all"] = "accuracy"
    """all: beside accuracy F1 (macro) and AUC (micro, where logits decide) of each client, the deviation of
    clients' accuracies, and the mean of their worst tenth."""
    drop_rate: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of the clients of a round that train and then drop, so that the server never sees what they learnt."""
    count_partial: bool = False
    """Let a round in which clients were lost be the best or the last one too."""
    rehearsal: bool = False
    """Send messages of the real shapes without training: measures what a round costs, and nothing else."""

    def is_evaluated(self, round: int) -> bool:
        """Whether clients evaluate in this round; the one after the last training always is."""
        return round % self.evaluate_every == 0 or round == self.rounds


class Data(Section, frozen=True, kw_only=True):
    """Which samples, and who holds them."""

    seed: Count = 0
    """Draws the partition, the public samples and the like; 0: run.seed. Set it to compare several run.seed on one
    partition, as the papers do; 1 gives the published partitions."""
    dataset: str = "digits"
    """A name, or your own: the path of a folder, .npz or .csv file, ./FILE.py:FUNCTION, hf:NAME (docs/data.md)."""
    data_dir: str = ""
    """Where to look first; then FEDSIM_DATA, the user's cache, system folders, torchvision's download."""
    image_size: Count = 0
    """Side to which images are resized, files and arrays alike; 0: their own, or 64 where files differ."""
    shape: str = ""
    """What the numbers of a sample are that come as one vector, such as a row of a table: 1x28x28 is an image,
    9x128 a signal of 9 channels. Empty: they stay a vector."""
    label: str = ""
    """Column of a table (.csv, hf:) that holds the classes; empty: label, target, class or y, else the last."""
    group: str = ""
    """Column of a .csv table that says whose sample a row is: a person, a domain; for partition = natural."""
    text: str = ""
    """Column of a .csv table that holds texts to learn from."""
    vocabulary: Count = 0
    """Of texts: the most frequent tokens that are told apart, 3 special ones with them; 0: 32,000 as published."""
    sequence_length: Count = 0
    """Tokens of a text, cut or padded; 0: 200 as published."""
    tokenizer: str = ""
    """A local Hugging Face folder whose tokenizer makes tokens of texts, for its own model (extra `text`)."""
    preparation: Literal["corrected", "published"] = "corrected"
    """published: ag_news, har and pamap2 with the faults of the common scripts (docs/data.md)."""
    partition: Literal["dirichlet", "pathological", "iid", "natural"] = "dirichlet"
    """natural: each client is one subject or domain of the data."""
    beta: AboveZero = 0.1
    """Concentration of the Dirichlet partition; small is heterogeneous."""
    classes_per_client: Positive = 2
    """Classes each client holds in the pathological partition."""
    train_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.75
    min_samples: Count = 0
    """Smallest client that a partition may make; 0: the published rule, from batch size and data size."""
    max_redraws: Positive = 1000
    """How often the Dirichlet partition may be drawn again to satisfy min_samples."""
    stratified: bool = False
    """Split each class of a client by itself; the published split may leave classes that are only tested."""
    samples_per_class: Count = 0
    """Keep only so many samples of each class before the partition; 0: all. On CIFAR-100 with one client
    30, 12 and 3 are FedKTL's 23-, 9- and 2-shot settings."""
    few_shot: Count = 0
    """Samples of each of its classes that a client trains on, at most; its test samples stay; 0: all."""
    public_samples: Count = 0
    """Training samples set aside, without their labels, before the partition (N_p of FedProtoKD)."""
    global_test: bool = False
    """Keep the official test set out of the partition for the server's own metric; where a data set has
    none, a sixth of the samples."""

    @property
    def short_name(self) -> str:
        """The data set in the name of a folder: `./own.csv` is own.csv, `./data.py:load` is data.py-load."""
        return re.sub(r"[^\w.-]", "-", Path(self.dataset).name)


class Model(Section, frozen=True, kw_only=True):
    """Client i gets entry i mod n of the group. A single model's name is a group of one."""

    group: str = "HtCNN8"
    feature_dim: Positive = 512
    """K, the size of the features and so of a prototype."""
    feature_mapping: Literal["published", "pool", "project"] = "published"
    """How a backbone's features become K: by average pooling, by a learnable linear layer, or as published with
    the group (the group FedProtoKD projects, all others pool)."""
    feature_cut: Literal["corrected", "published"] = "corrected"
    """Where the features of text and sensor models end. corrected: before their last layer. published: behind a
    log-softmax (fastText, LogisticRegression, LSTM, GRU), before all fully connected layers (HARCNN)."""
    cifar_stem: bool = False
    """Give networks made for ImageNet a first convolution of 3×3 without stride, and no max pooling after it."""
    relu_logits: bool = False
    """A ReLU after the logits, as in the code published for the HtC4 heads; negative logits then stop learning."""


class Train(Section, frozen=True, kw_only=True):
    """Local training; the optimizer is plain SGD, made anew every round as in the published runs."""

    batch_size: Positive = 10
    local_epochs: Positive = 1
    lr: AboveZero = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    shuffle: bool = False
    """The published runs keep the order that the partition drew."""
    drop_last: bool = True


class Cluster(Section, frozen=True, kw_only=True):
    """How it is run. The same answers give the same result, but for device, deterministic and server_threads, by
    rounding; quorum, deadline_seconds and rejoin_seconds decide whose answers count when some are late or lost."""

    device: Literal["auto", "cpu"] = "auto"
    """auto: the GPUs of each host where there are any. Results on a GPU differ from those on a CPU by rounding."""
    slots: Count = 0
    """Clients that train at once per host or GPU; 0: one per core, or one per GPU."""
    compute: Literal["auto", "own", "shared"] = "auto"
    """own: each client computes in its own process. shared: the clients of a host have it done by a few executors,
    one for each slot, so that memory grows with slots and not with clients. auto: own where all clients fit."""
    deterministic: bool = True
    """On a GPU: the same bits in every run, by deterministic algorithms and without TF32; false is faster."""
    server_threads: Count = 0
    """Threads of the server's optimizer, which runs while clients are idle; 0: every core."""
    quorum: Fraction = 1.0
    """Share of those who are to train in a round, and of those who are only to be tested, that must answer. With
    less than 1 a run goes on when clients are lost for good; such rounds are marked, for they are about fewer."""
    deadline_seconds: AboveZero = 3600.0
    """How long one client may take over one request before the round goes on without it."""
    rejoin_seconds: NonNegative = 30.0
    """How long a round waits for a client that was lost and may come back."""
    join_seconds: AboveZero = 300.0
    """How long the server waits for the next client to join before the first round."""
    patience_seconds: AboveZero = 60.0
    """How long a client looks for a server that has gone before it gives up."""
    heartbeat_seconds: NonNegative = 5.0
    """How often the kernel asks a silent peer whether it is there, 1 to 3600. After six of these without progress
    a connection counts as dead; one whose message is still travelling is alive, however slow."""
    checkpoint_every: Count = 0
    """Rounds between checkpoints; 0: none."""
    track: str = "tensorboard"
    """Where a run's numbers go beside its folder: tensorboard, mlflow, wandb, with commas; empty: nowhere."""
    max_frame_mib: Positive = 1024
    """The largest single array that may travel."""

    def __post_init__(self) -> None:
        if not 1 <= self.heartbeat_seconds <= MAX_HEARTBEAT_SECONDS:
            raise UserError(
                f"cluster.heartbeat_seconds = {self.heartbeat_seconds:g} is not from 1 to "
                f"{MAX_HEARTBEAT_SECONDS}; without heartbeats nobody would notice a link that is cut. They cost "
                "no bytes, and 5 suits most."
            )
        if self.patience_seconds < self.heartbeat_seconds:
            raise UserError(
                f"cluster.patience_seconds = {self.patience_seconds:g} is shorter than cluster.heartbeat_seconds "
                f"= {self.heartbeat_seconds:g}, so clients would give up before they know; raise the patience, or "
                "lower the heartbeat."
            )


Wire = msgspec.defstruct(
    "Wire",
    [
        *((str(kind), str, "plain") for kind in Payload),
        ("ways", Literal["both", "up", "down"], "both"),
        ("error_feedback", bool, False),
    ],
    bases=(Section,),
    namespace={"__doc__": "Which encoding each kind of payload travels in, and whether up, down or both."},
    frozen=True,
    kw_only=True,
    omit_defaults=True,
)
"""Made from the payload kinds, so that a new kind is known here too."""


class World(Section, frozen=True, kw_only=True, omit_defaults=True):
    """What clients have to live with: their links and devices, which say how long things take. Results change only
    where there is a deadline or an availability, by the virtual clock."""

    link: str = ""
    """Of all clients: a profile (fibre, cable, wifi, 4g, 3g, satellite), a description (up=10mbit down=50mbit
    delay=40ms jitter=5ms), or several with weights (wifi:5,4g:3), of which each client draws one by the seed."""
    links: dict[str, str] = {}
    """Of some clients: ids -> link, as `--links FILE` reads them."""
    wait: bool = True
    """Let a cluster on this machine really wait: a relay makes its connections as slow as the links. false: only
    the virtual clock knows of them."""
    device: str = ""
    """Of all clients: a profile (workstation, laptop, phone, old-phone, pi), a description (gflops=10 memory=4gb),
    or several with weights."""
    devices: dict[str, str] = {}
    """Of some clients: ids -> device."""
    deadline_seconds: NonNegative = 0.0
    """Of the virtual clock: whose answer comes later than this after a round began has trained in vain; 0: all
    are waited for."""
    availability: str = ""
    """When clients are there: on=10min off=5min, on average and drawn by the seed, or a .csv file with the columns
    client, from, to; empty: always."""
