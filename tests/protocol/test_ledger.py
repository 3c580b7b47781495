"""Four levels of bytes: receipts, their sums, the rows on disk."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.codec import encode, pack
from protocol.ledger import (
    BEFORE_FIRST_ROUND,
    Amounts,
    Key,
    Ledger,
    Part,
    framing_receipt,
    receipt_of,
)
from protocol.messages import ArraySpec, Result, kind_of

receipts = st.builds(
    receipt_of,
    st.sampled_from(["work", "result"]),
    st.lists(st.integers(0, 100_000), min_size=1, max_size=4),
    st.lists(
        st.builds(
            ArraySpec,
            st.just("a"),
            st.sampled_from(["prototypes", "index", "logits"]),
            st.just("f4"),
            st.lists(st.integers(0, 9), max_size=3).map(tuple),
        ),
        max_size=3,
    ),
    curve=st.booleans(),
)
entries = st.lists(
    st.tuples(
        receipts,
        st.fixed_dictionaries(
            {
                "round": st.integers(-1, 3),
                "client": st.integers(0, 3),
                "direction": st.sampled_from(["up", "down"]),
                "purpose": st.sampled_from(["method", "evaluation", "setup", "control"]),
            }
        ),
    ),
    max_size=12,
)


def ledger_of(records):
    ledger = Ledger()
    for receipt, about in records:
        ledger.record(receipt, **about)
    return ledger


def some_ledger():
    specs = [ArraySpec("p", "prototypes", "f4", (10, 512)), ArraySpec("c", "index", "i8", (10,))]
    receipt = receipt_of("result", [100, 20_480, 80], specs, curve=False)
    return ledger_of(
        [
            (receipt, {"round": r, "client": c, "direction": "up", "purpose": "method"})
            for r in range(2)
            for c in range(3)
        ]
    )


class TestReceipt:
    def test_prototypes_by_hand(self):
        """The example of docs/wire.md: 100 prototypes of 512 float32, with the ids of their classes."""
        arrays = {"prototypes": np.zeros((100, 512), np.float32), "classes": np.zeros(100, np.int64)}
        parcel = pack(arrays, {"prototypes": "prototypes", "classes": "index"})
        message = Result(
            run="fedtgp-0f3a",
            round=12,
            attempt=0,
            metrics={"accuracy": 0.5},
            seconds={"train": 1.0},
        )
        frames = encode(message, parcel)
        header = len(frames[0])
        plain = receipt_of(kind_of(message), list(map(len, frames)), parcel.specs, curve=False)
        assert plain.parts == (
            Part("header", 0, 0, header, header + 2, 0),
            Part("prototypes", 51_200, 204_800, 204_800, 204_809, 204_800),
            Part("index", 0, 800, 800, 809, 800),
        )
        assert header == 158
        assert plain.wire_bytes == 204_800 + 9 + 800 + 9 + 158 + 2 == 205_778
        curve = receipt_of(kind_of(message), list(map(len, frames)), parcel.specs, curve=True)
        assert curve.wire_bytes == plain.wire_bytes + 3 * 33 == 205_877
        assert [part[:4] for part in curve.parts] == [part[:4] for part in plain.parts]

    def test_rank_zero_is_one_element_and_an_empty_array_none(self):
        specs = [ArraySpec("a", "logits", "f4", ()), ArraySpec("b", "logits", "f4", (0, 5))]
        receipt = receipt_of("work", [9, 4, 0], specs, curve=False)
        assert [part.elements for part in receipt.parts] == [0, 1, 0]
        assert [part.wire_bytes for part in receipt.parts] == [11, 6, 2]

    def test_refused_messages_are_counted_without_their_meaning(self):
        receipt = receipt_of("rejected", [10, 300, 20], (), curve=False)
        assert receipt.message == "rejected"
        assert receipt.parts == (
            Part("header", 0, 0, 10, 12, 0),
            Part("unknown", 0, 300, 300, 309, 300),
            Part("unknown", 0, 20, 20, 22, 20),
        )

    @pytest.mark.parametrize("payload", ["index", "experiment"])
    def test_what_is_not_knowledge_has_no_elements(self, payload):
        receipt = receipt_of("welcome", [5, 8], [ArraySpec("x", payload, "u1", (8,))], curve=False)
        assert receipt.parts[1] == Part(payload, 0, 8, 8, 10, 8)

    @given(st.lists(st.integers(0, 100_000), min_size=1, max_size=9), st.booleans())
    def test_wire_bytes_are_those_of_the_model(self, lengths, curve):
        receipt = receipt_of("work", lengths, (), curve=curve)
        assert receipt.wire_bytes == sum(wire.frame_bytes(length, curve=curve) for length in lengths)
        assert sum(part.message_bytes for part in receipt.parts) == sum(lengths)
        assert sum(part.payload_bytes for part in receipt.parts) == sum(lengths[1:])

    def test_framing_belongs_to_no_message(self):
        assert framing_receipt("handshake", 107).parts == (Part("handshake", 0, 0, 0, 107, 0),)


class TestSums:
    def test_by_hand(self):
        ledger = some_ledger()
        assert ledger.total() == Amounts(
            frames=18,
            elements=30_720,
            payload_bytes=123_360,
            message_bytes=123_960,
            wire_bytes=124_038,
            decoded_bytes=123_360,
        )
        assert ledger.total(round=1, client=2) == Amounts(3, 5120, 20_560, 20_660, 20_673, 20_560)
        assert ledger.total(payload="index") == Amounts(6, 0, 480, 480, 492, 480)
        assert ledger.total(direction="down") == Amounts()
        assert len(ledger.rows()) == 2 * 3 * 3

    @given(entries)
    def test_total_is_the_sum_of_the_receipts(self, records):
        total = ledger_of(records).total()
        parts = [part for receipt, _ in records for part in receipt.parts]
        assert total.frames == len(parts)
        assert total.wire_bytes == sum(part.wire_bytes for part in parts)
        assert total.message_bytes == sum(part.message_bytes for part in parts)
        assert total.payload_bytes == sum(part.payload_bytes for part in parts)
        assert total.decoded_bytes == sum(part.decoded_bytes for part in parts)
        assert total.elements == sum(part.elements for part in parts)

    @given(entries, st.sampled_from(Key._fields))
    def test_parts_of_a_split_add_up(self, records, field):
        ledger = ledger_of(records)
        total = Amounts()
        for value in {row[field] for row in ledger.rows()}:
            total += ledger.total(**{field: value})
        assert total == ledger.total()

    @given(entries, st.randoms(use_true_random=False))
    def test_order_of_arrival_does_not_matter(self, records, random):
        shuffled = list(records)
        random.shuffle(shuffled)
        assert ledger_of(shuffled).rows() == ledger_of(records).rows()


class TestRows:
    def test_one_row(self):
        ledger = ledger_of(
            [
                (
                    framing_receipt("handshake", 107),
                    {
                        "round": BEFORE_FIRST_ROUND,
                        "client": 4,
                        "direction": "down",
                        "purpose": "control",
                    },
                )
            ]
        )
        assert ledger.rows() == [
            {
                "round": -1,
                "client": 4,
                "direction": "down",
                "purpose": "control",
                "message": "handshake",
                "payload": "handshake",
                "frames": 1,
                "elements": 0,
                "payload_bytes": 0,
                "message_bytes": 0,
                "wire_bytes": 107,
            }
        ]

    @given(entries)
    def test_restore_is_the_inverse(self, records):
        rows = ledger_of(records).rows()
        restored = Ledger()
        restored.restore(rows)
        assert restored.rows() == rows
        assert restored.total() == ledger_of(records).total()
        for ledger in (restored, ledger_of(records)):
            assert all(ledger.wire_bytes[way] == ledger.total(direction=way).wire_bytes for way in ("up", "down"))

    def test_rows_survive_a_text_file(self):
        """Round and client come back as numbers: a resumed run goes on in the same rows."""
        ledger = some_ledger()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, ledger.rows()[0])
        writer.writeheader()
        writer.writerows(ledger.rows())
        restored = Ledger()
        restored.restore(csv.DictReader(io.StringIO(text.getvalue(), newline="")))
        assert restored.rows() == ledger.rows()

    def test_a_restored_ledger_goes_on(self):
        ledger, restored = some_ledger(), Ledger()
        restored.restore(ledger.rows())
        more = framing_receipt("handshake", 9)
        for one in (ledger, restored):
            one.record(more, round=0, client=0, direction="up", purpose="control")
        assert restored.rows() == ledger.rows()
