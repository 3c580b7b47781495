"""What a host is told, from one end of the line to the other."""

from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from fedsim.errors import UserError
from fedsim.own import loading
from fedsim.version import __version__
from nodes.client.options import ClientOptions
from nodes.launchers import bundle, host
from nodes.launchers.bundle import Bundle
from protocol import keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the keys of the server and of client 0."""
    for name in (keys.SERVER, keys.client_name(0)):
        keys.create(tmp_path / "keys", name)
    return tmp_path / "keys"


OPTIONS = ClientOptions(connect="tcp://a:1", ids=[0])


@pytest.mark.parametrize("text", [b"# one\r\nx = 1\r\n", b"# one\nx = 1", "# ä\r\n".encode("latin-1")])
def test_own_code_arrives_byte_for_byte(text: bytes, folder: Path, tmp_path: Path) -> None:
    """A host whose copy has another SHA-256 than the server's is refused."""
    (tmp_path / "mine.py").write_bytes(text)
    sent = msgspec.json.encode(Bundle.of(OPTIONS, folder, [str(tmp_path / "mine.py")]))
    with ExitStack() as stack:
        (there,) = host._options(bundle.decode(sent, "the test"), stack).code
        assert Path(there).read_bytes() == text
        assert loading.sha256(there) == loading.sha256(str(tmp_path / "mine.py"))
    assert not Path(there).exists()


def test_a_bundle_of_another_version_is_refused_with_both(folder: Path, tmp_path: Path) -> None:
    made = Bundle.of(OPTIONS, folder)
    bundle.write(tmp_path / "host-1.bundle", made)
    assert bundle.read(tmp_path / "host-1.bundle") == made
    bundle.write(tmp_path / "host-1.bundle", msgspec.structs.replace(made, version="9.9"))
    with pytest.raises(UserError, match=rf"was made by fedsim 9\.9 and this machine has {__version__};"):
        bundle.read(tmp_path / "host-1.bundle")
