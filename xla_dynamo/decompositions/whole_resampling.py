"""Keep each call of a resampling of images one operator while torch traces a graph.

Before any table of decompositions is asked, torch's Python dispatcher replaces these operators by
kernels that gather four or sixteen elements for each result; their gradients are scatters. The rule
(`lowerings.resampling`) applies one linear map for each dimension, and its transpose for gradients.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from xla_dynamo.torch_private import (
    DispatchKey,
    OpOverload,
    forget_kernels,
    suggest_memory_format,
    upsample_compute_output_size,
)

aten = torch.ops.aten

_OPERATORS = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)

Kernels: TypeAlias = dict[DispatchKey, Callable[..., Any]]

DECOMPOSING = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def overloads() -> list[OpOverload]:
    """Those of the forward operators that a graph may have, as long as they are whole."""
    packets = [getattr(aten, name) for name in _OPERATORS]
    return [op for packet in packets for op in (packet.default, packet.vec)]


@contextmanager
def resampling_is_whole() -> Iterator[None]:
    """What is traced inside has these operators as `.default`, and their backward ones."""
    changes: dict[OpOverload, Kernels] = {}
    for name in _OPERATORS:
        packet, backward = getattr(aten, name), getattr(aten, f"{name}_backward").default
        changes |= {
            packet.default: {},
            packet.vec: dict.fromkeys(DECOMPOSING, _with_sizes(packet.default)),
            backward: {DispatchKey.Meta: _gradient_of(backward)},
        }
    with replaced_kernels(changes):
        yield


class _Replaced:
    """The kernels that are replaced now, by all threads together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: list[Mapping[OpOverload, Kernels]] = []
        self._before: dict[OpOverload, Kernels] = {}

    def add(self, changes: Mapping[OpOverload, Kernels]) -> None:
        """Put changes over those that are active."""
        with self._lock:
            for op in changes:
                self._before.setdefault(op, dict(op.py_kernels))
            self._active.append(changes)
            self._write(changes)

    def remove(self, changes: Mapping[OpOverload, Kernels]) -> None:
        """Take changes out from among the active ones, in whatever order threads do."""
        with self._lock:
            self._active = [other for other in self._active if other is not changes]
            self._write(changes)
            still = set().union(*self._active)
            self._before = {op: known for op, known in self._before.items() if op in still}

    def _write(self, ops: Iterable[OpOverload]) -> None:
        for op in ops:
            kernels = self._before[op]
            for changes in self._active:
                if op in changes:
                    others = {k: v for k, v in kernels.items() if k not in DECOMPOSING}
                    kernels = {**changes[op], **others}
            _replace(op, kernels)


_replaced = _Replaced()


@contextmanager
def replaced_kernels(changes: Mapping[OpOverload, Kernels]) -> Iterator[None]:
    """Operators have these kernels of torch's Python dispatcher, and none else that decompose.

    They do for all threads. Behind the last of the blocks that overlap, torch's tables are as they
    were.
    """
    _replaced.add(changes)
    try:
        yield
    finally:
        _replaced.remove(changes)


def _replace(op: OpOverload, kernels: Kernels) -> None:
    """Make these the kernels of torch's Python dispatcher, which remembers what it has chosen.

    Another thread that dispatches meanwhile finds the old kernel or the new one.
    """
    op.py_kernels.update(kernels)
    for key in op.py_kernels.keys() - kernels.keys():
        del op.py_kernels[key]
    forget_kernels(op)


def _with_sizes(op: OpOverload) -> Callable[..., torch.Tensor]:
    """The .vec overload, which is given sizes or factors; C++'s takes no sizes that are open."""

    def vec(x: torch.Tensor, output_size: Any, *settings: Any) -> torch.Tensor:
        *align_corners, factors = settings
        sizes = upsample_compute_output_size(x.size(), output_size, factors)
        return op(x, sizes, *align_corners, *(factors or [None] * len(sizes)))

    return vec


def _gradient_of(backward: OpOverload) -> Callable[..., torch.Tensor]:
    """What a gradient is like; C++'s takes no sizes that are open either."""
    keeps_format = backward is not aten.upsample_bicubic2d_backward.default  # as eager's kernels

    def like(grad: torch.Tensor, _: Any, input_size: Any, *__: Any) -> torch.Tensor:
        last = suggest_memory_format(grad) if keeps_format else None
        return grad.new_empty(input_size).contiguous(memory_format=last or torch.contiguous_format)

    return like
