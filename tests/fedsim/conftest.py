"""A federation so small that whole rounds take milliseconds, for tests of methods; it is made in toys.py."""

import pytest
from toys import make_toy, toy_data, toy_model


@pytest.fixture
def toy():
    """`toy("fedtgp", tau=1.0)`: the factory."""
    return make_toy


@pytest.fixture
def toy_parts():
    """The makers of data and models, for tests that need no whole federation."""
    return toy_data, toy_model
