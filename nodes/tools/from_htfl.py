"""An HtFLlib command line as one of ours, and what is not the same.

The other library's flags, defaults and the flags that each algorithm reads are those of its commit e959261. Values
that a flag has by default there are written out, since ours may differ.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from fedsim.errors import UnknownName, UserError

T = TypeVar("T")


class Flag(NamedTuple):
    """A flag of HtFLlib: its short and long name, and its value unless it is given."""

    short: str
    long: str
    default: str = ""


FLAGS = [
    *(Flag("algo", "algorithm"), Flag("data", "dataset", "MNIST"), Flag("m", "model_family", "HtM10")),
    *(Flag("nc", "num_clients", "2"), Flag("gr", "global_rounds", "2000"), Flag("jr", "join_ratio", "1.0")),
    *(Flag("lbs", "batch_size", "10"), Flag("ls", "local_epochs", "1"), Flag("eg", "eval_gap", "1")),
    *(Flag("lr", "local_learning_rate", "0.01"), Flag("fd", "feature_dim", "512"), Flag("t", "times", "1")),
    *(Flag("go", "goal"), Flag("dev", "device"), Flag("did", "device_id"), Flag("ncl", "num_classes")),
    *(Flag("ld", "learning_rate_decay"), Flag("ldg", "learning_rate_decay_gamma"), Flag("tc", "top_cnt")),
    *(Flag("ab", "auto_break"), Flag("rjr", "random_join_ratio"), Flag("pv", "prev"), Flag("vs", "vocab_size")),
    *(Flag("ml", "max_len"), Flag("sfn", "save_folder_name"), Flag("mfn", "models_folder_name")),
    *(Flag("fs", "few_shot", "0"), Flag("cdr", "client_drop_rate", "0"), Flag("tsr", "train_slow_rate")),
    *(Flag("ssr", "send_slow_rate"), Flag("ts", "time_select"), Flag("tth", "time_threthold")),
    *(Flag("lam", "lamda", "1.0"), Flag("nd", "noise_dim", "512"), Flag("hd", "hidden_dim", "512")),
    *(Flag("glr", "generator_learning_rate", "0.005"), Flag("se", "server_epochs", "100")),
    *(Flag("al", "alpha", "1.0"), Flag("bt", "beta", "1.0"), Flag("mlr", "mentee_learning_rate", "0.01")),
    *(Flag("Ts", "T_start", "0.95"), Flag("Te", "T_end", "0.98"), Flag("slr", "server_learning_rate", "0.01")),
    *(Flag("mart", "margin_threthold", "100.0"), Flag("GPath", "generator_path"), Flag("gbs", "gen_batch_size")),
    *(
        Flag("prompt", "stable_diffusion_prompt"),
        Flag("sbs", "server_batch_size", "100"),
        Flag("mu", "mu", "50.0"),
    ),
    *(Flag("sfd", "sub_feature_dim", "128"), Flag("wu", "warm_up_rounds", "50")),
    *(Flag("mdb", "meta_study_batches", "1"), Flag("mqb", "meta_quiz_batches", "1")),
]

_DEFAULTS = {flag.long: flag.default for flag in FLAGS}

EVERYWHERE = {
    "num_clients": "--clients",
    "global_rounds": "--rounds",
    "join_ratio": "--participation",
    "batch_size": "--batch-size",
    "local_epochs": "--local-epochs",
    "local_learning_rate": "--lr",
    "feature_dim": "--feature-dim",
}
"""Flags that every algorithm reads, and ours."""
SETTINGS = {"eval_gap": "run.evaluate_every", "few_shot": "data.few_shot", "client_drop_rate": "run.drop_rate"}
"""Likewise, as settings that are written only where they say more than nothing."""


@dataclass(frozen=True)
class Algorithm:
    """Our method, which flags it reads as which of our options, and what differs from ours unless it is set."""

    method: str
    options: dict[str, str] = field(default_factory=dict)
    always: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()


_FML = {"alpha": "task_weight", "beta": "auxiliary_task_weight"}
_MUTUAL = ("method.detach_teacher=false", "method.kl_mean=element")
_KTL = {
    "generator_path": "generator",
    "lamda": "mse_weight",
    "mu": "transfer_weight",
    "server_epochs": "server_epochs",
    "server_batch_size": "server_batch_size",
    "server_learning_rate": "server_lr",
}
_STALE = "clients there upload prototypes of the model before training; the command asks for the same"

ALGORITHMS = {
    "Local": Algorithm("local"),
    "FedProto": Algorithm("fedproto", {"lamda": "prototype_weight"}),
    "FedGen": Algorithm(
        "fedgen",
        {
            "noise_dim": "noise_dim",
            "hidden_dim": "hidden_dim",
            "generator_learning_rate": "generator_lr",
            "server_epochs": "server_steps",
        },
        ("method.frozen_generator=true",),
        ("the trained generator is never stored there, so the command asks for a frozen one",),
    ),
    "FD": Algorithm("feddistill", {"lamda": "logit_weight"}, ("method.logit_loss=raw",)),
    "LG-FedAvg": Algorithm("lg_fedavg"),
    "FML": Algorithm("fml", _FML, _MUTUAL, ("a loss trains both models there, as the command asks for",)),
    "FedKD": Algorithm(
        "fedkd",
        {"mentee_learning_rate": "auxiliary_lr", "T_start": "energy_start", "T_end": "energy_end"},
        (*_MUTUAL, "method.detach_divisor=false"),
        ("a matrix that needs its full rank arrives as zeros there, and here as it is",),
    ),
    "FedGH": Algorithm("fedgh", {"server_learning_rate": "server_lr", "server_epochs": "server_epochs"}),
    "FedTGP": Algorithm(
        "fedtgp",
        {"lamda": "prototype_weight", "server_epochs": "server_epochs", "margin_threthold": "tau"},
        ("method.stale_prototypes=true",),
        (_STALE,),
    ),
    **{
        f"FedKTL-{name}": Algorithm("fedktl", _KTL, ("method.trainable_centroids=true",))
        for name in ("stylegan-xl", "stylegan-3", "stable-diffusion")
    },
}

_MRL = {"sub_feature_dim": "common_dim"}
_L2G = {
    "warm_up_rounds": "warm_up_rounds",
    "meta_study_batches": "study_batches",
    "meta_quiz_batches": "quiz_batches",
    "server_learning_rate": "server_lr",
}
ALGORITHMS |= {
    "FedMRL": Algorithm(
        "fedmrl",
        _MRL,
        ("method.aggregation=mean", "method.forget_projection=true"),
        ("the trained projection is never saved there; the command asks for the same",),
    ),
    "FedL2G-feat": Algorithm("fedl2g", _L2G, ("method.guide=features",)),
    "FedL2G-logit": Algorithm("fedl2g", _L2G, ("method.guide=logits",)),
}

FAMILIES = {
    **{
        name: name
        for name in ("HtFE-img-5", "HtFE-txt-2", "HtFE-txt-4", "HtFE-txt-6", "MLPs", "MLP_1layer", "MLP_layers")
    },
    **{f"HtFE-img-{n}": f"HtFE{n}" for n in (2, 3, 4, 8, 9)},
    **{f"HtFE-txt-5-{n}": f"HtFE-txt-5-{n}" for n in (1, 2, 3)},
    **{f"HtFE-sen-{n}": f"HtFE-sen-{n}" for n in (2, 3, 5, 8)},
    "HtFE-img-8-HtC-img-4": "HtFE8-HtC4",
    "Res34-HtC-img-4": "Res34-HtC4",
    "HtM-img-10": "HtM10",
    "HtM10": "HtM10",
}
DATA = {
    "mnist": "mnist",
    "fashionmnist": "fmnist",
    "fmnist": "fmnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "flowers102": "flowers102",
    "tinyimagenet": "tiny_imagenet",
    "svhn": "svhn",
    "agnews": "ag_news",
    "har": "har",
    "pamap2": "pamap2",
}

_NO_DECAY = "the learning rate does not decay; a method of your own may override Client.optimizer"
_DEADLINE = "--set cluster.deadline_seconds=S leaves out who takes longer"
INSTEAD = {
    "num_classes": "the number of classes is that of the data",
    "learning_rate_decay": _NO_DECAY,
    "learning_rate_decay_gamma": _NO_DECAY,
    "auto_break": "a run plays all its rounds; Ctrl-C keeps the results so far, the best round included",
    "top_cnt": "it belongs to -ab, which has no counterpart",
    "random_join_ratio": "--participation is the same share in every round",
    "prev": "runs are told apart by --seed and by their folders",
    "save_folder_name": "clients keep their models; --out names the run's folder, --checkpoint-every saves",
    "models_folder_name": "models start from drawn weights; an own model may load its weights itself",
    "train_slow_rate": _DEADLINE,
    "send_slow_rate": _DEADLINE,
    "time_select": _DEADLINE,
    "time_threthold": _DEADLINE,
    "vocab_size": "the vocabulary is that of the data",
    "max_len": "the length of a text is that of the data",
    "stable_diffusion_prompt": "the prompt is a constant, PROMPT in fedsim/generators/stable_diffusion.py",
    "gen_batch_size": "images are generated in batches of the generator's own size",
}
"""Flags without a counterpart, and what to do."""

SAME = (
    "compare their 'Averaged Test Accuracy' with our accuracy: correct over tested, summed over clients",
    "round r here is tested before its training, as there; the last aggregation is tested once more",
    "--dataset PATH/TO/dataset/NAME takes the folder that their generator made, as it is; without it the same "
    "rule (Dirichlet 0.1, 75 % for training) draws the partition",
)


@dataclass
class Translation:
    """Our command, and what a reader must know of it."""

    command: list[str]
    notes: list[str]

    def __str__(self) -> str:
        return shlex.join(self.command)


def translate(text: str) -> Translation:
    """`-algo FedTGP -m HtFE-img-8 -data Cifar10`, with or without what stands before the first flag."""
    given = dict(_pairs(shlex.split(text)))
    values = _DEFAULTS | given
    algorithm = _look_up("algorithm", values["algorithm"] or "FedAvg", ALGORITHMS)
    times = _number(values, "times")
    command = ["fedsim", "sweep" if times > 1 else "run", "--method", algorithm.method]
    command += ["--dataset", _look_up("dataset", values["dataset"], DATA, _plain)]
    command += ["--model-group", _look_up("model family", values["model_family"], FAMILIES)]
    for name, option in EVERYWHERE.items():
        command += [option, values[name]]
    for name, setting in SETTINGS.items():
        if values[name] != _DEFAULTS[name]:
            command += ["--set", f"{setting}={values[name]}"]
    for name, option in algorithm.options.items():
        if values[name]:
            command += ["--set", f"method.{option}={values[name]}"]
    command += [word for setting in algorithm.always for word in ("--set", setting)]
    if given.get("device") == "cpu":
        command += ["--set", "cluster.device=cpu"]
    if times > 1:
        command += ["--seeds", ",".join(str(seed) for seed in range(1, times + 1)), "--data-seeds", "1"]
    elif given.get("goal"):
        command += ["--out", f"runs/{given['goal']}"]
    return Translation(command, [*algorithm.differs, *_left_out(given, algorithm), *SAME])


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """(long name, value); words before the first flag are `python main.py`."""
    known = {f"-{flag.short}": flag.long for flag in FLAGS} | {f"--{flag.long}": flag.long for flag in FLAGS}
    start = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    rest = iter(words[start:])
    for word in rest:
        name, sign, value = word.partition("=")
        if name not in known:
            raise UserError(
                f"HtFLlib has no flag {name!r}; give its command as it is, such as -algo FedTGP -data Cifar10."
            )
        found = value if sign else next(rest, None)
        if found is None:
            raise UserError(f"{name} has no value; HtFLlib's flags all take one.")
        yield known[name], found


def _left_out(given: dict[str, str], algorithm: Algorithm) -> Iterator[str]:
    """What was asked for and is not in the command."""
    used = {*EVERYWHERE, *SETTINGS, *algorithm.options, "algorithm", "dataset", "model_family", "times", "goal"}
    for flag in FLAGS:
        if flag.long in given and flag.long == "device_id":
            yield f"-did: set CUDA_VISIBLE_DEVICES={given['device_id']} before the command; clients share its GPUs"
        elif flag.long in given and flag.long not in used | {"device"}:
            reason = INSTEAD.get(flag.long, f"{algorithm.method} does not read it, here or there")
            yield f"-{flag.short} {given[flag.long]} has no counterpart: {reason}"


def _look_up(what: str, name: str, table: dict[str, T], key: Callable[[str], str] = str) -> T:
    if key(name) not in table:
        raise UnknownName(f"{what} of HtFLlib that we know", name, list(table))
    return table[key(name)]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _number(values: dict[str, str], name: str) -> int:
    if not values[name].isdecimal():
        raise UserError(f"{name} = {values[name]!r} is not a whole number.")
    return int(values[name])
