"""All that one host must be told to start its clients: where the server is, which ids, keys and code are its own.

Launchers send it over the host's standard input, and write no keys to its disk; by hand it is a file that a person
carries. Code that was sent is written down for as long as the host runs, because Python imports files.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fedsim.config import Experiment, to_layer
from fedsim.errors import UserError
from fedsim.own import files
from fedsim.version import __version__
from nodes.client.options import ClientOptions, id_range
from nodes.client.program import Secret
from protocol import keys
from protocol.keys import KeyPair


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host's part of a run. It holds secret keys."""

    words: list[str]
    """The options of the clients, as they are typed."""
    server_key: str
    keys: dict[int, tuple[str, str]]
    """Client -> its public and its secret key."""
    code: dict[str, bytes] = {}
    """Name -> content of the own files that the run needs, where the launcher may send them. Byte for byte,
    line ends too: the server tells their SHA-256."""
    proof: str = ""
    """A file that was just made in the run folder: who does not see it has another folder of that name."""
    version: str = __version__

    @classmethod
    def of(cls, options: ClientOptions, keys_folder: Path, code: Sequence[str] = (), proof: str = "") -> "Bundle":
        """`code` are files to be sent; what `options` names is there already."""
        pairs = {client: keys.load_secret(keys_folder, keys.client_name(client)) for client in options.ids}
        return cls(
            words=options.words(),
            server_key=keys.load_public(keys_folder / f"{keys.SERVER}.key").decode(),
            keys={client: (pair.public.decode(), pair.secret.decode()) for client, pair in pairs.items()},
            code={Path(place).name: Path(place).read_bytes() for place in code},
            proof=proof,
        )

    def options(self) -> ClientOptions:
        return ClientOptions.parse(self.words)

    def secrets(self) -> dict[int, Secret]:
        server = self.server_key.encode()
        return {
            client: (KeyPair(public.encode(), secret.encode()), server)
            for client, (public, secret) in self.keys.items()
        }


def read(path: Path) -> Bundle:
    """A file that was made by `fedsim keys bundle`."""
    try:
        told = decode(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"cannot read the bundle {path}: {(error.strerror or 'no such file').lower()}.") from None
    if told.version != __version__:
        raise UserError(
            f"{path} was made by fedsim {told.version} and this machine has {__version__}; install the same "
            "version on both."
        )
    return told


def write(path: Path, bundle: Bundle) -> None:
    """Readable by its owner only: it holds secrets."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n")


def decode(text: bytes, origin: str) -> Bundle:
    """`origin` is where it came from, to be named if it is none."""
    try:
        return msgspec.json.decode(text, type=Bundle)
    except msgspec.MsgspecError as error:
        raise UserError(f"{origin} is no bundle of this version of fedsim ({error}); make it anew.") from None


def share(num_clients: int, weights: Sequence[float]) -> list[list[int]]:
    """A block of ids for each machine, in proportion to its weight."""
    reached = list(itertools.accumulate(weights))
    ends = [math.floor(num_clients * so_far / reached[-1] + 0.5) for so_far in reached]
    return [list(range(start, end)) for start, end in itertools.pairwise([0, *ends])]


def make_files(experiment: Experiment, connect: str, num_hosts: int, folder: Path) -> Iterator[tuple[Path, str]]:
    """Keys for a start by hand: the server's and all public ones in `folder`, the secret ones of clients only in a
    bundle for each host. Yields each bundle's path and ids."""
    num_clients = experiment.run.clients
    if num_hosts > num_clients:
        raise UserError(f"{num_clients} clients cannot be shared by {num_hosts} hosts; make fewer bundles.")
    code = tuple(files.copy_name(place) for place in files.places(to_layer(experiment)))
    keys.create(folder, keys.SERVER)
    for number, ids in enumerate(share(num_clients, [1] * num_hosts), start=1):
        for client in ids:
            keys.create(folder, keys.client_name(client))
        options = ClientOptions.of(experiment.cluster, connect=connect, ids=ids, place=f"host-{number}", code=code)
        path = folder / f"host-{number}.bundle"
        write(path, Bundle.of(options, folder))
        for client in ids:
            (folder / f"{keys.client_name(client)}.key_secret").unlink()
        yield path, id_range(ids)
