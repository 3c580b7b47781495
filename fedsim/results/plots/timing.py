"""Where the time went. A client's round has these parts, which add up to the round's length:

evaluate, train   the client's own work (with what it does on receiving, uploading and saving in `other`)
wire              from the question until the answer was read, without the client's work
wait              for a free slot, and then for the other clients
server            while the server learns and nobody else does anything
"""

from pathlib import Path

import numpy as np

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import FAINT, PALETTE

PARTS = ("train", "evaluate", "other", "wire", "wait", "server")
COLOURS = dict(zip(PARTS, (PALETTE[0], PALETTE[5], PALETTE[7], PALETTE[3], FAINT, PALETTE[1]), strict=True))
MAX_BARS = 60
MAX_NUMBERED_CLIENTS = 30


def seconds(run: LoadedRun) -> dict[str, np.ndarray]:
    """Part -> seconds, one number for each row of timings.csv. Parts that a run does not know are 0."""
    table = run.timings
    own = {name: np.nan_to_num(table[name]) for name in ("receive", "evaluate", "train", "upload", "save")}
    work = np.sum(list(own.values()), axis=0) if len(table) else np.zeros(0)
    round_trip = np.where(np.isnan(table["round_trip"]), work, table["round_trip"])  # in one process: no wire
    whole = np.array([run.rounds.get(int(round), {}).get("seconds", 0.0) for round in table["round"]])
    server = _server_seconds(run)[table["round"]]
    return {
        "train": own["train"],
        "evaluate": own["evaluate"],
        "other": own["receive"] + own["upload"] + own["save"],
        "wire": round_trip - work,
        # A client that was asked twice in a round may have taken longer than the clock of its round says.
        "wait": np.maximum(whole - round_trip - server, 0.0),
        "server": server,
    }


def _server_seconds(run: LoadedRun) -> np.ndarray:
    """Round -> how long the server's step took; 0 in a round without one."""
    steps = run.server_timings
    num_rounds = max([0, *run.timings["round"], *steps["round"]]) + 1
    return np.bincount(steps["round"], steps["seconds"], minlength=num_rounds)


def means(run: LoadedRun, by: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The rounds or clients (`by`), and each part's mean over their rows."""
    keys, inverse = np.unique(run.timings[by], return_inverse=True)
    counts = np.bincount(inverse)
    return keys, {part: np.bincount(inverse, values) / counts for part, values in seconds(run).items()}


def draw_rounds(run: LoadedRun, stem: Path) -> list[Path]:
    """The mean client's round, round by round."""
    if not len(run.timings):
        return []
    rounds, parts = means(run, "round")
    figure = drawing.new_figure()
    axes = figure.add_subplot()
    bottom = np.zeros(len(rounds))
    ends = []
    for part in PARTS:
        if not parts[part].any():
            continue
        if len(rounds) <= MAX_BARS:
            axes.bar(rounds, parts[part], width=0.85, bottom=bottom, color=COLOURS[part], linewidth=0)
        else:
            axes.fill_between(rounds, bottom, bottom + parts[part], color=COLOURS[part], linewidth=0, step="mid")
        # Labels sit beside the last round that trains; the one after it only evaluates.
        place = max(len(rounds) - 2, 0)
        ends.append((rounds[-1] + 0.6, bottom[place] + parts[part][place] / 2, part, _text_colour(part)))
        bottom = bottom + parts[part]
    axes.set_xlabel("round")
    axes.set_ylabel("seconds")
    axes.grid(axis="y")
    axes.margins(x=0.01)
    drawing.whole_numbers(axes)
    drawing.label_ends(axes, ends)
    return drawing.save(figure, stem)


def draw_clients(run: LoadedRun, stem: Path) -> list[Path]:
    """Each client's mean round."""
    if not len(run.timings):
        return []
    clients, parts = means(run, "client")
    few = len(clients) <= MAX_NUMBERED_CLIENTS
    figure = drawing.new_figure(height=max(2.0, 1.0 + 0.19 * len(clients)) if few else 3.6)
    axes = figure.add_subplot()
    left = np.zeros(len(clients))
    for part in PARTS:
        if parts[part].any():
            axes.barh(clients, parts[part], left=left, height=0.8 if few else 1.0, color=COLOURS[part], label=part)
            left = left + parts[part]
    axes.set_ylim(clients[-1] + 0.6, clients[0] - 0.6)
    if few:
        axes.set_yticks(clients)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("client")
    axes.set_xlabel("seconds in the mean round")
    axes.grid(axis="x")
    figure.legend(loc="outside upper left", ncols=len(PARTS), frameon=False, fontsize=7.5, handlelength=1,
                  columnspacing=1.2, handletextpad=0.5)  # fmt: skip
    return drawing.save(figure, stem)


def _text_colour(part: str) -> str:
    """Grey letters on white are hard to read."""
    return drawing.MUTED if part == "wait" else COLOURS[part]
