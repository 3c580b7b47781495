"""Folders that PFLlib and HtFLlib generate: `train/<client>.npz`, `test/<client>.npz`, `config.json`."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, check_labels, reading
from fedsim.data.sources.unpickle import read_object_npz
from fedsim.errors import UserError


def find(folder: Path) -> Source | None:
    """Its files are config.json, the training files client by client, the test files client by client."""
    config = folder / "config.json"
    if not (config.is_file() and (folder / "train" / "0.npz").is_file()):
        return None
    num_clients = _read_config(config)["num_clients"]
    files = [folder / part / f"{client}.npz" for part in ("train", "test") for client in range(num_clients)]
    if missing := [path for path in files if not path.is_file()]:
        raise UserError(
            f"{config} speaks of {num_clients} clients but {missing[0]} is missing; generate the folder again."
        )
    return Source(partial(read, config, files), (config, *files))


def read(config_file: Path, client_files: list[Path], allocate: Allocate) -> Decoded:
    config = _read_config(config_file)
    parts = [_read_client(path, config["num_classes"]) for path in client_files]
    labels = [own for _, own in parts]
    _check_counts(config, config_file, labels)
    inputs = _of_one_type([own for own, _ in parts])
    with reading(config_file.parent):
        stored = allocate((sum(map(len, labels)), *inputs[0].shape[1:]), inputs[0].dtype.type)
        np.concatenate(inputs, out=stored)
    sizes = np.array([len(own) for own in labels]).reshape(2, -1).T  # (M, 2)
    num_train = int(sizes[:, 0].sum())
    return Decoded(stored, np.concatenate(labels), config["num_classes"], num_train, client_sizes=sizes)


def _read_config(path: Path) -> dict[str, Any]:
    with reading(path):
        config = json.loads(path.read_text())
        return config | {key: int(config[key]) for key in ("num_clients", "num_classes")}


def _read_client(path: Path, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    with reading(path):
        content = read_object_npz(path, "data")
        inputs, labels = as_images(np.asarray(content["x"])), np.asarray(content["y"])
    return inputs, check_labels(labels, len(inputs), num_classes, path)


def as_images(inputs: np.ndarray) -> np.ndarray:
    """The uint8 (N, H, W, ch) that normalised float32 (N, ch, H, W) came from; other inputs stay float32.

    A quarter of the memory and the same values again: (x/255 − .5)/.5 takes 256 values, 1/127.5 apart.
    """
    if inputs.ndim != 4:
        return inputs.astype(np.float32)
    levels = (inputs + 1) * 127.5
    pixels = np.clip(np.rint(levels), 0, 255)
    if np.abs(levels - pixels).max(initial=0) > 1e-3:
        return inputs.astype(np.float32)
    return pixels.astype(np.uint8).transpose(0, 2, 3, 1)


def _of_one_type(inputs: list[np.ndarray]) -> list[np.ndarray]:
    """One client whose images are not on the grid of bytes makes all of them float32 again."""
    if len({own.dtype for own in inputs}) == 1:
        return inputs
    return [
        (own.transpose(0, 3, 1, 2) / np.float32(127.5) - 1) if own.dtype == np.uint8 else own for own in inputs
    ]


def _check_counts(config: dict[str, Any], path: Path, labels: list[np.ndarray]) -> None:
    """PFLlib writes [[class, samples], …] per client, training and test part together."""
    num_clients = config["num_clients"]
    for client, stated in enumerate(config.get("Size of samples for labels in clients", [])):
        own = np.concatenate([labels[client], labels[client + num_clients]])
        classes, counts = np.unique(own, return_counts=True)
        held = np.stack([classes, counts], axis=1).tolist()
        if sorted(stated) != held:
            raise UserError(
                f"{path} says that client {client} holds {sum(size for _, size in stated)} samples of "
                f"{len(stated)} classes, but its files hold {len(own)} of {len(held)}; "
                "generate the folder again."
            )
