"""Refuse a call that eager refuses, at the call: try eager's kernel on a few made-up elements.

Torch's fake kernels tell shapes and leave out many checks: of dtypes, of numbers as in
`uniform_(5, 2)`, of nothing to reduce. What they let through would fail when the step is compiled,
far from its line, or not at all.
"""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.contents import Geometry, span
from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.torch_private import OpOverload, has_kernel, storage_id

aten = torch.ops.aten

# A call is tried at its own sizes if it reads and makes no more elements than this.
_FEW = 1 << 18
# Values in turn for floating point, whole numbers and masks: an operator may not take some of
# them, as cholesky does not take most matrices.
_VALUES: Sequence[tuple[Any, int, bool]] = ((0.5, 0, False), (1.0, 1, True), ("identity", 1, False))
# Numbers that have to agree with each other, as none of these do.
_OF_SPECIAL_VALUES = frozenset(
    {
        aten.segment_reduce.default, aten._segment_reduce_backward.default,
        aten.repeat_interleave.Tensor,
    }
)  # fmt: skip
_KERNELS_FOR_THE_CPU = (
    "CPU",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
# Of these the CPU lacks kernels that other devices have.
_HALVES = (torch.float16, torch.bfloat16)


def refuse_as_eager(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], made: Sequence[Geometry]
) -> None:
    """Raise what eager says to a call, whatever values its tensors have.

    Args:
        signature: the operator's.
        args: the call's; of its tensors sizes, strides and dtypes are read.
        kwargs: the call's.
        made: the geometries of what it makes.
    """
    if not _is_for_the_cpu(signature.op):
        return
    tensors = list(_tensors((args, list(kwargs.values()))))
    shrinks = _shrinks(signature, tensors)
    elements = sum(t.numel() for t in tensors) + sum(size.numel() for _, size, *_ in made)
    if elements > _FEW and not shrinks:
        return
    errors: list[Exception] = []
    for values in _VALUES:
        try:
            _try(signature, args, kwargs, functools.partial(_tensor, values, shrinks), shrinks)
            return
        except NotImplementedError as error:
            if any(t.dtype in _HALVES for t in tensors):
                return
            errors.append(error)
        except Exception as error:
            errors.append(error)
    raise errors[0]


def refuse_beyond_memory(view: torch.Tensor) -> None:
    """Raise eager's error for `as_strided` beyond the memory that there is."""
    size, stride, first = view.size(), view.stride(), view.storage_offset()
    there = view.untyped_storage().nbytes()
    needed = (first + span(size, stride)) * view.itemsize
    if view.numel() and needed > there:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {first}, and "
            f"itemsize {view.itemsize} requiring a storage size of {needed} are out of bounds for "
            f"storage of size {there}"
        )


def _is_for_the_cpu(op: OpOverload) -> bool:
    ours = op.namespace == "aten" and op not in _OF_SPECIAL_VALUES
    return ours and any(has_kernel(op.name(), key) for key in _KERNELS_FOR_THE_CPU)


def _shrinks(signature: Signature, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether each element is made as every other, so that one tells as much as all."""
    if torch.Tag.pointwise in signature.op.tags:
        return True
    draws_in_place = signature.draws and bool(signature.written) and len(tensors) == 1
    return draws_in_place or (not tensors and "size" in signature.positions)


def refuse_overlaps(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager says to a write into memory that the call reads elsewhere, if it minds."""
    memory: dict[int, torch.UntypedStorage] = {}

    def sharing(like: torch.Tensor) -> torch.Tensor:
        storage = memory.get(storage_id(like))
        if storage is None:
            size = like.untyped_storage().nbytes()
            storage = torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
            memory[storage_id(like)] = storage
        made = torch.empty(0, dtype=like.dtype, device="cpu")
        return made.set_(storage, like.storage_offset(), like.size(), like.stride())

    if not _is_for_the_cpu(signature.op):
        return
    try:
        _try(signature, args, kwargs, sharing, shrinks=False)
    except RuntimeError as error:
        if "unsupported operation" in str(error):
            raise
    except Exception:  # zeros may be wrong values
        return


def _try(
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensor: Callable[[torch.Tensor], torch.Tensor],
    shrinks: bool,
) -> None:
    """Run eager's kernel on tensors of the CPU instead of the call's."""

    def put(value: Any, name: str = "") -> Any:
        if isinstance(value, torch.Tensor):
            return tensor(value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            return None
        if isinstance(value, list | tuple):
            few = shrinks and name == "size"
            return [min(n, 1) for n in value] if few else [put(v) for v in value]
        return value

    names = list(signature.positions)
    with clean_state(), _quietly(), torch.random.fork_rng([], enabled=signature.draws):
        signature.op(
            *(put(a, name) for a, name in zip(args, names, strict=False)),
            **{name: put(a, name) for name, a in kwargs.items()},
        )


def _tensor(values: tuple[Any, int, bool], shrinks: bool, like: torch.Tensor) -> torch.Tensor:
    size = [min(n, 1) for n in like.size()] if shrinks else like.size()
    made = torch.empty_strided(size, like.stride(), dtype=like.dtype, device="cpu")
    of_floats, of_integers, of_masks = values
    if like.dtype is torch.bool:
        return made.fill_(of_masks)
    if not (like.is_floating_point() or like.is_complex()):
        return made.fill_(of_integers)
    if of_floats != "identity":
        return made.fill_(of_floats)
    made.zero_()
    if made.dim() > 1:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    return made


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings, which would be told of made-up values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def without_log() -> Iterator[None]:
    """Without torch's log of what its fake kernels raise, which here is an error of the user's."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
