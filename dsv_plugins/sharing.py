"""Sums over sets of embeddings that are computed once for all who ask, as long as someone shares them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["shared", "shared_sums"]

Result = TypeVar("Result")

_sums: ContextVar[dict[Hashable, object] | None] = ContextVar("sums", default=None)


@contextmanager
def shared_sums() -> Iterator[None]:
    """Share within this context what the losses sum up, and forget it at the end.

    Sets are known by their content. So it does not matter that every selector gets copies of its own, and a copy that
    a selector has changed is another set.
    """
    token = _sums.set({})
    try:
        yield
    finally:
        _sums.reset(token)


def shared(function: Callable[..., Result]) -> Callable[..., Result]:
    """Make a function of tensors compute once for the same content in `shared_sums`. No one may change its result."""

    @wraps(function)
    def once(*tensors: Tensor) -> Result:
        sums = _sums.get()
        if sums is None:
            return function(*tensors)
        key = (function, *map(_content, tensors))
        if key not in sums:
            sums[key] = function(*tensors)
        result: Result = sums[key]  # type: ignore[assignment]
        return result

    return once


def _content(tensor: Tensor) -> Hashable:
    values = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return tensor.device, tensor.dtype, tensor.shape, hashlib.sha256(values.data).digest()
