"""Many runs: where they are found, what is grouped, what is left out with a sentence, and what must be said."""

from pathlib import Path

import pytest
from made_run import make_run

from fedsim.errors import UserError
from fedsim.results.groups import collect
from fedsim.results.settings import Seeds, assignment, resolve, text


def sweep(folder: Path, seeds: tuple[int, ...] = (1, 2)) -> Path:
    for method in ("fedproto", "fedtgp", "local"):
        for beta in (1.0, 0.1):
            for seed in seeds:
                settings = {"run": {"seed": seed}, "data": {"beta": beta, "seed": 1}}
                make_run(folder / f"{method}-{beta}-{seed}", method=method, settings=settings)
    return folder


def test_runs_of_one_group_differ_in_seeds_only(tmp_path):
    runs = collect([sweep(tmp_path)])
    assert runs.varied == ["method.name", "data.beta"]
    assert runs.labels == [f"{m}, β = {b}" for m in ("Local", "FedProto", "FedTGP") for b in ("0.1", "1")]
    assert all(list(group.runs) == [Seeds(1, 1), Seeds(2, 1)] for group in runs.groups)
    assert not runs.left_out and not runs.cautions


def test_the_partition_of_a_run_without_data_seed_is_its_own(tmp_path):
    make_run(tmp_path / "a", settings={"run": {"seed": 3}})
    assert list(collect([tmp_path / "a"]).groups[0].runs) == [Seeds(3, 3)]


def test_how_it_was_run_makes_no_other_group(tmp_path):
    for seed, cluster in enumerate(({"slots": 1}, {"checkpoint_every": 3}), 1):
        make_run(tmp_path / str(seed), settings={"run": {"seed": seed}, "cluster": cluster})
    assert len(collect([tmp_path]).groups) == 1


def test_options_of_a_method_are_varied_only_where_one_method_varies_them(tmp_path):
    make_run(tmp_path / "a", method="fedtgp", settings={"method": {"tau": 1}})
    make_run(tmp_path / "b", method="fedtgp", settings={"method": {"tau": 10}})
    make_run(tmp_path / "c", method="fedproto")
    runs = collect([tmp_path])
    assert runs.varied == ["method.name", "method.tau"]
    assert runs.labels == ["FedTGP, τ = 1", "FedTGP, τ = 10", "FedProto"]


def test_what_differs_between_methods_without_being_varied_is_said(tmp_path):
    make_run(tmp_path / "a", method="fedproto", settings={"train": {"lr": 0.1}})
    make_run(tmp_path / "b", method="fedtgp")
    runs = collect([tmp_path])
    assert runs.labels == ["FedProto", "FedTGP"]
    assert runs.cautions == ["train.lr is not the same for all methods: 0.1 for FedProto; 0.01 for FedTGP"]


def test_a_broken_run_a_second_one_and_one_that_stopped_are_left_out_with_a_sentence(tmp_path):
    sweep(tmp_path, seeds=(1,))
    (tmp_path / "fedtgp-0.1-1" / "metrics.csv").write_text("round,acc\n1,2\n")
    (tmp_path / "local-1.0-1" / "summary.json").write_text(
        '{"completed": false, "reason": "Ctrl-C", "seconds": 1}'
    )
    make_run(tmp_path / "twin", method="fedproto", settings={"data": {"beta": 1.0, "seed": 1}})
    runs = collect([tmp_path], finished_only=True)
    assert len(runs.runs) == 4
    broken, stopped, twin = runs.left_out
    assert "fedtgp-0.1-1 was made by another version" in broken
    assert "local-1.0-1 did not end well (Ctrl-C); go on with --resume" in stopped
    assert twin.endswith(f"has the same settings and seeds as {tmp_path / 'fedproto-1.0-1'}.")
    assert len(collect([tmp_path]).runs) == 5, "a page shows it, marked"


def test_of_two_equal_runs_the_complete_one_counts_whatever_their_names(tmp_path):
    for name in ("begun", "done"):
        make_run(tmp_path / name, settings={"run": {"seed": 1}})
    (tmp_path / "begun" / "summary.json").unlink()
    runs = collect([tmp_path])
    assert [run.path.name for run in runs.runs] == ["done"]
    assert any(f"{tmp_path / 'begun'} has the same settings" in sentence for sentence in runs.left_out)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["nowhere"], "there is no run folder nowhere."),
        (["empty"], "there is no run in empty; name run folders, or a folder that holds some."),
        (["run", "run"], "the run run is given twice; give each run once."),
        (["."], "the run run/.. is given twice"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, names, sentence):
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"))
    Path("empty").mkdir()
    if names == ["."]:
        assert [run.name for run in collect([Path()]).runs] == ["run"]
        return
    with pytest.raises(UserError) as caught:
        collect([Path(name) for name in names])
    assert str(caught.value) == sentence


def test_names_of_settings():
    known = ["method.name", "data.beta", "data.seed", "run.seed", "train.lr"]
    assert [resolve(name, known) for name in ("method", "beta", "seed", "data.seed", "lr")] == [
        *("method.name", "data.beta", "run.seed", "data.seed", "train.lr"),
    ]
    with pytest.raises(UserError, match="there is no setting 'betta'; did you mean beta"):
        resolve("betta", known)
    assert text("method.name", "lg_fedavg") == "LG-FedAvg" and assignment("data.beta", 0.1) == "β = 0.1"
    assert text("model.group", "nets.py@1234:Small,CNN2") == "nets.py:Small,CNN2"


def test_an_own_method_is_one_method_wherever_its_copies_lie(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(
        "from fedsim.method import About, Client\nABOUT = About(title='MyFL', paper='p', evaluation='e')\n"
    )
    for seed in (1, 2):
        make_run(tmp_path / "runs" / str(seed), method=str(source), settings={"run": {"seed": seed}})
    runs = collect([tmp_path / "runs"])
    assert len(runs.groups) == 1 and runs.labels == ["MyFL"] and runs.runs[0].method == "MyFL"
