"""Who counts in a round by the virtual clock, who is there, and what is refused before the first round."""

import math
from pathlib import Path
from typing import Any

import pytest

from fedsim import assembly, config
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.world import availability
from fedsim.world.referee import Referee

FAST, SLOW = "up=8mbit down=8mbit", "up=8kbit down=8mbit"
LAYER = {
    "run": {"clients": 4, "rounds": 5},
    "data": {"dataset": "spiral", "partition": "iid", "samples_per_class": 20},
    "model": {"group": "MLP", "feature_dim": 3},
    "method": {"name": "local"},
}


def referee(run: dict[str, Any] | None = None, **world: Any) -> Referee:
    experiment = config.build([LAYER, {"run": run or {}, "world": world}])
    assert Referee.is_needed(experiment)
    return Referee(experiment, Federation(experiment))


def outcomes(judge: Referee, round: int = 0, num_bytes: int = 2000) -> dict[int, str]:
    cohort = judge.cohort(round)
    return {r.client: r.outcome for r in judge.rule(round, cohort, 0, dict.fromkeys(cohort, num_bytes))}


def test_whoever_is_late_does_not_count_and_the_round_is_over_at_the_deadline() -> None:
    """2000 bytes take 2 s over the slow link of client 2, and 2 ms over the others'."""
    judge = referee(deadline_seconds=1.0, link=FAST, links={"2": SLOW})
    assert outcomes(judge) == {0: "counts", 1: "counts", 2: "late", 3: "counts"}
    assert judge.now == 1.0
    assert outcomes(judge, 1, num_bytes=500) == dict.fromkeys(range(4), "counts"), "half a second is in time"
    assert judge.now == 1.5


def test_where_all_are_late_the_first_is_waited_for() -> None:
    judge = referee(deadline_seconds=1.0, link=SLOW, links={"1": "up=10kbit down=8mbit"})
    assert outcomes(judge) == {0: "late", 1: "counts", 2: "late", 3: "late"}
    assert judge.now == pytest.approx(1.6)


def test_who_drops_does_so_by_the_seed() -> None:
    judge = referee({"drop_rate": 0.5}, deadline_seconds=1.0)
    found = outcomes(judge, 3)
    assert sorted(found.values()) == ["counts", "counts", "dropped", "dropped"]
    assert found == outcomes(referee({"drop_rate": 0.5}, deadline_seconds=1.0), 3)


def test_a_slow_device_is_late_by_its_operations() -> None:
    judge = referee(deadline_seconds=0.5, device="gflops=1000", devices={"3": "gflops=0.001"})
    assert outcomes(judge) == {0: "counts", 1: "counts", 2: "counts", 3: "late"}


def test_only_those_that_are_there_are_asked(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,to\n0,0,100\n1,0,0.5\n1,3,100\n2,1,100\n9,0,1\n")
    judge = referee(availability=str(trace), deadline_seconds=1.0, link=FAST, links={"0": SLOW})

    assert judge.cohort(0) == [0, 1]
    assert outcomes(judge) == {0: "late", 1: "counts", 2: "away", 3: "away"}
    assert judge.now == 1.0 and judge.cohort(1) == [0, 2]
    judge.now = 3.0
    assert judge.cohort(2) == [0, 1, 2]


def test_nobody_there_means_waiting_for_the_first(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,to\n3,7,100\n")
    judge = referee(availability=str(trace), deadline_seconds=1.0)
    assert outcomes(judge)[3] == "counts" and judge.now == 7.0


def test_turns_are_drawn_by_the_seed_and_are_as_long_as_wished_on_average() -> None:
    turns = availability.of("on=30s off=10s", 1, seed=1)
    assert turns is not None
    share = sum(turns.next_from(0, float(t)) == t for t in range(4000)) / 4000
    assert 0.65 < share < 0.85
    again = availability.of("on=30s off=10s", 1, seed=1)
    assert again is not None and again.next_from(0, 123.0) == turns.next_from(0, 123.0)
    assert availability.of("", 1, 1) is None


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (
            {"deadline_seconds": 0.1, "link": "up=1mbit down=1mbit delay=60ms"},
            "nobody can meet world.deadline_seconds = 0.1: the fastest client needs 0.12 s",
        ),
        ({"availability": "TRACE"}, "a trace needs world.deadline_seconds"),
        (
            {"availability": "TRACE", "deadline_seconds": 30},
            "the trace TRACE ends after 100 s, and 5 rounds of at",
        ),
        ({"availability": "nothing.csv", "deadline_seconds": 1}, "the trace nothing.csv cannot be read: No such"),
        ({"availability": "on=5s"}, "the availability 'on=5s' does not say off; write on=10min off=5min"),
        ({"availability": "on=0s off=1s"}, "'on=0s' in the availability 'on=0s off=1s' is nothing at all"),
        ({"deadline_seconds": -1}, "world.deadline_seconds = -1 is not valid"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_round(
    tmp_path: Path, world: dict[str, Any], sentence: str
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,to\n0,0,100\n")
    given = {key: str(trace) if value == "TRACE" else value for key, value in world.items()}
    with pytest.raises(UserError) as caught:
        referee(**given)
    assert str(caught.value).startswith(sentence.replace("TRACE", str(trace)))


@pytest.mark.parametrize("line", ["0,5,4", "0,0,inf", "x,0,1", "0,1", "-1,0,1"])
def test_a_trace_with_a_broken_line_is_refused(tmp_path: Path, line: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"client,from,to\n{line}\n")
    with pytest.raises(UserError, match=r"trace.csv, line 2: write a client and two seconds, the later one last."):
        availability.Trace(trace, 4)


def test_a_model_that_a_device_cannot_hold_is_refused() -> None:
    experiment = config.build([LAYER, {"world": {"devices": {"2": "gflops=1 memory=5kb"}}}])
    with pytest.raises(
        UserError, match=r"the device of client 2 has 0 MB, and .* takes at least .* MB in training"
    ):
        assembly.check(experiment)


def test_time_that_is_known_is_not_infinite() -> None:
    judge = referee(availability="on=1min off=1min")
    assert all(math.isfinite(judge.now) for round in range(5) if outcomes(judge, round))
