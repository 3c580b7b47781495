"""Who may join, who is here, and how long each is expected to take."""

from types import SimpleNamespace

import pytest

from nodes.server.members import Member, Members, Taken
from nodes.server.rounds import Place
from protocol.messages import Hello, Ready


def arrival(route: bytes, key_owner: int | None = None):
    """As much of `Arrived` as joining needs; a real one wants a socket."""
    return SimpleNamespace(route=route, key_owner=key_owner)


def hello(client: int, place: str = "host", slots: int = 2) -> Hello:
    return Hello(client=client, place=place, slots=slots)


def ready(num_train: int = 10, num_parameters: int = 100) -> Ready:
    return Ready(
        run="r",
        num_train=num_train,
        num_test=1,
        num_parameters=num_parameters,
        start_seconds=0.1,
        pss_bytes=0,
    )


@pytest.fixture
def three() -> Members:
    """Clients 0 to 2, all ready, on routes a, b and c."""
    members = Members(3)
    for client, route in enumerate((b"a", b"b", b"c")):
        member = members.admit(hello(client), arrival(route), old_is_open=False)
        assert isinstance(member, Member)
        member.ready = ready()
    return members


def test_a_new_client_is_found_by_id_and_by_route():
    members = Members(3)
    member = members.admit(hello(1, "host/gpu0", 4), arrival(b"route"), old_is_open=False)
    assert isinstance(member, Member)
    assert members.by_id == {1: member} and members.of_route(b"route") is member
    assert members.of_route(b"other") is None
    assert members.places() == {1: Place("host/gpu0", 4)}
    assert (member.saved_round, member.train_seconds, member.lost_since) == (-1, None, None)


def test_a_member_counts_once_it_is_ready():
    members = Members(2)
    member = members.admit(hello(1), arrival(b"b"), old_is_open=False)
    assert isinstance(member, Member)
    assert members.missing() == [0, 1] and members.lost_since(7.0) == {1: 7.0}
    member.ready = ready()
    assert members.missing() == [0] and members.lost_since(7.0) == {}


def test_ids_outside_the_run_are_refused(three):
    refusal = three.admit(hello(3), arrival(b"d"), old_is_open=False)
    assert refusal == "there is no client 3 in this run; ids go from 0 to 2."
    assert 3 not in three.by_id and three.of_route(b"d") is None


def test_a_key_admits_its_own_client_only(three):
    refusal = three.admit(hello(1), arrival(b"thief", key_owner=2), old_is_open=False)
    assert refusal == "the key belongs to client 2, not to client 1."
    assert three.by_id[1].route == b"b"
    fresh = Members(3)
    assert isinstance(fresh.admit(hello(0), arrival(b"a", key_owner=0), old_is_open=False), Member)


def test_a_second_process_with_a_taken_id_is_refused(three):
    refusal = three.admit(hello(1, "elsewhere"), arrival(b"second"), old_is_open=True)
    assert refusal == Taken("client 1 has joined already from host.")
    assert three.of_route(b"b") is three.by_id[1] and three.of_route(b"second") is None


def test_the_same_process_that_reconnects_keeps_everything(three):
    known = three.by_id[1]
    known.lost_since = 5.0
    assert three.missing() == [1] and three.lost_since(9.0) == {1: 5.0}
    assert three.admit(hello(1), arrival(b"b"), old_is_open=True) is known
    assert known.is_ready and three.missing() == []


@pytest.mark.parametrize(("lost_since", "old_is_open"), [(5.0, False), (5.0, True), (None, False)])
def test_a_process_that_was_started_again_takes_over(three, lost_since, old_is_open):
    known = three.by_id[1]
    known.saved_round, known.train_seconds, known.lost_since = 4, 2.5, lost_since
    member = three.admit(hello(1, "new host", 1), arrival(b"new"), old_is_open=old_is_open)
    assert isinstance(member, Member) and member is not known
    assert (member.saved_round, member.train_seconds) == (4, 2.5)  # what it saved and how fast it is
    assert member.ready is None and member.lost_since is None  # but it must get ready again
    assert three.of_route(b"new") is member and three.of_route(b"b") is None  # last words of the dead are nobody's
    assert three.places()[1] == Place("new host", 1)


def test_work_is_expected_in_proportion_to_its_size_until_all_are_measured(three):
    three.by_id[0].ready = ready(30, 100)
    three.by_id[1].ready = ready(10, 500)
    three.by_id[2].ready = ready(20, 200)
    by_size = {0: 3000.0, 1: 5000.0, 2: 4000.0}
    assert three.expected_seconds() == by_size
    three.by_id[0].train_seconds = three.by_id[2].train_seconds = 1.5
    assert three.expected_seconds() == by_size  # seconds and sizes cannot be compared
    three.by_id[1].train_seconds = 0.5
    assert three.expected_seconds() == {0: 1.5, 1: 0.5, 2: 1.5}


def test_a_client_that_is_not_ready_has_no_expectation():
    members = Members(2)
    members.admit(hello(0), arrival(b"a"), old_is_open=False)
    assert members.expected_seconds() == {}


def test_a_process_that_connected_again_has_a_new_route_and_keeps_what_it_has_done() -> None:
    members, first, second = Members(3), b"1.0123456789abcdef.0000", b"1.0123456789abcdef.0007"
    known = members.admit(hello(1), arrival(first), old_is_open=False)
    assert isinstance(known, Member)
    known.lost_since, known.saved_round = 5.0, 3
    assert members.admit(hello(1), arrival(second), old_is_open=True) is known
    assert (known.route, known.lost_since, known.saved_round) == (second, None, 3)
    assert members.of_route(second) is known and members.of_route(first) is None


def test_another_process_does_not_become_the_first_by_looking_similar() -> None:
    members = Members(3)
    members.admit(hello(1), arrival(b"1.0123456789abcdef.0000"), old_is_open=False)
    for route in (b"1.0123456789abcdee.0000", b"2.0123456789abcdef.0000", b"1.0123456789abcdef.0000.1", b"1", b""):
        assert isinstance(members.admit(hello(1), arrival(route), old_is_open=True), Taken)
