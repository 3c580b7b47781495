"""What tests of results share."""

import pytest

from fedsim.results.plots import gallery


@pytest.fixture
def one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with their first picture alone, for tests of what stands around it: drawing all takes seconds."""
    monkeypatch.setattr(gallery, "PLOTS", gallery.PLOTS[:1])
    monkeypatch.setattr(gallery, "COMPARISONS", gallery.COMPARISONS[:1])
