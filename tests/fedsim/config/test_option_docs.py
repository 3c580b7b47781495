"""Options are documented where they are declared; a section that overrides one documents it anew."""

import pytest

from fedsim import methods
from fedsim.config import Section
from fedsim.config.option_docs import Option, options_of


class Parent(Section, frozen=True, kw_only=True):
    """A section."""

    size: int = 3
    """How large.
    In two lines."""
    bare: bool = False


class Child(Parent, frozen=True, kw_only=True):
    """A section that says more."""

    bare: bool = True
    """Said here."""
    name: str = "x"
    """Its own."""


def test_defaults_and_words_of_all_bases():
    assert options_of(Parent) == [Option("size", 3, "How large.\nIn two lines."), Option("bare", False, "")]
    assert {option.name: (option.default, option.doc) for option in options_of(Child)} == {
        "size": (3, "How large.\nIn two lines."),
        "bare": (True, "Said here."),
        "name": ("x", "Its own."),
    }


@pytest.mark.parametrize("name", methods.names())
def test_every_option_of_every_method_is_documented(name):
    assert [option.name for option in options_of(methods.load(name).Config) if not option.doc] == []
