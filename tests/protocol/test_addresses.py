"""Which addresses a server may listen on and a client may connect to."""

import pytest

from protocol.addresses import host_of
from protocol.errors import AddressUnusable


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("tcp://127.0.0.1:1", "127.0.0.1"),
        ("tcp://localhost:65535", "localhost"),
        ("tcp://node_7.lab-net.example:5555", "node_7.lab-net.example"),
        ("tcp://[::1]:5555", "::1"),
        ("tcp://[fe80::1%eth0]:5555", "fe80::1%eth0"),
    ],
)
def test_host_and_port_are_enough_for_both_ends(address, host, listens):
    assert host_of(address, listens=listens) == host


@pytest.mark.parametrize(
    ("address", "host"), [("tcp://*:5555", "*"), ("tcp://127.0.0.1:*", "127.0.0.1"), ("tcp://*:*", "*")]
)
def test_a_star_is_for_servers_only(address, host):
    assert host_of(address, listens=True) == host
    with pytest.raises(AddressUnusable, match="is no server address"):
        host_of(address, listens=False)


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize(
    "address",
    [
        *("", "nonsense", "localhost:5912", "ipc:///tmp/socket", "udp://127.0.0.1:5555", "TCP://127.0.0.1:5555"),
        *("tcp://", "tcp://:5555", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://host:port"),
        *("tcp://127.0.0.1:0", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1"),
        *("tcp://127.0.0.1:5555/", "tcp://127.0.0.1:5555\n", "tcp://a b:5555", "tcp://a:1;b:2", "tcp://::1:5555"),
        "tcp://127.0.0.1:٥٥٥٥",
    ],
)
def test_everything_else_is_refused_with_a_remedy(address, listens):
    with pytest.raises(AddressUnusable) as refused:
        host_of(address, listens=listens)
    assert refused.value.exit_code == 2
    purpose, or_any = ("address to listen on", ", or * for any free one") if listens else ("server address", "")
    assert str(refused.value) == (
        f"{address} is no {purpose}; write tcp://host:port with a port from 1 to 65535{or_any}."
    )
