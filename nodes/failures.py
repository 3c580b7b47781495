"""An exception for people: what went wrong and where, in a few lines, and where the whole story is.

The first line is a sentence; those below it name the last places that were reached, files and lines, innermost
last. Errors that fedsim raises on purpose say all there is to say in their sentence.
"""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary

from fedsim.errors import FedsimError

_FRAMES = 3
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
_PACKAGES = Path(sysconfig.get_path("purelib"))


def sentence(error: BaseException) -> str:
    if isinstance(error, FedsimError):
        return str(error)
    reason = " ".join(str(error).split())
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def explained(error: BaseException, log: str) -> str:
    """The sentence, the last frames and `log`, which says where the traceback is."""
    frames = [] if isinstance(error, FedsimError) else _last(traceback.extract_tb(error.__traceback__))
    return "\n".join([sentence(error), *map(_shown, frames), f"  {log}"])


def _last(frames: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """The innermost ones; where these are all a library's, the last one before it as well."""
    own = [place for place, frame in enumerate(frames) if not frame.filename.startswith(_LIBRARIES)]
    start = max(len(frames) - _FRAMES, 0)
    return [*([frames[own[-1]]] if own and own[-1] < start else []), *frames[start:]]


def _shown(frame: FrameSummary) -> str:
    path = Path(frame.filename)
    for folder in (Path.cwd(), _PACKAGES):
        if path.is_relative_to(folder):
            path = path.relative_to(folder)
    return f"  {path}, line {frame.lineno}, in {frame.name}" + (f": {frame.line}" if frame.line else "")
