"""The closed table: which messages there are, what each holds, and what every field refuses."""

import re
from pathlib import Path

import msgpack
import msgspec
import pytest

from protocol import messages
from protocol.codec import decode, encode
from protocol.errors import DecodeError
from protocol.messages import kind_of

MANUAL = Path(__file__).parents[2] / "docs" / "wire.md"
LARGEST = (1 << 31) - 1

# One valid header of every kind.
HEADERS = {
    "hello": {"client": 7, "place": "host", "slots": 2, "version": "0.1.0"},
    "welcome": {"run": "r", "states": "0f3a", "restore": -1},
    "refusal": {"reason": "no"},
    "ready": {
        "run": "r",
        "num_train": 600,
        "num_test": 200,
        "num_parameters": 1_000_000,
        "start_seconds": 1.5,
        "pss_bytes": 9_000_000,
        "facts": {"torch": "2.1"},
    },
    "setup": {"run": "r"},
    "work": {
        "run": "r",
        "round": 0,
        "attempt": 0,
        "slot": 1,
        "train": True,
        "evaluate": False,
        "save": False,
        "keep": -1,
    },
    "delivered": {"run": "r", "round": 12, "attempt": 0},
    "turn": {"run": "r", "round": 12, "attempt": 0, "slot": 1},
    "done": {"run": "r", "round": 12, "attempt": 0},
    "result": {"run": "r", "round": 0, "attempt": 0, "metrics": {"accuracy": 0.5}, "seconds": {}},
    "failure": {"run": "r", "round": 0, "error": "ValueError"},
    "stop": {"reason": "done"},
}
FIELDS = [(kind, field) for kind, fields in HEADERS.items() for field in fields]

# What each type of field must take, at its ends, and what it must refuse.
NOT_AN_INTEGER = [True, False, 1.0, "1", None, [1], {}]
SIZE = ([0, LARGEST], [-1, LARGEST + 1, *NOT_AN_INTEGER])
COUNT = ([0, (1 << 64) - 1], [-1, *NOT_AN_INTEGER])
FLAG = ([True, False], [0, 1, "true", None])
RUN = (["", "r" * 32, "é" * 32], ["r" * 33, 1, None, ["r"]])
NAME = (["", "n" * 64, "\U0001f600" * 64], ["n" * 65, 1, None])
TEXT = (["", "t" * 2000, "é" * 2000], ["t" * 2001, 1, None])
FIGURES = (
    [{}, {"a" * 64: 1.0}, {"a": float("nan"), "b": float("inf")}, {str(i): 0.0 for i in range(64)}],
    [
        {"a" * 65: 1.0},
        {"a": True},
        {"a": "1"},
        {"a": None},
        {"a": {}},
        [],
        None,
        {str(i): 0.0 for i in range(65)},
    ],
)
TAKES_AND_REFUSES = {
    "client": ([0, 999_999], [-1, 1_000_000, *NOT_AN_INTEGER]),
    "place": NAME,
    "slots": ([1, 4096], [0, 4097, *NOT_AN_INTEGER]),
    "run": RUN,
    "states": (["", "0", "0123456789abcdef"], ["0123456789abcdef0", "../other", "ABC", "g", 7, None]),
    "restore": ([-1, LARGEST], [-2, LARGEST + 1, *NOT_AN_INTEGER]),
    "reason": TEXT,
    "num_train": SIZE,
    "num_test": SIZE,
    "num_parameters": COUNT,
    "start_seconds": ([0.0, 1e300, float("inf")], [-0.1, float("nan"), True, "1", None]),
    "pss_bytes": COUNT,
    "version": NAME,
    "facts": (
        [{}, {"a" * 64: "b" * 64}, {str(i): "" for i in range(16)}],
        [{"a" * 65: ""}, {"a": 1}, {"a": "b" * 65}, [], None, {str(i): "" for i in range(17)}],
    ),
    "round": SIZE,
    "attempt": SIZE,
    "slot": SIZE,
    "train": FLAG,
    "evaluate": FLAG,
    "save": FLAG,
    "keep": ([-1, LARGEST], [-2, LARGEST + 1, *NOT_AN_INTEGER]),
    "metrics": FIGURES,
    "seconds": FIGURES,
    "error": TEXT,
}


OPTIONAL = {("hello", "version"), ("ready", "facts")}
"""What a peer need not tell, and is not sent where there is nothing to tell."""


def decode_header(kind, fields):
    return decode([msgpack.packb({"v": messages.VERSION, "kind": kind, **fields})]).message


def taken_and_refused(kind, field):
    if (kind, field) == ("work", "slot"):  # -1: its turn comes later
        return [-1, LARGEST], [-2, LARGEST + 1, *NOT_AN_INTEGER]
    return TAKES_AND_REFUSES[field]


def test_the_table_is_closed():
    kinds = {member.__struct_config__.tag: member for member in messages.AnyMessage.__args__}
    assert set(kinds) == set(HEADERS)
    for kind, member in kinds.items():
        assert list(member.__struct_fields__) == list(HEADERS[kind])
        optional = {(kind, field.name) for field in msgspec.structs.fields(member) if not field.required}
        assert optional <= OPTIONAL


@pytest.mark.parametrize("kind", HEADERS)
def test_header_and_message_are_one(kind):
    message = decode_header(kind, HEADERS[kind])
    assert kind_of(message) == kind
    assert msgspec.to_builtins(message) == {"kind": kind, **HEADERS[kind]}
    assert msgpack.unpackb(encode(message)[0]) == {"v": messages.VERSION, "kind": kind, **HEADERS[kind]}
    with pytest.raises(AttributeError):
        message.kind = "other"  # messages do not change


@pytest.mark.parametrize(("kind", "field"), [pair for pair in FIELDS if pair not in OPTIONAL])
def test_every_other_field_is_required(kind, field):
    fields = {name: value for name, value in HEADERS[kind].items() if name != field}
    with pytest.raises(DecodeError, match=f"missing required field `{field}`"):
        decode_header(kind, fields)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_every_field_takes_its_extremes(kind, field):
    for value in taken_and_refused(kind, field)[0]:
        message = decode_header(kind, {**HEADERS[kind], field: value})
        assert repr(getattr(message, field)) == repr(value)  # text, because NaN != NaN


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_every_field_refuses_what_is_beyond(kind, field):
    for value in taken_and_refused(kind, field)[1]:
        with pytest.raises(DecodeError, match=rf"\$\.{field}|exceeds max_"):
            decode_header(kind, {**HEADERS[kind], field: value})


@pytest.mark.parametrize("kind", HEADERS)
def test_no_kind_takes_a_field_of_another(kind):
    others = {field for fields in HEADERS.values() for field in fields} - set(HEADERS[kind])
    for field in others:
        with pytest.raises(DecodeError, match=f"unknown field `{field}`"):
            decode_header(kind, {**HEADERS[kind], field: 0})


class TestManual:
    """docs/wire.md says what the code does."""

    def test_every_message_and_field_has_its_row(self):
        sections = re.split(r"^#+ ", MANUAL.read_text(), flags=re.MULTILINE)
        described = {section.split()[0]: section for section in sections[1:]}
        for kind, fields in HEADERS.items():
            rows = re.findall(r"^\| `(\w+)` \|", described[kind], flags=re.MULTILINE)
            assert rows == list(fields), kind

    def test_base_of_every_header(self):
        """The lengths with empty texts, small numbers and empty maps."""
        sections = re.split(r"^#+ ", MANUAL.read_text(), flags=re.MULTILINE)
        bases = {section.split()[0]: re.search(r"Base (\d+) bytes", section) for section in sections[1:]}
        empty = {str: "", int: 1, float: 0.0, bool: True, dict: {}}
        for kind, fields in HEADERS.items():
            smallest = {field: empty[type(value)] for field, value in fields.items()}
            (header,) = encode(decode_header(kind, smallest))
            assert int(bases[kind][1]) == len(header), kind

    def test_hex_example(self):
        """The dump of the manual, byte for byte."""
        dump = MANUAL.read_text().split(": 120 bytes.\n\n```text\n")[1].split("```")[0]
        octets = bytes.fromhex("".join(line.split("|")[0] for line in dump.splitlines()))
        decoded = msgpack.unpackb(octets)
        assert decoded == {
            "v": messages.VERSION,
            "kind": "work",
            "run": "fedtgp-0f3a",
            "round": 12,
            "attempt": 0,
            "slot": 1,
            "train": True,
            "evaluate": True,
            "save": False,
            "keep": -1,
            "arrays": [["prototypes", "prototypes", "f4", [100, 512]]],
        }
        assert f"{len(octets)} bytes" in MANUAL.read_text()
