"""A device that refuses to mix with the CPU, as a GPU does, where there is none.

    with DeviceDouble() as double:
        half = assembly.make_client(experiment, federation, 0, double.device)

A tensor on it is a `There`, which holds its values in a CPU tensor that nobody else sees. Inside the `with`, what
is made on `double.device` or moved to it is one. An operation that takes a `There` and a CPU tensor of more than
one number fails, and `numpy()` does. What is computed has the bits of the CPU. `num_waits` counts how often a
number was read from the device, for which a real one would have to be waited for.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
"""Not CUDA's own name, for which torch would look for a driver."""

_aten = torch.ops.aten
_MOVES = {_aten._to_copy, _aten.copy_, _aten.to}
_TAKES_CPU_INDICES = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_WAITS = {_aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.unique_dim, _aten._unique2}


class There(torch.Tensor):
    """A tensor on the device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "There":
        with torch.inference_mode(False):  # a view of an inference tensor cannot be wrapped
            made: There = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=DEVICE,
                requires_grad=inner.requires_grad,
            )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{operation} outside of the double")


class DeviceDouble(TorchDispatchMode):
    device = DEVICE

    def __init__(self) -> None:
        super().__init__()
        self.num_waits = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kind = operation.overloadpacket
        given = tree_flatten((args, kwargs))[0]
        tensors = [item for item in given if isinstance(item, torch.Tensor)]
        there = [item for item in tensors if isinstance(item, There)]
        self.num_waits += bool(there) and kind in _WAITS
        wanted = [item for item in given if isinstance(item, torch.device)]
        stays = wanted == [DEVICE] if wanted else bool(there)
        from_cpu = getattr(kwargs.get("generator"), "device", DEVICE) != DEVICE
        if (stays and from_cpu) or (there and kind not in _MOVES and self._mixes(kind, args, tensors)):
            raise RuntimeError(f"{operation}: expected all tensors to be on the same device")
        inner = operation(*tree_map(_inside, args), **tree_map(_inside, kwargs))
        if operation._schema.is_mutable:  # the tensor that it changed, and not another one around the same values
            return _same(inner, [*args, *kwargs.values()])
        return tree_map(_outside, inner) if stays else inner

    @staticmethod
    def _mixes(kind: Any, args: Any, tensors: list[torch.Tensor]) -> bool:
        indexes = kind in _TAKES_CPU_INDICES and isinstance(args[0], There)
        return any(not isinstance(item, There) and item.dim() for item in (tensors[:1] if indexes else tensors))


def _inside(item: Any) -> Any:
    """As the CPU has it: a tensor's values, and for a device the CPU."""
    if isinstance(item, torch.device):
        return torch.device("cpu")
    return item.inner if isinstance(item, There) else item


def _outside(item: Any) -> Any:
    return There(item) if isinstance(item, torch.Tensor) else item


def _same(inner: Any, given: list[Any]) -> Any:
    """Of an operation in place, what it was given."""
    outer = {id(_inside(item)): item for item in tree_flatten(given)[0] if isinstance(item, torch.Tensor)}
    return tree_map(lambda item: outer.get(id(item), item), inner)
