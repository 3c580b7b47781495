"""What tests of FedKTL share."""

import pytest
from ktl_toys import FakeGenerator

from fedsim import generators


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeGenerator:
    """What the server gets whichever generator it asks for; `asked` lists what it asked for."""
    fake = FakeGenerator()
    fake.asked = []

    def load(name, device="cpu"):
        fake.asked.append(name)
        return fake

    monkeypatch.setattr(generators, "load", load)
    return fake
