"""What a person sees: plain lines, only trouble, a live view, and the closing table."""

import io
import itertools
import re

import pytest
from rich.console import Console

from fedsim.results.wording import cut_line
from nodes.display.run import (
    LiveView,
    PlainLines,
    Quiet,
    audit_line,
    describe_trouble,
    make_display,
    percent,
    print_summary,
    round_line,
    size,
)

TRAINED = {
    "event": "round_finished",
    "round": 4,
    "accuracy": 0.98765,
    "train_loss": 0.123456,
    "seconds": 3.14159,
    "wire_bytes_up": 84_030,
    "wire_bytes_down": 1_200_000,
}
JOINED = {"event": "joined", "clients": 10, "seconds": 1.24, "pss_bytes_mean": 42 * 2**20}
LOST = {"event": "lost", "client": 3, "round": 4, "reason": ""}
ASKED = {"event": "asked", "client": 5, "round": 4, "train": True}


@pytest.fixture
def console() -> Console:
    """Not a terminal, and wide enough for no line to break by itself."""
    return Console(file=io.StringIO(), record=True, width=120, highlight=False)


@pytest.fixture
def terminal() -> Console:
    file = io.StringIO()
    file.isatty = lambda: True
    return Console(file=file, width=100, highlight=False, _environ={"TERM": "xterm"})


def shown(console: Console) -> list[str]:
    return console.export_text(clear=False).splitlines()


def view_of(display: LiveView) -> str:
    """What it draws, on a console of our own."""
    own = Console(file=io.StringIO(), width=100)
    own.print(display._view())
    return own.file.getvalue()


# ----------------------------------------------------------------------------------------------- the displays


def test_the_display_fits_where_it_is_shown(console, terminal, monkeypatch):
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert type(make_display(console, 5, quiet=False)) is PlainLines
    assert type(make_display(console, 5, quiet=True)) is Quiet
    assert type(make_display(terminal, 5, quiet=True)) is Quiet
    live = make_display(terminal, 5, quiet=False)
    assert type(live) is LiveView
    live.close()


def test_what_asks_for_colours_but_is_no_terminal_gets_lines():
    """A notebook sets FORCE_COLOR; a view that moves would leave its control codes in the page."""
    asked = Console(file=io.StringIO(), force_terminal=True, width=100)
    assert type(make_display(asked, 5, quiet=False)) is PlainLines


def test_a_command_in_a_notebook_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert type(make_display(terminal, 5, quiet=False)) is PlainLines


def test_plain_lines_are_one_a_round_and_one_for_trouble(console):
    display = PlainLines(console)
    for event in (JOINED, ASKED, LOST, TRAINED, {"event": "checkpoint", "round": 4}):
        display.on_event(event)
    display.close()
    assert shown(console) == [
        "10 clients joined in 1.2 s, 42 MiB (PSS) each",
        "client 3 was lost in round 4",
        "round   4  accuracy 98.77 %  loss 0.1235  up 84.03 kB  down 1.20 MB  3.14 s",
    ]


def test_quiet_means_trouble_only(console):
    display = Quiet(console)
    for event in (JOINED, ASKED, TRAINED):
        display.on_event(event)
    assert shown(console) == []
    display.on_event(LOST)
    assert shown(console) == ["client 3 was lost in round 4"]


def test_a_client_whose_failure_was_told_is_not_told_to_be_lost_as_well(console):
    display = Quiet(console)
    failed = {"event": "client_failed", "client": 3, "round": 4, "where": "  mine.py, line 2, in loss"}
    for event in (failed, LOST, LOST | {"client": 1}):
        display.on_event(event)
    assert shown(console) == [
        "client 3 failed in round 4:",
        "  mine.py, line 2, in loss",
        "client 1 was lost in round 4",
    ]


def test_long_trouble_stays_on_one_line(console):
    Quiet(console).on_event({"event": "refused", "reason": "word " * 60 + "end."})
    assert len(shown(console)) == 1


def test_a_reason_is_text_and_not_markup(console):
    """Shapes are written in square brackets, which rich would take for a style and swallow."""
    Quiet(console).on_event({"event": "refused", "reason": "client 0: shape [red] is wrong"})
    assert shown(console) == ["refused: client 0: shape [red] is wrong"]


def test_the_live_view_shows_who_is_training_and_ends_cleanly(terminal):
    display = LiveView(terminal, 5)
    display.on_event(JOINED)
    display.on_event({"event": "round_started", "round": 4, "cohort": 4, "clients": 5})
    for client in (5, 2, 9):
        display.on_event(ASKED | {"client": client})
    display.on_event(ASKED | {"client": 7, "train": False})  # it only evaluates
    assert display._training == {2, 5, 9}
    display.on_event({"event": "answered", "client": 5, "round": 4, "seconds": 0.1})
    display.on_event(LOST | {"client": 9})
    assert display._training == {2}
    assert "1 of 5 clients done, training: 2" in view_of(display)
    display.on_event({"event": "answered", "client": 2, "round": 4, "seconds": 0.1})
    display.on_event({"event": "collected", "round": 4, "train": True})
    assert "the server is learning" in view_of(display)
    display.on_event(TRAINED)
    assert "5/5 rounds" in view_of(display) and "accuracy 98.77 %" in view_of(display)
    display.close()
    drawn = terminal.file.getvalue()
    assert "client 9 was lost in round 4" in drawn and "accuracy 98.77 %" in drawn
    assert drawn.count("\x1b[?25h") == drawn.count("\x1b[?25l") == 1  # the cursor was hidden, and is back


# --------------------------------------------------------------------------------------------------- sentences


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"accuracy": None}, "round   4  accuracy       –  loss 0.1235  up 84.03 kB  down 1.20 MB  3.14 s"),
        (
            {"train_loss": None, "round": 100},
            "round 100  accuracy 98.77 %  evaluated  up 84.03 kB  down 1.20 MB  3.14 s",
        ),
    ],
)
def test_a_round_as_a_line(changes, line):
    assert round_line(TRAINED | changes) == line


def test_a_round_in_process_sends_nothing():
    event = {name: value for name, value in TRAINED.items() if not name.startswith("wire")}
    assert round_line(event) == "round   4  accuracy 98.77 %  loss 0.1235  3.14 s"


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (LOST | {"reason": "it broke the contract"}, "client 3 was lost in round 4: it broke the contract"),
        (LOST | {"round": -1}, "client 3 was lost before the first round"),
        (
            {"event": "restored", "client": 3, "round": 2},
            "client 3 was started again and restored from round 2",
        ),
        (
            {"event": "left_out", "client": 3, "round": 2, "reason": "late (9 s)"},
            "round 2 goes on without client 3: late (9 s)",
        ),
        ({"event": "failed", "reason": "no space left"}, "the server failed: no space left"),
        ({"event": "rejected", "client": -1, "reason": "no frames"}, "rejected: no frames"),
        (TRAINED, ""),
        (JOINED, ""),
    ],
)
def test_trouble_is_a_sentence(event, sentence):
    assert describe_trouble(event) == sentence


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (84_035, "84.03 kB"),
        (2_500_000, "2.50 MB"),
        (10**9, "1.00 GB"),
        (3 * 10**12, "3.00 TB"),
        (10**15, "1000.00 TB"),
    ],
)
def test_sizes_are_powers_of_ten(count, text):
    assert size(count) == text


def test_percent():
    assert [percent(1.0), percent(0.5), percent(0.0), percent(None)] == ["100.00 %", "50.00 %", "0.00 %", "–"]


# --------------------------------------------------------------------------------------------- the closing table


def summary(**changes):
    levels = {"elements": 1000, "payload_bytes": 4000, "message_bytes": 4100, "wire_bytes": 4109}
    nothing = dict.fromkeys(levels, 0)
    return {
        "method": "fedtgp",
        "dataset": "digits",
        "clients": 10,
        "rounds": 2,
        "accuracy_by_round": {"0": 0.1, "1": 0.9, "2": 0.85},
        "best_accuracy": 0.9,
        "best_round": 1,
        "final_accuracy": 0.85,
        "partial_rounds": [],
        "further_accuracies": {},
        "traffic": {
            "method": {"up": levels, "down": nothing},
            "total": {"up": levels | {"wire_bytes": 1_234_567}, "down": levels},
        },
        "audit": {"connections": 10, "checked": 10, "agree": 10, "cut": [], "differences": []},
        "completed": True,
        "reason": "the run is complete",
        "seconds": 12.34,
    } | changes


def test_the_closing_table(console):
    print_summary(console, summary(), "runs/x")
    lines = [" ".join(line.split()) for line in shown(console)]
    assert lines == [
        "",
        "FedTGP on digits, 10 clients, 2 rounds",
        "accuracy by round: 0: 10.00 % 1: 90.00 % 2: 85.00 %",
        "best accuracy 90.00 % in round 1, last 85.00 %",
        "communication",
        "elements payload bytes message bytes wire bytes",
        "method up 1,000 4,000 4,100 4,109",
        "total up 1,000 4,000 4,100 1,234,567",
        "total down 1,000 4,000 4,100 4,109",
        "the kernel agrees to the byte on 10 of 10 connections, in both directions",
        "12.3 s; results in runs/x",
    ]


def test_one_is_not_many(console):
    print_summary(console, summary(clients=1, rounds=1), "runs/x")
    assert shown(console)[1] == "FedTGP on digits, 1 client, 1 round"
    PlainLines(console).on_event(JOINED | {"clients": 1})
    assert shown(console)[-1] == "1 client joined in 1.2 s, 42 MiB (PSS) each"


def test_what_else_was_tested_has_a_line_each(console):
    further = {
        "server_accuracy": {"best": 0.75, "best_round": 1, "last": 0.5},
        "trained_accuracy": {"best": 1.0, "best_round": 2, "last": 1.0},
    }
    print_summary(console, summary(further_accuracies=further), "runs/x")
    best = next(number for number, line in enumerate(shown(console)) if line.startswith("best accuracy"))
    assert shown(console)[best + 1 : best + 3] == [
        "server: best 75.00 % in round 1, last 50.00 %",
        "clients before distillation: best 100.00 % in round 2, last 100.00 %",
    ]


def test_a_run_in_process_has_no_traffic(console):
    whole = summary()
    del whole["traffic"], whole["audit"]
    print_summary(console, whole, "runs/x")
    assert not any("kernel" in line or "communication" in line for line in shown(console))


def test_a_run_that_never_evaluated_has_no_best_round(console):
    nothing = {"accuracy_by_round": {}, "best_accuracy": None, "best_round": None, "final_accuracy": None}
    print_summary(console, summary(**nothing), "runs/x")
    assert not any("best accuracy" in line for line in shown(console))


def test_an_early_end_says_why(console):
    print_summary(console, summary(completed=False, reason="round 3 has no quorum [0 of 4]."), "runs/x")
    assert "stopped early: round 3 has no quorum [0 of 4]." in shown(console)


def test_a_folder_in_brackets_is_shown_as_it_is(console):
    print_summary(console, summary(), "runs/[red]x")
    assert shown(console)[-1] == "12.3 s; results in runs/[red]x"


def test_every_difference_to_the_kernel_is_shown(console):
    difference = {"connection": 4, "client": 2, "sent_difference_bytes": -9, "received_difference_bytes": 12}
    cut = {"connection": 3, "client": 0, "booked_sent_bytes": 9000, "sent_bytes": [5000, 7000]} | {
        "booked_received_bytes": 800,
        "received_bytes": 1234,
    }
    differences = [difference, difference | {"client": 1}]
    audit = {"connections": 4, "checked": 4, "agree": 1, "cut": [cut], "differences": differences}
    print_summary(console, summary(audit=audit), "runs/x")
    text = shown(console)
    assert (
        "the kernel agrees to the byte on 1 of 4 connections, in both directions; 1 connection cut, within the "
        "kernel's bounds" in text
    )
    assert (
        "connection 3 (client 0) was cut: of 9,000 bytes sent 5,000 to 7,000 arrived, how many cannot be known; "
        "of 1,234 that came 800 were whole messages" in text
    )
    assert "of 9,000 bytes sent 7,000 arrived; of" in cut_line(cut | {"sent_bytes": [7000, 7000]})
    assert "AUDIT: connection 4 (client 2): against the ledger the kernel sent -9 bytes and received +12" in text
    assert "AUDIT: connection 4 (client 1): against the ledger the kernel sent -9 bytes and received +12" in text


def test_without_counters_nothing_is_claimed():
    assert audit_line({"connections": 3, "checked": 0, "agree": 0}).startswith("not reconciled")


def test_many_rounds_are_spread_over_the_line_with_both_ends(console):
    by_round = {str(round): round / 100 for round in range(101)}
    print_summary(console, summary(accuracy_by_round=by_round), "runs/x")
    line = next(line for line in shown(console) if line.startswith("accuracy by round"))
    rounds = [int(number) for number in re.findall(r"(\d+): ", line)]
    assert rounds == sorted(rounds) and len(rounds) == 8
    assert (rounds[0], rounds[-1]) == (0, 100)
    gaps = {later - earlier for earlier, later in itertools.pairwise(rounds)}
    assert gaps <= {14, 15}
