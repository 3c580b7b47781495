"""What the kernel's counters prove of a connection, and what they leave open."""

import pytest

from protocol.audit import Audit, Traffic, Verdict
from protocol.kernel import TcpCounters


def verdict(sent: int, received: int, *, closed: bool = True, must_agree: bool = True) -> Verdict:
    """Of a connection on which we counted 1000 bytes sent and 500 received, and the kernel these."""
    kernel = TcpCounters(sent, received, acknowledged=sent, peer_closed=closed)
    return Audit(0, 7, Traffic(1000, 500), kernel, must_agree).verdict


def test_difference_is_kernel_minus_ours() -> None:
    audit = Audit(0, 7, Traffic(100, 200), TcpCounters(103, 198))
    assert audit.difference == Traffic(sent=3, received=-2)
    assert not audit.agrees


def test_without_a_witness_nothing_is_claimed() -> None:
    audit = Audit(0, 7, Traffic(1, 2), None)
    assert audit.difference is None and not audit.agrees and audit.verdict is Verdict.UNCHECKED


@pytest.mark.parametrize("must_agree", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_to_the_byte_is_agreement_however_it_ended(closed: bool, must_agree: bool) -> None:
    assert verdict(1000, 500, closed=closed, must_agree=must_agree) is Verdict.AGREES


@pytest.mark.parametrize(("sent", "received"), [(999, 500), (1001, 500), (1000, 499), (1000, 501), (920, 500)])
def test_one_that_ended_in_order_agrees_to_the_byte_or_differs(sent: int, received: int) -> None:
    assert verdict(sent, received) is Verdict.DIFFERS


@pytest.mark.parametrize(("closed", "must_agree"), [(False, True), (True, False), (False, False)])
def test_one_that_was_cut_is_held_to_the_bounds(closed: bool, must_agree: bool) -> None:
    """It cannot have sent more than it was given, nor have given us more than came."""
    for sent, received in ((0, 500), (920, 501), (1000, 10_000)):
        assert verdict(sent, received, closed=closed, must_agree=must_agree) is Verdict.CUT
    for sent, received in ((1001, 500), (1000, 499), (1001, 499), (920, 0)):
        assert verdict(sent, received, closed=closed, must_agree=must_agree) is Verdict.DIFFERS
