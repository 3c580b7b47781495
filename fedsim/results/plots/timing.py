"""Where the time went. A client's round has these parts, which add up to the round's length:

evaluate, train   the client's own work (with what it does on receiving, uploading and saving in `other`)
wire              from the question until the answer was read, without the client's work
wait              for a free slot, and then for the other clients
server            while the server learns and nobody else does anything
"""

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import FAINT, MUTED, PALETTE, plot

PARTS = ("train", "evaluate", "other", "wire", "wait", "server")
COLOURS = dict(zip(PARTS, (PALETTE[0], PALETTE[5], PALETTE[7], PALETTE[3], FAINT, PALETTE[1]), strict=True))
MAX_BARS = 60
MAX_NUMBERED_CLIENTS = 30


def seconds(run: LoadedRun) -> DataFrame:
    """A row for each of timings.csv, a column for each part. Parts that a run does not know are 0."""
    table, rounds = run.timings, run.timings["round"]
    own = table[["receive", "evaluate", "train", "upload", "save"]].fillna(0)
    work = own.sum(axis=1)
    round_trip = table["round_trip"].fillna(work)  # in one process: no wire
    whole = rounds.map({round: event["seconds"] for round, event in run.rounds.items()})
    server = rounds.map(run.server_timings.groupby("round")["seconds"].sum()).fillna(0)
    parts = {
        "train": own["train"],
        "evaluate": own["evaluate"],
        "other": own["receive"] + own["upload"] + own["save"],
        "wire": round_trip - work,
        # A client that was asked twice in a round may have taken longer than the clock of its round says.
        "wait": (whole - round_trip - server).clip(lower=0).fillna(0),
        "server": server,
    }
    return DataFrame(parts)


def means(run: LoadedRun, by: str) -> DataFrame:
    """Each part's mean over the rows of a round or of a client (`by`)."""
    return seconds(run).groupby(run.timings[by]).mean()


@plot(
    "time_by_round", "Where a round's time went",
    "For the mean client. Waiting is for a free slot of the machine and for the other clients.",
)  # fmt: skip
def draw_rounds(run: LoadedRun) -> Figure | None:
    if not len(run.timings):
        return None
    figure, axes = drawing.new_axes()
    parts = means(run, "round")
    rounds, bottom, ends = parts.index, np.zeros(len(parts)), []
    for part, values in parts.loc[:, parts.any()].items():
        if len(rounds) <= MAX_BARS:
            axes.bar(rounds, values, width=0.85, bottom=bottom, color=COLOURS[part], linewidth=0)
        else:
            axes.fill_between(rounds, bottom, bottom + values, color=COLOURS[part], linewidth=0, step="mid")
        # Labels sit beside the last round that trains; the one after it only evaluates.
        place = max(len(rounds) - 2, 0)
        # Grey letters on white are hard to read.
        colour = MUTED if part == "wait" else COLOURS[part]
        ends.append((rounds[-1] + 0.6, bottom[place] + values.iloc[place] / 2, part, colour))
        bottom = bottom + values.to_numpy()
    axes.set_xlabel("round")
    axes.set_ylabel("seconds")
    axes.grid(axis="y")
    axes.margins(x=0.01)
    drawing.whole_numbers(axes)
    drawing.label_ends(axes, ends)
    return figure


@plot("time_by_client", "Where each client's time went", "The mean over all rounds.")
def draw_clients(run: LoadedRun) -> Figure | None:
    if not len(run.timings):
        return None
    parts = means(run, "client")
    clients, left = parts.index, np.zeros(len(parts))
    few = len(clients) <= MAX_NUMBERED_CLIENTS
    figure, axes = drawing.new_axes(height=max(2.0, 1.0 + 0.19 * len(clients)) if few else 3.6)
    for part, values in parts.loc[:, parts.any()].items():
        axes.barh(clients, values, left=left, height=0.8 if few else 1.0, color=COLOURS[part], label=part)
        left = left + values.to_numpy()
    axes.set_ylim(clients[-1] + 0.6, clients[0] - 0.6)
    if few:
        axes.set_yticks(clients)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("client")
    axes.set_xlabel("seconds in the mean round")
    axes.grid(axis="x")
    figure.legend(loc="outside upper left", ncols=len(PARTS), frameon=False, fontsize=7.5, handlelength=1,
                  columnspacing=1.2, handletextpad=0.5)  # fmt: skip
    return figure
