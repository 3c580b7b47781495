"""How many threads the server's optimizers use: all that they are given, or one where the work is small."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Thousands of small steps: on a busy machine a second thread makes each of them wait for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if wanted else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
