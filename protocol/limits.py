"""What a peer may send. Every limit is checked against lengths alone, before anything is allocated."""

from dataclasses import dataclass

MEBIBYTE = 1 << 20

# Names on the wire -> little-endian numpy types. A dtype outside this table does not exist for the decoder.
DTYPES = {
    "f4": "<f4",
    "f8": "<f8",
    "f2": "<f2",
    "i4": "<i4",
    "i8": "<i8",
    "u1": "|u1",
}


@dataclass(frozen=True)
class Limits:
    """The defaults fit every method; only the frame size is something a user may want to raise."""

    max_frame_bytes: int = 1024 * MEBIBYTE
    max_message_bytes: int = 2048 * MEBIBYTE
    max_header_bytes: int = 64 * 1024
    max_arrays: int = 32
    max_rank: int = 8
    max_items: int = 64
    """Items of any list or mapping inside a header."""
    max_text_bytes: int = 8000
    """Length of any one string inside a header: the longest text is 2000 characters of up to four bytes."""

    @classmethod
    def of_frames(cls, mebibytes: int) -> "Limits":
        """The user says what one array may have; a message may have twice that, if it is more than by default."""
        frame = mebibytes * MEBIBYTE
        return cls(max_frame_bytes=frame, max_message_bytes=max(cls.max_message_bytes, 2 * frame))


DEFAULT_LIMITS = Limits()
