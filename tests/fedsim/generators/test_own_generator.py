"""The generator that the documentation writes: FedKTL takes it, and sends what it makes."""

import re
from pathlib import Path

import numpy as np

from fedsim import assembly, config
from fedsim.method import Upload

PAGE = Path(__file__).parents[3] / "docs" / "own-generator.md"


def test_the_documented_generator_teaches(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_ktl.py").write_text(program)
    method = {"name": str(tmp_path / "my_ktl.py"), "server_epochs": 1}
    small = {"run": {"clients": 2}, "data": {"samples_per_class": 20}, "model": {"group": "CNN1"}}
    experiment = config.build([small, {"method": method}])
    federation = assembly.check(experiment)
    server = assembly.make_server(experiment, federation)

    prototypes = np.eye(10, dtype=np.float32)
    uploads = [Upload(client, 10, {"prototypes": prototypes, "class_ids": np.arange(10)}) for client in range(2)]
    down = server.aggregate(0, uploads).down

    assert server.generator.name == "waves"
    assert (down["images"].shape, down["latents"].shape) == ((10, 1, 28, 28), (10, 8))
