"""Keys on disk, and who is let in: every refusal, against a real server and clients in their own processes."""

import os
import stat

import pytest
import zmq

from protocol import keys
from protocol.errors import AdmissionRefused, KeyFileError
from protocol.keys import KeyPair
from protocol.messages import Hello, Stop
from protocol.transport import Arrived

HELLO = Hello(client=7, place="here", slots=1)


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


def fresh_pair():
    return KeyPair(*zmq.curve_keypair())


class TestFiles:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o002, 0o077])
    def test_secret_is_private_whatever_the_umask(self, tmp_path, umask):
        folder = tmp_path / "a" / "keys"
        previous = os.umask(umask)
        try:
            public = keys.create(folder, "client-7")
            assert os.umask(umask) == umask  # put back
        finally:
            os.umask(previous)
        assert public == folder / "client-7.key"
        assert permissions(folder / "client-7.key_secret") == 0o600
        assert permissions(folder) == 0o700

    def test_both_halves_come_back(self, tmp_path):
        public = keys.create(tmp_path, "server")
        pair = keys.load_secret(tmp_path, "server")
        assert keys.load_public(public) == pair.public
        assert len(pair.public) == len(pair.secret) == 40
        assert zmq.curve_public(pair.secret) == pair.public
        assert pair.secret not in public.read_bytes()

    def test_a_folder_that_cannot_be_one_is_a_sentence(self, tmp_path):
        (tmp_path / "file").write_text("")
        for folder in (tmp_path / "file", tmp_path / "file" / "keys"):
            with pytest.raises(KeyFileError, match=rf"^{folder} cannot hold keys: .*; choose another folder\.$"):
                keys.create(folder, "server")

    def test_every_pair_is_new(self, tmp_path):
        names = [keys.client_name(client) for client in range(5)]
        assert names[3] == "client-3"
        assert len({keys.load_public(keys.create(tmp_path, name)) for name in names}) == 5

    def test_a_key_is_never_overwritten(self, tmp_path):
        keys.create(tmp_path, "server")
        before = keys.load_secret(tmp_path, "server")
        with pytest.raises(KeyFileError, match="exists already"):
            keys.create(tmp_path, "server")
        assert keys.load_secret(tmp_path, "server") == before

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666, 0o777])
    def test_secret_that_others_can_touch(self, tmp_path, mode):
        keys.create(tmp_path, "server")
        path = tmp_path / "server.key_secret"
        path.chmod(mode)
        with pytest.raises(KeyFileError, match="chmod 600"):
            keys.load_secret(tmp_path, "server")
        path.chmod(0o400)
        assert keys.load_secret(tmp_path, "server")

    def test_missing_file(self, tmp_path):
        with pytest.raises(KeyFileError, match=r"cannot read the key file .*nobody\.key_secret"):
            keys.load_secret(tmp_path, "nobody")
        with pytest.raises(KeyFileError, match="cannot read"):
            keys.load_public(tmp_path / "nobody.key")

    def test_folder_for_a_file(self, tmp_path):
        with pytest.raises(KeyFileError, match="cannot read"):
            keys.load_public(tmp_path)

    def test_public_half_for_a_secret(self, tmp_path):
        keys.create(tmp_path, "server")
        (tmp_path / "server.key_secret").write_bytes((tmp_path / "server.key").read_bytes())
        with pytest.raises(KeyFileError, match="no secret key"):
            keys.load_secret(tmp_path, "server")

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"hello",
            bytes(range(256)),
            b'public-key = "too short"',
            b'public-key = ""',
            b'public-key = "' + b"x" * 41 + b'"',
            b'public-key = "' + b"~" * 40 + b'"',
            b'public-key = "' + b"#" * 40 + b'"',
            b'public-key = "' + b"x" * 40 + b'"\nsecret-key = "short"',
        ],
    )
    def test_not_a_key(self, tmp_path, text):
        path = tmp_path / "server.key"
        path.write_bytes(text)
        with pytest.raises(KeyFileError, match="is not a key file"):
            keys.load_public(path)


class TestAllowList:
    def test_name_of_the_file_binds_the_key(self, tmp_path):
        public = {client: keys.load_public(keys.create(tmp_path, f"client-{client}")) for client in (0, 7, 12)}
        keys.create(tmp_path, "server")
        (tmp_path / "client-x.key").write_text("not read: no number")
        (tmp_path / "client-3.key.bak").write_text("not read: no key")
        allowed = keys.load_allow_list(tmp_path)
        assert allowed == {key.decode(): client for client, key in public.items()}

    @pytest.mark.parametrize("files", [[], ["server"]])
    def test_empty(self, tmp_path, files):
        for name in files:
            keys.create(tmp_path, name)
        with pytest.raises(KeyFileError, match="no client could join"):
            keys.load_allow_list(tmp_path)

    def test_one_key_for_two_clients(self, tmp_path):
        """Otherwise client 1 could pose as client 2."""
        keys.create(tmp_path, "client-1")
        (tmp_path / "client-2.key").write_bytes((tmp_path / "client-1.key").read_bytes())
        with pytest.raises(KeyFileError, match=r"client-2\.key is also the key of client 1"):
            keys.load_allow_list(tmp_path)

    def test_broken_file(self, tmp_path):
        keys.create(tmp_path, "client-1")
        (tmp_path / "client-2.key").write_text("")
        with pytest.raises(KeyFileError, match=r"client-2\.key is not a key file"):
            keys.load_allow_list(tmp_path)


class TestAdmission:
    def test_listed_keys_are_bound_to_their_clients(self, spawn, serve, collect, tmp_path):
        """The server learns whose key it was from the key, not from what the client says."""
        peers = {client: spawn() for client in (7, 8)}
        for name in ("server", "client-7", "client-8"):
            keys.create(tmp_path, name)
        server = serve(keys=keys.load_secret(tmp_path, "server"), allowed=keys.load_allow_list(tmp_path))
        for client, peer in peers.items():
            peer.connect(
                server.address,
                client,
                keys=keys.load_secret(tmp_path, f"client-{client}"),
                server_key=keys.load_public(tmp_path / "server.key"),
            )
            peer.send(HELLO)  # both claim to be client 7
        events = collect(server, 2)
        assert sorted(event.key_owner for event in events) == [7, 8]
        assert [event.decoded.message.client for event in events] == [7, 7]
        for event in events:
            server.send(event.route, Stop(reason="welcome"))
        for peer in peers.values():
            assert peer.receive() == (Stop(reason="welcome"), {})

    def test_every_message_carries_its_owner(self, spawn, serve, collect):
        peer, server_pair, pair = spawn(), fresh_pair(), fresh_pair()
        server = serve(keys=server_pair, allowed={pair.public.decode(): 3})
        peer.connect(server.address, 3, keys=pair, server_key=server_pair.public)
        for _ in range(5):
            peer.send(HELLO)
        assert [event.key_owner for event in collect(server, 5)] == [3] * 5

    def test_unlisted_key(self, spawn, serve, collect):
        stranger, friend = spawn(), spawn()
        server_pair, listed = fresh_pair(), fresh_pair()
        server = serve(keys=server_pair, allowed={listed.public.decode(): 7})
        stranger.connect(server.address, 7, keys=fresh_pair(), server_key=server_pair.public)
        stranger.start("join", HELLO)
        with pytest.raises(AdmissionRefused, match="does not admit this key"):
            serve_until_answer(server, stranger)
        friend.connect(server.address, 7, keys=listed, server_key=server_pair.public)
        friend.send(HELLO)
        (event,) = collect(server, 1)
        assert isinstance(event, Arrived) and event.key_owner == 7
        assert not list(server.events(0.3))  # nothing of the stranger's ever comes

    def test_nobody_is_allowed_by_default(self, spawn, serve):
        peer, server_pair = spawn(), fresh_pair()
        server = serve(keys=server_pair)
        peer.connect(server.address, 7, keys=fresh_pair(), server_key=server_pair.public)
        peer.start("join", HELLO)
        with pytest.raises(AdmissionRefused):
            serve_until_answer(server, peer)

    def test_plain_client_and_server_with_keys(self, spawn, serve):
        peer, listed = spawn(), fresh_pair()
        server = serve(keys=fresh_pair(), allowed={listed.public.decode(): 7})
        peer.connect(server.address, 7)
        peer.start("join", HELLO)
        with pytest.raises(AdmissionRefused, match="the server has keys and this client has none"):
            serve_until_answer(server, peer)
        for _ in range(200):  # goes nowhere, and waits for nobody
            peer.send(HELLO)
        assert not list(server.events(0.1))

    def test_client_with_keys_and_plain_server(self, spawn, serve):
        peer = spawn()
        server = serve()
        peer.connect(server.address, 7, keys=fresh_pair(), server_key=fresh_pair().public)
        peer.start("join", HELLO)
        with pytest.raises(AdmissionRefused, match="this client has keys and the server has none"):
            serve_until_answer(server, peer)

    def test_wrong_server_key(self, spawn, serve):
        """Nothing gets in; the client cannot tell this from a server that goes away, and keeps trying."""
        peer, pair = spawn(), fresh_pair()
        server = serve(keys=fresh_pair(), allowed={pair.public.decode(): 7})
        peer.connect(server.address, 7, keys=pair, server_key=fresh_pair().public)
        peer.start("join", HELLO, 0.6)
        with pytest.raises(TimeoutError):
            serve_until_answer(server, peer)
        assert peer.num_connects() == 0
        assert all(connection.route is None for connection in server.connections.all)

    def test_without_keys_nobody_owns_a_key(self, spawn, serve, collect):
        peer = spawn()
        server = serve()
        peer.connect(server.address, 7)
        peer.send(HELLO)
        (event,) = collect(server, 1)
        assert event.key_owner is None and not server.curve


def serve_until_answer(server, peer):
    """Let the server run while the peer tries; returns or raises what the peer does."""
    for _ in range(300):
        events = [event for event in server.events(0.05) if isinstance(event, Arrived)]
        assert not events, "the server let a message in"
        if peer._pipe.poll(0):
            break
    return peer.result()
