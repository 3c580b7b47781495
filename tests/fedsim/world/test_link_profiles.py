"""Links: how they are written, who has which, how long something takes over one, and what is refused."""

from collections import Counter
from pathlib import Path

import pytest

from fedsim import config
from fedsim.errors import UserError
from fedsim.world import links, mixtures
from fedsim.world.links import PROFILES, Link, parse


def test_a_link_is_written_in_words() -> None:
    assert parse("up=10mbit down=50mbit delay=40ms jitter=5ms") == Link(10e6, 50e6, 0.04, 0.005)
    assert parse("down=1.5gbit up=768kbit") == Link(768e3, 1.5e9)
    assert parse(" 4G ") == parse(PROFILES["4g"])


def test_time_is_size_over_rate_and_the_delay() -> None:
    link = parse("up=1mbit down=8mbit delay=40ms")
    assert link.seconds("up", 125_000) == 1.04
    assert link.seconds("down", 1_000_000) == 1.04


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("5g", "there is no link '5g'; known: 3g, 4g, cable, fibre, satellite, wifi."),
        ("up=0mbit down=1mbit", "'up=0mbit' in the link 'up=0mbit down=1mbit' is nothing at all; give more"),
        ("up=1mbit", "the link 'up=1mbit' does not say down; write up=10mbit down=50mbit"),
        ("up=-1mbit down=1mbit", "'up=-1mbit' in the link"),
        ("up=1 down=1mbit", "'up=1' in the link"),
        ("up=1ms down=1mbit", "'up=1ms' in the link 'up=1ms down=1mbit' is not understood: up is in bit or kbit"),
        ("up=1mbit down=1mbit delay=5mbit", "'delay=5mbit' in the link"),
        ("up=1mbit down=1mbit loss=1%", "'loss=1%' in the link"),
        (
            "up=1mbit down=1mbit delay=5ms jitter=6ms",
            "the link 'up=1mbit down=1mbit delay=5ms jitter=6ms' has more",
        ),
        ("", "the link '' does not say up and down"),
    ],
)
def test_what_is_no_link_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert str(caught.value).startswith(sentence)


def experiment(**world: object) -> config.Experiment:
    return config.build([{"run": {"clients": 1000}, "world": world}])


def test_a_mixture_is_drawn_by_the_seed_and_a_client_keeps_what_is_its_own() -> None:
    dealt = links.of_clients(experiment(link="wifi:3,3g", links={"0-9": "satellite", "12": "fibre"}))

    assert dealt[:10] == [parse("satellite")] * 10 and dealt[12] == parse("fibre")
    counts = Counter(dealt[13:])
    assert 700 < counts[parse("wifi")] < 780 and counts[parse("wifi")] + counts[parse("3g")] == 987
    assert dealt == links.of_clients(experiment(link="wifi:3,3g", links={"0-9": "satellite", "12": "fibre"}))


def test_clients_of_whom_nothing_is_said_have_no_limits() -> None:
    assert links.of_clients(experiment(links={"1": "4g"}))[:3] == [None, parse("4g"), None]
    assert set(links.of_clients(experiment())) == {None}


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ({"links": {"0-1000": "4g"}}, "there is no client 1000 to have a link; ids go from 0 to 999."),
        ({"links": {"0-": "4g"}}, "'0-' is no range of client ids"),
        ({"links": {"0-5": "4g", "5": "3g"}}, "a client has more than one link; name each id once."),
        ({"link": "4g:0"}, "all weights in '4g:0' are 0"),
    ],
)
def test_who_has_what_is_checked(world: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        links.of_clients(experiment(**world))
    assert str(caught.value).startswith(sentence)


def test_a_file_names_links_once_and_says_who_has_them(tmp_path: Path) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text('[links]\nvillage = "up=1mbit down=6mbit"\n[clients]\n"0-4" = "village"\n"5" = "fibre"\n')
    assert mixtures.read(file, "links") == {"0-4": "up=1mbit down=6mbit", "5": "fibre"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[links]\n", "{} wants a table [clients]"),
        ('[clients]\n"0" = "4g"\n[client]\n', "{} wants a table [clients]"),
        ('[clients]\n"0" = 4\n', "{}: 0 = 4 is no text"),
        ('links = "4g"\n[clients]\n"0" = "4g"\n', "{}: links = '4g' is no table; write [links]"),
        ("[[", "{} is not valid TOML"),
        (None, "there is no file {}"),
    ],
)
def test_a_file_that_says_nothing_useful_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    file = tmp_path / "profiles.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as caught:
        mixtures.read(file, "links")
    assert str(caught.value).startswith(sentence.format(file))


def test_a_folder_is_no_file_of_links(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r" cannot be read: Is a directory\.$"):
        mixtures.read(tmp_path, "links")


def test_an_experiment_without_a_world_knows_nothing_of_it() -> None:
    plain = config.build([{}])
    assert b"world" not in config.to_json(plain)
    assert config.build([{"world": {"link": ""}}]) == plain
    linked = config.build([{"world": {"link": "4g", "links": {"3": "3g"}}}])
    assert config.from_json(config.to_json(linked)) == linked


def test_an_option_of_the_world_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"there is no option 'world.lnk'; did you mean world.link"):
        config.build([{"world": {"lnk": "4g"}}])
