"""Everything that can go wrong on the wire, and what the caller should do about it.

ProtocolError
├── DecodeError           what came is not a message of ours: drop it, count it, keep the connection
│   ├── LimitExceeded     it is larger than a peer may send: the same
│   └── VersionMismatch   the peer speaks another version: tell it so and forget it
├── EncodeError           what we were about to send nobody would take: nothing was sent, say what it was
├── PeerUnreachable       the peer has gone or does not read: nothing was sent, mark it lost
├── AdmissionRefused      the server will not have us (key, plain text): give up, trying again is useless
├── AddressUnusable       the address cannot be used: tell the user
└── KeyFileError          a key file is missing, unreadable or readable by others: tell the user
"""


class ProtocolError(Exception):
    """Base of all errors of this package."""

    exit_code = 1
    """Of a program that ends because of it."""


class DecodeError(ProtocolError):
    """Drop the message, keep the connection."""


class LimitExceeded(DecodeError):
    """A peer sent more than it may."""


class VersionMismatch(DecodeError):
    """The peer speaks another version of the protocol."""


class EncodeError(ProtocolError):
    """A message that we may not send."""


class PeerUnreachable(ProtocolError):
    """Nothing was handed over."""


class AdmissionRefused(ProtocolError):
    """The handshake failed for good."""


class AddressUnusable(ProtocolError):
    """In use, not ours, or not an address."""

    exit_code = 2
    """Like every other bad input."""


class KeyFileError(ProtocolError):
    """A key file cannot be used."""

    exit_code = 2
