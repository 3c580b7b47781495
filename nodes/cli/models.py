"""`fedsim models`: which models there are, what they cost, and which client gets which."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Column, Table

from fedsim.errors import UserError
from nodes.cli._values import OF_OPTIONS

if TYPE_CHECKING:
    from fedsim.models.flops import Profile

BILLION = 1e9


@click.group()
def command() -> None:
    """The models and groups of models that clients can have."""


@command.command("list")
def list_groups() -> None:
    """List the published groups and the single models."""
    from fedsim.models import groups

    table = Table("group", "models", "client i gets model i mod X")
    for name in groups.GROUPS:
        entries = groups.entries(name)
        table.add_row(name, str(len(entries)), ", ".join(entry.name for entry in entries))
    console = Console()
    console.print(table)
    console.print(f"Groups of one: {', '.join(groups.MODELS)}.")
    console.print(
        "Your own: names separated by commas; CNN:256 has a hidden layer of 256 units in its head. Models from "
        "elsewhere: ./nets.py:Small, package.module:Small, timm:NAME, torchvision:NAME."
    )


@command.command("show")
@click.argument("group", shell_complete=OF_OPTIONS["model_group"])
@click.option(
    "--dataset",
    shell_complete=OF_OPTIONS["dataset"],
    help="Take the input size and the classes from this dataset.",
)
@click.option("--input", "input_size", help="Input size instead, such as 3x32x32.")
@click.option("--classes", type=click.IntRange(min=1), help="Number of classes.")
@click.option("--feature-dim", type=click.IntRange(min=1), default=512, show_default=True, help="K.")
@click.option(
    "--feature-mapping", type=click.Choice(["published", "pool", "project"]), default="published",
    show_default=True, help="How features become K.",
)  # fmt: skip
@click.option("--cifar-stem", is_flag=True, help="First convolution of 3×3 without stride, no pooling after.")
@click.option("--clients", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--flop-factor", type=float, default=4.0, show_default=True,
    help="FLOPs of a training step over those of a forward pass.",
)  # fmt: skip
def show(
    group: str,
    dataset: str | None,
    input_size: str | None,
    classes: int | None,
    clients: int,
    flop_factor: float,
    **options: Any,
) -> None:
    """Show what the models of GROUP cost, who gets them, and the FLOPs of a round.

    Without --dataset and --input the task is the one the group was published with: Fashion-MNIST for HtCNN8, the
    spirals for MLP, bags of 5,000 words for MLPs and its like, AG News for texts, HAR for signals, CIFAR-100 for
    all others. Of texts --input is the number of tokens.
    """
    from fedsim.config import Model
    from fedsim.models import flops

    if dataset and input_size:
        raise UserError("--dataset and --input both set the input size; give one of them.")
    input_shape, num_classes = _dataset_task(dataset) if dataset else _published_task(group)
    if input_size:
        input_shape = _parse_size(input_size, input_shape)
    num_classes = classes or num_classes
    profiles = flops.profile_group(Model(group=group, **options), input_shape, num_classes)

    size = "x".join(map(str, input_shape))
    console = Console()
    console.print(_entries_table(f"{group} on {size}, {num_classes} classes", profiles, clients))
    if unknown := [profile.name for profile in profiles if profile.forward_flops is None]:
        console.print(
            f"FLOPs of {', '.join(unknown)} cannot be counted: the code looks at numbers while it computes."
        )
        return
    console.print(_round_table(profiles, input_shape, clients, flop_factor))


def _entries_table(title: str, profiles: list[Profile], num_clients: int) -> Table:
    counts = (Column(heading, justify="right") for heading in ("parameters", "forward FLOPs"))
    table = Table(Column("model", overflow="fold"), *counts, "features", "head", "clients", title=title)
    for index, profile in enumerate(profiles):
        table.add_row(
            profile.name,
            f"{profile.num_parameters:,}",
            "–" if profile.forward_flops is None else f"{profile.forward_flops:,}",
            f"{profile.backbone_dim} → {profile.feature_dim}",
            profile.head,
            _client_list(range(index, num_clients, len(profiles))),
        )
    return table


def _round_table(profiles: list[Profile], input_shape: tuple[int, ...], num_clients: int, factor: float) -> Table:
    """FedTGP's Table 12: one sample per client, once as counted here and once from the paper's Table 8."""
    from fedsim.models import flops

    auxiliary = min(range(len(profiles)), key=lambda index: profiles[index].num_parameters)
    columns = {"counted": [float(profile.forward_flops or 0) for profile in profiles]}
    names = [profile.name for profile in profiles]
    if input_shape == flops.PUBLISHED_SHAPE and set(names) <= flops.PUBLISHED_FLOPS.keys():
        columns["paper's Table 8"] = [flops.PUBLISHED_FLOPS[name] for name in names]

    title = f"FLOPs of a round in billions, one sample at each of {num_clients} clients"
    table = Table("", *(Column(heading, justify="right") for heading in columns), title=title)
    rows: list[tuple[str, float, bool]] = [
        ("forward passes", 1.0, False),
        (f"× {factor:g}", factor, False),
        (f"× {factor:g}, with {names[auxiliary]} as auxiliary (FML, FedKD)", factor, True),
    ]
    for label, times, with_auxiliary in rows:
        totals = (
            flops.round_flops(forward, num_clients, times)
            + with_auxiliary * flops.round_flops([forward[auxiliary]], num_clients, times)
            for forward in columns.values()
        )
        table.add_row(label, *(f"{total / BILLION:.3f}" for total in totals))
    return table


def _dataset_task(name: str) -> tuple[tuple[int, ...], int]:
    from fedsim.config import Data, Experiment
    from fedsim.data import Federation

    federation = Federation(Experiment(data=Data(dataset=name)))
    return federation.input_shape, federation.num_classes


def _published_task(group: str) -> tuple[tuple[int, ...], int]:
    from fedsim.data.sources.known import sizes_of
    from fedsim.models import cnn, groups, sensors, text

    models = {entry.model for entry in groups.entries(group)}
    if models <= cnn.MLP_HIDDEN.keys():
        return (5000,), 2
    published = {
        "spiral": {"MLP"},
        "fmnist": cnn.HTCNN8.keys(),
        "ag_news": text.MODELS.keys(),
        "har": sensors.MODELS.keys(),
    }
    name = next((name for name, of_these in published.items() if models <= of_these), "cifar100")
    name = "ag_news" if any(model.startswith("hf:") for model in models) else name
    sizes = sizes_of(name)
    assert sizes is not None
    return sizes.input_shape, sizes.num_classes


def _parse_size(text: str, published: tuple[int, ...]) -> tuple[int, ...]:
    """What the sizes are of is what they are of in the published task, where there are as many."""
    from fedsim.data.inputs import InputShape, described

    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,2}", text):
        raise UserError(
            "--input wants channels x height x width such as 3x32x32, channels x steps, or one number, not "
            f"{text!r}."
        )
    sizes, sample = tuple(int(side) for side in text.split("x")), described(published)
    return InputShape(sizes, sample.kind, sample.vocabulary) if len(sizes) == len(sample) else InputShape(sizes)


def _client_list(clients: range) -> str:
    """All of them where they are few, else the first two, the last and how many."""
    if len(clients) <= 4:
        return ", ".join(map(str, clients)) or "none"
    return f"{clients[0]}, {clients[1]}, … {clients[-1]} ({len(clients)})"
