"""`fedsim methods`: one line for each method, and all there is to know of one."""

import pytest
from click.testing import CliRunner

from fedsim import methods
from fedsim.errors import UnknownName
from nodes.cli.methods import command


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    if result.exception:
        raise result.exception
    return result.output


def line_of(output: str, name: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(f"{name} "))


def test_every_method_has_its_line() -> None:
    output = run()
    assert [line.split()[0] for line in output.splitlines()[1:] if line[0] != " "] == methods.names()


def test_a_line_tells_what_goes_where_and_what_it_costs() -> None:
    output = run()
    words = line_of(output, "fedtgp").split()
    assert words[:2] == ["fedtgp", "FedTGP"]
    assert words.count("prototypes") == 2 and "K·ΣCᵢ" in words and "M·K·C" in words
    assert "parameters" in line_of(output, "lg_fedavg") and "equal heads" in line_of(output, "lg_fedavg")
    assert "images, latents" in line_of(output, "fedktl")
    assert line_of(output, "local").split().count("–") == 5
    # What travels once, at set-up, is told apart.
    assert "M·head; once M·C" in line_of(output, "fedgen")


def test_one_method_shows_its_text_contract_and_options() -> None:
    output = run("FedTGP")
    assert output.startswith("FedTGP (Zhang et al., AAAI 2024)\n")
    assert "Deliberate choices" in output
    assert ["up", "prototypes", "prototypes", "n", "K", "float32"] in [
        line.split() for line in output.splitlines()
    ]
    assert ["down", "prototypes", "prototypes", "C", "K", "float32"] in [
        line.split() for line in output.splitlines()
    ]
    assert "up: K·ΣCᵢ" in output and "down: M·K·C" in output and "once" not in output.split("Elements")[1]
    assert line_of(output, "tau").split()[1:] == ["100.0", "τ,", "the", "largest", "margin."]
    # Options of the base are there too.
    assert line_of(output, "stale_prototypes").split()[1] == "False"


def test_what_is_sent_once_has_its_cost_in_both_directions() -> None:
    assert "once up: M·C\nonce down: M·C\n" in run("fedgen")


def test_a_method_without_anything_says_so() -> None:
    output = run("local")
    assert "What may travel\nnothing\n" in output
    assert output.endswith("Options, set with --set method.NAME=VALUE\nnone\n")


def test_a_name_with_a_typo() -> None:
    with pytest.raises(UnknownName, match="there is no method 'fedtpg'; did you mean fedtgp\\?"):
        run("fedtpg")
