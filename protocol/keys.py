"""CURVE keys on disk, and who may join with which of them.

Every node has its own pair: `server.key` and `client-7.key` are public and may be copied, `*.key_secret`
never leave the machine that made them. The server's allow-list is a folder of public keys; the file's name
binds a key to one client id, so that a listed client cannot pose as another.
"""

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import zmq.auth
from zmq.utils import z85

from protocol.errors import KeyFileError

SERVER = "server"
_KEY_BYTES = 32
_CLIENT_FILE = re.compile(r"client-(\d+)\.key$")


@dataclass(frozen=True)
class KeyPair:
    """Both halves in ZeroMQ's text form (Z85)."""

    public: bytes
    secret: bytes


def client_name(client: int) -> str:
    return f"client-{client}"


def create(folder: Path, name: str) -> Path:
    """Write `name.key` and `name.key_secret`; the secret is readable by its owner only."""
    previous = os.umask(0o077)
    try:
        if (folder / f"{name}.key_secret").exists():
            raise KeyFileError(f"{folder / name}.key_secret exists already; remove it first to make a new key.")
        folder.mkdir(parents=True, exist_ok=True)
        zmq.auth.create_certificates(folder, name)
    except OSError as error:
        raise KeyFileError(f"{folder} cannot hold keys: {error.strerror}; choose another folder.") from None
    finally:
        os.umask(previous)
    return folder / f"{name}.key"


def load_secret(folder: Path, name: str) -> KeyPair:
    """A node's own pair; a secret that others can read is refused."""
    path = folder / f"{name}.key_secret"
    public, secret = _load(path)
    if secret is None:
        raise KeyFileError(f"{path} holds no secret key.")
    if path.stat().st_mode & 0o077:
        raise KeyFileError(f"{path} can be read by others; run: chmod 600 {path}")
    return KeyPair(public, secret)


def load_public(path: Path) -> bytes:
    return _load(path)[0]


def load_allow_list(folder: Path) -> dict[str, int]:
    """Public key -> the one client id that may use it, from every `client-<id>.key` in the folder."""
    allowed: dict[str, int] = {}
    for path in sorted(folder.glob("client-*.key")):
        if match := _CLIENT_FILE.match(path.name):
            key, client = load_public(path).decode(), int(match.group(1))
            if allowed.setdefault(key, client) != client:
                raise KeyFileError(f"{path} is also the key of client {allowed[key]}; each needs its own.")
    if not allowed:
        raise KeyFileError(f"{folder} holds no client-<id>.key, so no client could join.")
    return allowed


def _load(path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
        for half in (public, secret):
            if half is not None and len(z85.decode(half)) != _KEY_BYTES:
                raise ValueError
        return public, secret
    except OSError as error:
        raise KeyFileError(f"cannot read the key file {path}: {error.strerror or 'no such file'}.") from None
    except (ValueError, KeyError, struct.error):  # the last two: not Z85
        raise KeyFileError(f"{path} is not a key file.") from None
