"""Kernels of torch that programs for the CPU call, a share in each thread (`foreign_calls`)."""

import ctypes
import functools
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from xla_dynamo.runtime.cpu.foreign_calls import Kernel, kernel
from xla_dynamo.torch_private import invert_perm

aten = torch.ops.aten


@functools.cache
def _library() -> Any:
    """The library with torch's kernels, OpenMP and MKL; None where it has other ones."""
    path = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    names = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    return library if all(hasattr(library, name) for name in names) else None


def can_share() -> bool:
    """Whether a thread can be told to use no others."""
    return _library() is not None


@contextmanager
def alone() -> Iterator[None]:
    """No threads but this one, which is XLA's, and no autograd."""
    library = _library()
    threads = torch.get_num_threads()  # the first time in a thread, this sets what is set here
    library.omp_set_num_threads(1)
    library.MKL_Set_Num_Threads_Local(1)
    try:
        with torch.no_grad():
            yield
    finally:  # scripts of calls use torch's other threads (`call_scripts`)
        library.omp_set_num_threads(threads)
        library.MKL_Set_Num_Threads_Local(0)


def tensor_at(
    address: int, shape: Sequence[int], order: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor whose elements lie at an address, with its dimensions in this order in memory."""
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
    flat = torch.frombuffer(memory, dtype=dtype)
    return flat.view([shape[d] for d in order]).permute(invert_perm(order))


_HEADS_LAST, _SUMS = [0, 2, 1, 3], [0, 2, 1]


class _Attention(Kernel):
    """The common part of both kernels of attention.

    The text is JSON: shapes of query, key, value and mask (or null) as [batch, heads, length,
    size], `dtypes` of query and mask, `causal` and `scale`. In memory the heads come behind the
    lengths, also of the logarithms of the sums; the mask is row-major.
    """

    def __init__(self, text: str) -> None:
        """Read the text."""
        given = json.loads(text)
        self._query, self._key, self._value, self._mask = (
            given[name] for name in ("query", "key", "value", "mask")
        )
        self._dtype, self._mask_dtype = (getattr(torch, name) for name in given["dtypes"])
        self._settings = {"is_causal": given["causal"], "scale": given["scale"]}
        self._sums = self._query[:3]
        self._output = [*self._sums, self._value[3]]

    def shares(self, threads: int) -> Sequence[Any]:
        """Ranges of the batch, or of the heads of keys, each with the queries that it serves."""
        batch, heads = self._key[:2]
        if batch % threads == 0 or batch > heads:
            return [(part, slice(0, heads)) for part in ranges_of(batch, threads)]
        return [(slice(0, batch), part) for part in ranges_of(heads, threads)]

    def _at(
        self, share: Any, address: int, shape: Sequence[int], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        order = _SUMS if len(shape) == 3 else _HEADS_LAST
        tensor = tensor_at(address, shape, order, dtype or self._dtype)
        return self._part(tensor, share)

    def _part(self, tensor: torch.Tensor, share: Any) -> torch.Tensor:
        """A share of a tensor; of a mask that is the same for all heads, all of it."""
        batch, heads = share
        several = tensor.shape[1] // self._key[1]
        if tensor.shape[0] > 1:
            tensor = tensor[batch]
        if tensor.shape[1] > 1:
            tensor = tensor[:, heads.start * several : heads.stop * several]
        return tensor

    def _mask_at(self, share: Any, addresses: Sequence[int]) -> torch.Tensor | None:
        if self._mask is None:
            return None
        return self._part(tensor_at(addresses[-1], self._mask, range(4), self._mask_dtype), share)


@kernel("attention")
class Attention(_Attention):
    """torch's fused attention for the CPU: softmax(query @ key.mT * scale + mask) @ value.

    Operands are query, key, value and, last, the mask; results the output and the logarithms of
    the sums.
    """

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
        """Compute a range."""
        shapes = (self._query, self._key, self._value)
        with alone():
            inputs = [self._at(share, *pair) for pair in zip(operands, shapes, strict=False)]
            output, sums = aten._scaled_dot_product_flash_attention_for_cpu(
                *inputs, attn_mask=self._mask_at(share, operands), **self._settings
            )
            self._at(share, results[0], self._output).copy_(output)
            self._at(share, results[1], self._sums, torch.float32).copy_(sums)


@kernel("attention_gradients")
class AttentionGradients(_Attention):
    """Its gradients.

    Operands are the gradient of the output, query, key, value, output, the logarithms of the sums
    and, last, the mask; results the gradients of query, key and value.
    """

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
        """Compute a range."""
        inputs = (self._query, self._key, self._value)
        shapes = (self._output, *inputs, self._output)
        with alone():
            given = [self._at(share, *pair) for pair in zip(operands, shapes, strict=False)]
            sums = self._at(share, operands[5], self._sums, torch.float32)
            gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *given,
                sums,
                dropout_p=0.0,
                attn_mask=self._mask_at(share, operands),
                **self._settings,
            )
            for address, shape, gradient in zip(results, inputs, gradients, strict=True):
                self._at(share, address, shape).copy_(gradient)


def ranges_of(count: int, number: int) -> list[slice]:
    """Ranges of about the same size; fewer where there are fewer things."""
    bounds = [count * i // number for i in range(number + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if a < b]


class _Grouped(Kernel):
    """The common part of both kernels of groups.

    The text is JSON: the sizes `rows`, `inner`, `columns` and `groups`, `order` of the dimensions
    of the matrices in memory, `dtype`, and `ends_dtype`.
    """

    def __init__(self, text: str) -> None:
        """Read the text."""
        given = json.loads(text)
        self._sizes = [given[name] for name in ("rows", "inner", "columns", "groups")]
        self._order = given["order"]
        self._dtype, self._ends_dtype = (getattr(torch, given[n]) for n in ("dtype", "ends_dtype"))

    def _rows_at(self, address: int, width: int) -> torch.Tensor:
        return tensor_at(address, [self._sizes[0], width], [0, 1], self._dtype)

    def _matrices_at(self, address: int) -> torch.Tensor:
        _, inner, columns, groups = self._sizes
        return tensor_at(address, [groups, inner, columns], self._order, self._dtype)

    def _groups(self, address: int) -> Iterator[tuple[int, slice]]:
        """The number of each group, and which rows are in it."""
        start, rows, groups = 0, self._sizes[0], self._sizes[3]
        for group, end in enumerate(tensor_at(address, [groups], [0], self._ends_dtype).tolist()):
            stop = max(min(end, rows), start)
            yield group, slice(start, stop)
            start = stop


@kernel("grouped_product")
class GroupedProduct(_Grouped):
    """Products of rows, sorted by group, each with its group's matrix; 0 for rows in no group.

    Operands are rows [rows, inner], matrices [groups, inner, columns] and the groups' ends; the
    result is [rows, columns].
    """

    def shares(self, threads: int) -> Sequence[Any]:
        """Ranges of the columns."""
        return ranges_of(self._sizes[2], threads)

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
        """Compute some columns."""
        _, inner, columns, _ = self._sizes
        with alone():
            x, matrices = self._rows_at(operands[0], inner), self._matrices_at(operands[1])
            out = self._rows_at(results[0], columns)[:, share]
            out.zero_()
            for group, rows in self._groups(operands[2]):
                if rows.start < rows.stop:
                    torch.mm(x[rows], matrices[group][:, share], out=out[rows])


@kernel("grouped_outer_product")
class GroupedOuterProduct(_Grouped):
    """The gradient of the matrices: for each group, its rows' x.T @ y; 0 for groups without rows.

    Operands are x [rows, inner], y [rows, columns] and the groups' ends; the result is [groups,
    inner, columns].
    """

    def shares(self, threads: int) -> Sequence[Any]:
        """Ranges of the inner size."""
        return ranges_of(self._sizes[1], threads)

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
        """Compute some rows of each matrix."""
        _, inner, columns, _ = self._sizes
        with alone():
            x, y = self._rows_at(operands[0], inner)[:, share], self._rows_at(operands[1], columns)
            out = self._matrices_at(results[0])[:, share]
            for group, rows in self._groups(operands[2]):
                if rows.start < rows.stop:
                    torch.mm(x[rows].T, y[rows], out=out[group])
                else:
                    out[group].zero_()
