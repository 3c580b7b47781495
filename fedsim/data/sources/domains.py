"""Several sets of the same classes as domains of one: `domains:PATH`, each folder or .npz file in it is one.

With `--partition natural` each client has one domain, so that clients differ in what their samples look like and
not in their classes: a feature shift. DomainNet, Office or PACS are such folders of class folders.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, reading
from fedsim.errors import UserError

PREFIX = "domains:"


def find(text: str, locate: Callable[[Path], Source]) -> Source:
    folder = Path(text.removeprefix(PREFIX)).expanduser().resolve()
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give the one whose folders are the domains.")
    places = [path for path in sorted(folder.iterdir()) if path.is_dir() or path.suffix == ".npz"]
    places = [path for path in places if not path.name.startswith(".")]
    if len(places) < 2:
        raise UserError(
            f"{folder} holds {len(places)} domains; it needs two or more folders of class folders, or .npz files."
        )
    found: dict[str, Source] = {}
    for path in places:
        name = path.name if path.is_dir() else path.stem  # a folder's name may have a dot, and has no suffix
        if name in found:
            raise UserError(f"{folder} holds a folder {name} and {name}.npz, one domain's name twice; rename one.")
        found[name] = locate(path)
    return Source(
        partial(_read, found, folder),
        tuple(file for source in found.values() for file in source.files),
        settings=" ".join(f"{name} {source.settings}" for name, source in found.items()),
        name=folder.name,
    )


def _read(found: dict[str, Source], folder: Path, allocate: Allocate) -> Decoded:
    """All training sets, domain by domain, then all test sets; classes of the same name are the same."""
    with reading(folder):
        parts = [source.read(lambda shape, dtype: np.empty(shape, dtype)) for source in found.values()]
    kinds = {(own.inputs.shape[1:], own.inputs.dtype.str, own.kind, own.vocabulary) for own in parts}
    if len(kinds) > 1:
        shapes = ", ".join(f"{name} {own.inputs.shape[1:]}" for name, own in zip(found, parts, strict=True))
        raise UserError(
            f"samples of the domains in {folder} differ ({shapes}); set data.image_size, or make them alike."
        )
    named = [own.class_names or tuple(map(str, range(own.num_classes))) for own in parts]
    names = sorted(
        {name for own in named for name in own},
        key=lambda name: (not name.isdigit(), len(name) * name.isdigit(), name),
    )
    numbers = [
        np.array([names.index(name) for name in own])[part.labels] for own, part in zip(named, parts, strict=True)
    ]
    trained = [np.arange(len(own.labels)) < own.num_train for own in parts]
    order = [*trained, *(~own for own in trained)]
    inputs = allocate(
        (sum(len(own.labels) for own in parts), *parts[0].inputs.shape[1:]), parts[0].inputs.dtype.type
    )
    np.concatenate([own.inputs[rows] for own, rows in zip([*parts, *parts], order, strict=True)], out=inputs)
    domains = [np.full(len(own.labels), number) for number, own in enumerate(parts)]

    def ordered(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([own[rows] for own, rows in zip([*arrays, *arrays], order, strict=True)])

    return Decoded(
        inputs,
        ordered(numbers),
        len(names),
        int(sum(own.sum() for own in trained)),
        class_names=() if names == list(map(str, range(len(names)))) else tuple(names),
        kind=parts[0].kind,
        vocabulary=parts[0].vocabulary,
        groups=ordered(domains),
        group_names=tuple(found),
    )
