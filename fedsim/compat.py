"""One repair for installations whose torchvision does not fit its torch."""

import importlib
from types import ModuleType

_MISSING_OPERATOR = "operator torchvision::nms does not exist"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_library = None  # a torch.library.Library forgets its schemas when it is collected


def import_torchvision() -> ModuleType:
    """torchvision, also where its compiled operators cannot be loaded.

    On import it registers shape rules for `nms` and `qnms`, which fails when the compiled library that
    defines them is absent or was built for another torch. Nothing here detects boxes, so declaring the two
    is enough.
    """
    global _library
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if _MISSING_OPERATOR not in str(error):
            raise
    import torch

    _library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _library.define(f"{name}{_SCHEMA}")
    return importlib.import_module("torchvision")
