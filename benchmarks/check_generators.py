"""Checks the StyleGAN reader against a folder of snapshots: `python -m benchmarks.check_generators FOLDER`.

A snapshot `<name>.pkl` with a `<name>.expected.npz` beside it must give the arrays in there, which the official
programs computed; every other .pkl must be refused. Files are read in an empty working directory, and a file
that appears there means that a snapshot was able to run something.

Arrays: noise `z`, one-hot labels `c` -> `w`, `image`, `ws_psi07_cutoff3` (truncated to 0.7 in the first three
layers); `w_given` -> `image_given`; `ws_mixed`, a w for each layer -> `image_mixed`; `transform` in place of the
input's own, with `w_given` -> `image_transform`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import UserError
from fedsim.generators import stylegan

TOLERANCE = 1e-4
"""Largest error allowed, relative to the largest expected number of an array."""


@torch.no_grad()
def compute(network: stylegan.StyleGAN, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our version of every expected array."""
    mapping, synthesis = network.mapping, network.synthesis
    labels_N = given["c"].argmax(1) if network.num_labels else None

    def broadcast(w_NH: Tensor) -> Tensor:
        return w_NH[:, None].repeat(1, synthesis.num_ws, 1)

    w_NH = mapping(given["z"], labels_N)
    ws_NLH = broadcast(w_NH)
    ws_NLH[:, :3] = mapping.truncate(w_NH, labels_N, 0.7)[:, None]
    ours = {
        "w": w_NH,
        "image": synthesis(broadcast(w_NH)),
        "ws_psi07_cutoff3": ws_NLH,
        "image_given": synthesis(broadcast(given["w_given"])),
        "image_mixed": synthesis(given["ws_mixed"]),
    }
    if "transform" in given:
        synthesis.input.transform_33.copy_(given["transform"])
        ours["image_transform"] = synthesis(broadcast(given["w_given"]))
    return ours


def check_network(path: Path, expected_path: Path) -> tuple[bool, str]:
    with np.load(expected_path) as arrays:
        expected = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    try:
        network = stylegan.load(path, torch.device("cpu"))
    except UserError as error:
        return False, f"refused: {error}"
    errors = {
        name: float((array - expected[name]).abs().max() / expected[name].abs().max())
        for name, array in compute(network, expected).items()
    }
    worst = max(errors, key=errors.__getitem__)
    details = f"w {errors['w']:.1e}  image {errors['image']:.1e}  worst {errors[worst]:.1e} ({worst})"
    return errors[worst] <= TOLERANCE, details


def check_refusal(path: Path) -> tuple[bool, str]:
    try:
        stylegan.load(path, torch.device("cpu"))
    except UserError as error:
        appeared = [str(thing) for thing in Path().iterdir()]
        if appeared:
            return False, f"refused, but {', '.join(appeared)} appeared"
        return True, f"refused: {error}"
    return False, "was read, should have been refused"


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the StyleGAN reader against a folder of snapshots.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    paths = sorted(folder.glob("*.pkl"))
    if not paths:
        print(f"there is no .pkl file in {folder}.", file=sys.stderr)
        return 2
    failures = 0
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        for path in paths:
            expected_path = path.with_suffix(".expected.npz")
            passed, details = check_network(path, expected_path) if expected_path.exists() else check_refusal(path)
            failures += not passed
            print(f"{path.stem:<24} {'ok' if passed else 'FAIL':<5} {details.replace(str(path), path.name)}")
        os.chdir(folder)
    print(f"{len(paths) - failures} of {len(paths)} as expected.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
