"""The bytes that autograd keeps between the forward and the backward pass."""

from collections.abc import Callable, Iterable

import torch


def saved_bytes(function: Callable, parameters: Iterable = ()) -> tuple[torch.Tensor, int]:
    """The result of a function, and the bytes of the storages saved for its backward.

    parameters  whose storages are not counted
    """
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function()
    own = {p.untyped_storage().data_ptr() for p in parameters}
    return result, sum(size for pointer, size in kept.items() if pointer not in own)
