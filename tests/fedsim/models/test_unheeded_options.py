"""An option that leaves every model of a run as it is would be taken for one that works."""

from typing import Any

import pytest

from fedsim import assembly, config
from fedsim.data import Federation
from fedsim.errors import UserError


def check(**sections: dict[str, Any]) -> Federation:
    return assembly.check(config.build([{"run": {"clients": 2}}, sections]))


@pytest.mark.parametrize(
    ("group", "option", "value", "said"),
    [
        ("HtCNN8", "feature_cut", "published", 'model.feature_cut = "published" has no effect on HtCNN8: none'),
        (
            "CNN1,CNN2",
            "cifar_stem",
            True,
            "model.cifar_stem = true has no effect on CNN1,CNN2: none of these",
        ),
        ("ResNet4", "feature_cut", "published", "leave it out, or choose others."),
    ],
)
def test_what_no_model_knows_is_refused(group: str, option: str, value: object, said: str) -> None:
    with pytest.raises(UserError) as refused:
        check(model={"group": group, option: value})
    assert said in str(refused.value)


def test_one_model_that_knows_it_is_enough() -> None:
    accepted = check(model={"group": "CNN1,ResNet4", "cifar_stem": True})
    assert accepted.num_classes == 10


def test_the_server_s_model_may_be_that_one() -> None:
    method = {"name": "fedpkd", "server_model": "ResNet4"}
    data = {"public_samples": 30, "global_test": True}
    check(model={"group": "CNN1", "cifar_stem": True}, method=method, data=data)
    with pytest.raises(UserError, match="cifar_stem = true has no effect"):
        check(model={"group": "CNN1", "cifar_stem": True}, method=method | {"server_model": "CNN1"}, data=data)
