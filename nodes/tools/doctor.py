"""What an installation needs, looked at one thing after the other; every problem comes with what to do."""

import importlib
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from fedsim.errors import UserError
from nodes.launchers.processes import available_bytes, cores
from protocol.kernel import read_counters

Level = Literal["ok", "note", "problem"]

PACKAGES = (
    *("click", "jinja2", "matplotlib", "msgpack", "msgspec", "numpy", "pandas", "pillow", "psutil", "pyzmq"),
    *("rich", "safetensors", "scikit-learn", "scipy", "threadpoolctl", "tomli-w", "torch", "torchvision"),
)
_OLDEST_PYTHON = (3, 11)
_GIBIBYTE = 1 << 30
_LEAST_MEMORY_BYTES = 2 * _GIBIBYTE
_FILES_PER_CLIENT = 4
"""Descriptors that the server and the launcher need for each client, generously."""
_PROBE = b"x" * 1000
_CIFAR_SHAPE, _CIFAR_CLASSES = (3, 32, 32), 10


@dataclass(frozen=True)
class Finding:
    """One line of the report. A note is good to know; with a problem, runs fail."""

    what: str
    level: Level
    text: str
    remedy: str = ""


def examine(port: int = 0, data_dir: str = "", clients: int = 20, model_group: str = "HtFE8") -> Iterator[Finding]:
    """All findings, in the order in which they should be mended; without its packages no more is looked at."""
    yield from check_python()
    packages, imports = list(check_packages(PACKAGES)), list(check_imports())
    yield from packages
    yield from check_namesake()
    yield from imports
    if any(finding.level == "problem" for finding in (*packages, *imports)):
        yield Finding("the rest", "note", "not looked at: it needs these packages", "mend them and try again")
        return
    yield from check_gpus()
    yield from check_machine()
    yield from check_capacity(clients, model_group)
    yield from check_cache()
    yield from check_data(data_dir)
    yield from check_port(port)
    yield from check_counters()


def check_python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        yield Finding("python", "problem", version, f"install Python {oldest} or newer")
    else:
        yield Finding("python", "ok", version)


def check_packages(names: tuple[str, ...]) -> Iterator[Finding]:
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", "problem", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    yield Finding("packages", "ok", ", ".join(found))


def check_namesake() -> Iterator[Finding]:
    """Another project of the package index is called fedsim and writes into a folder of the same name."""
    try:
        version = metadata.version("fedsim")
    except metadata.PackageNotFoundError:
        return
    remedy = "pip uninstall fedsim, then install this one again (fedsim-htfl)"
    yield Finding("name", "problem", f"another package called fedsim ({version}) lies in the same folder", remedy)


def check_imports() -> Iterator[Finding]:
    from fedsim.compat import import_torchvision

    loaders: dict[str, Callable[[], object]] = {
        "psutil": lambda: importlib.import_module("psutil"),
        "torch": lambda: importlib.import_module("torch"),
        "torchvision": import_torchvision,
        "zmq": lambda: importlib.import_module("zmq"),
    }
    for name, load in loaders.items():
        try:
            module = load()
        except Exception as error:  # a broken library fails in its own way
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            yield Finding(name, "problem", f"cannot be imported: {reason}", f"install {name} again")
            continue
        yield Finding(name, "ok", f"{getattr(module, '__version__', '')} imported")
        if name == "zmq":
            yield from _check_encryption()


def _check_encryption() -> Iterator[Finding]:
    import zmq

    if zmq.has("curve"):
        yield Finding("encryption", "ok", f"libzmq {zmq.zmq_version()} has CURVE")
    else:
        yield Finding("encryption", "note", "libzmq has no CURVE", "install pyzmq from PyPI to use keys")


def check_gpus() -> Iterator[Finding]:
    from nodes.launchers.gpus import torch_cuda, visible_gpus

    gpus, cuda = visible_gpus(os.environ), torch_cuda()
    if gpus and not cuda:
        yield Finding(
            "gpu", "note", f"{len(gpus)} GPUs, but torch is built for the CPU", "install torch with CUDA"
        )
    elif gpus:
        yield Finding("gpu", "ok", f"{len(gpus)} GPUs, torch with CUDA {cuda}")
    else:
        yield Finding("gpu", "note", "none; clients train on the cores")


def check_capacity(num_clients: int, group: str) -> Iterator[Finding]:
    """What a run with so many of these models would do, on data of CIFAR's size."""
    import torch

    from fedsim import models
    from fedsim.config import Model
    from nodes.client.options import ClientOptions
    from nodes.launchers.capacity import Expected, plan_host

    model, sizes = Model(group=group), dict[str, int]()
    for client in range(num_clients):
        if (name := models.architecture(model, client)) not in sizes:
            with torch.device("meta"):
                built = models.build(model, client, _CIFAR_SHAPE, _CIFAR_CLASSES)
            sizes[name] = sum(tensor.nbytes for tensor in built.state_dict().values())
    expected = {client: sizes[models.architecture(model, client)] for client in range(num_clients)}
    options = ClientOptions(connect="", ids=list(range(num_clients)))
    work = {client: float(size) for client, size in expected.items()}
    for memory in plan_host(options, Expected(work, expected)).memories:
        number, executors = len(memory.model_bytes), min(memory.slots, len(memory.model_bytes))
        where = "this machine" if memory.name == "memory" else memory.name
        text = f"{number} clients of {group} on {where}"
        shared = f"shared, {executors} executor{'' if executors == 1 else 's'}"
        if memory.num_own == number:
            yield Finding("capacity", "ok", f"{text}: fit in processes of their own")
        elif memory.fits_shared:
            yield Finding("capacity", "ok", f"{text}: own processes fit {memory.num_own}, so {shared}")
        else:
            needed, free = memory.need.shared_bytes / _GIBIBYTE, memory.free_bytes / _GIBIBYTE
            remedy = "take smaller models, or free some of it"
            yield Finding(
                "capacity", "note", f"{text}: {shared}, would take {needed:.1f} of {free:.1f} GiB free", remedy
            )


def check_machine() -> Iterator[Finding]:
    import psutil

    available = min(psutil.virtual_memory().available, available_bytes())
    text = f"{len(cores())} cores, {available / _GIBIBYTE:.1f} GiB of memory free"
    if available < _LEAST_MEMORY_BYTES:
        least = _LEAST_MEMORY_BYTES // _GIBIBYTE
        yield Finding("machine", "note", text, f"below {least} GiB use few clients and small models")
    else:
        yield Finding("machine", "ok", text)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # runs raise their own limit as far as they may
    clients = "any number of" if limit == resource.RLIM_INFINITY else f"about {limit // _FILES_PER_CLIENT}"
    yield Finding("open files", "ok", f"enough for {clients} clients; raise with ulimit -Hn")


def check_cache() -> Iterator[Finding]:
    from fedsim.data.cache import cache_folder, locked

    try:
        with locked(cache_folder() / "doctor.lock"):
            pass
        (cache_folder() / "doctor.lock").unlink()
    except UserError as error:
        yield Finding("cache", "problem", str(error), "set FEDSIM_CACHE to a folder that can be written")
    else:
        yield Finding("cache", "ok", str(cache_folder()))


def check_data(data_dir: str = "") -> Iterator[Finding]:
    from fedsim.data import sources

    embedded = ", ".join(sorted(sources.SYNTHETIC))
    yield Finding("data", "ok", f"{embedded} need no files")
    for name, known in sources.KNOWN.items():
        try:
            found = sources.find_here(name, data_dir)
        except UserError as error:
            yield Finding(f"data {name}", "note", str(error), "put a sound copy in its place")
            continue
        if found:
            where = found.files[0] if found.files else "embedded"
            yield Finding(f"data {name}", "ok", str(where))
        else:
            download = "a run downloads it, or " if known.download else ""
            yield Finding(f"data {name}", "note", "not here", download + known.remedy.format(name=name))


def check_port(port: int = 0) -> Iterator[Finding]:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", port))
            probe.listen()
            yield Finding("port", "ok", f"127.0.0.1:{probe.getsockname()[1]} can be bound")
    except OSError as error:
        yield Finding(
            "port", "problem", f"127.0.0.1:{port} cannot be bound: {error.strerror}", "choose another with --port"
        )


def check_counters() -> Iterator[Finding]:
    """A thousand bytes through the loopback: does the kernel count them?"""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as sender:
            receiver, _ = listener.accept()
            with receiver:
                sender.sendall(_PROBE)
                received = 0
                while received < len(_PROBE):
                    received += len(receiver.recv(len(_PROBE)))
                counters = read_counters(receiver.fileno())
    if counters is None:
        remedy = "runs work, but bytes are not checked; use Linux 4.19 or newer"
        yield Finding("kernel", "note", "no TCP byte counters", remedy)
    elif counters.received != len(_PROBE):
        yield Finding(
            "kernel", "problem", f"counts {counters.received} of {len(_PROBE)} bytes", "report this kernel"
        )
    else:
        yield Finding("kernel", "ok", "counts the bytes of TCP connections (TCP_INFO)")
