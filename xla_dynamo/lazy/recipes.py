"""Find the sizes, strides and dtypes of an operator's results before anything is computed.

The operator runs on fake tensors of the CPU, once for each combination of operator, sizes and
numbers. So results have the strides that eager's kernels for the CPU give them.
"""

import dataclasses
import itertools
import threading
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from xla_dynamo.decompositions import fused_cells
from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.lazy import indexing
from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.contents import Geometry, refuse_other_forms, shows_twice
from xla_dynamo.lazy.refusals import refuse_as_eager, without_log
from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.torch_patches import tracing
from xla_dynamo.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)

Results: TypeAlias = list[Geometry | list[Geometry] | None]

_mode = FakeTensorMode()
_lock = threading.Lock()
# Raised by operators whose results are numbers, or have sizes that depend on values.
_DEPENDS_ON_VALUES = (
    DynamicOutputShapeException,
    DataDependentOutputException,
    UnsupportedOperatorException,
    UnsupportedFakeTensorException,
    NotImplementedError,
)
# Torch's fake kernels of these give other strides than eager, or there are none; our decompositions
# give eager's.
_DECOMPOSED = {
    op: decompositions()[op]
    for op in (
        torch.ops.aten.channel_shuffle.default,
        torch.ops.aten.max_unpool2d.default,
        torch.ops.aten.max_unpool3d.default,
        torch.ops.aten.roll.default,
        # These have kernels for other devices alone.
        *fused_cells.DECOMPOSITIONS,
    )
}


@dataclasses.dataclass(eq=False, slots=True)
class Recipe:
    """What is the same whenever an operator is called alike.

    Attributes:
        number: tells recipes apart.
        signature: the operator's.
        results: the geometry of each result that is a new tensor.
        written: the geometries of the written arguments afterwards.
        resizes: it changes their sizes: `out=` may.
        default_dtype: torch's at the time, which decides the dtype of some results.
    """

    number: int
    signature: Signature
    results: Results
    written: list[Geometry]
    resizes: bool
    default_dtype: torch.dtype


_recipes: dict[Any, Recipe | None] = {}
_numbers = itertools.count()
_MOST = 65536


def recipe_of(
    key: Any, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recipe | None:
    """The recipe of a call; None if only its values tell what it gives.

    Raises:
        RuntimeError, TypeError, ...: what torch says to wrong arguments.
        UnsupportedTensor: a result is sparse or quantized.
    """
    try:
        return _recipes[key]
    except KeyError:
        pass
    # The gate first: a thread that exports may ask for a recipe, too.
    with tracing(), _lock:
        if len(_recipes) >= _MOST:  # of sizes that never come again, mostly
            _recipes.clear()
        recipe = _recipes[key] = _infer(signature, args, kwargs)
    return recipe


def _infer(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe | None:
    op = signature.op
    if signature.by_value or indexing.depends_on_values(op, args):
        return None
    if indexing.must_be_checked(op, args):
        _check_on_zeros(op, args, kwargs)
    _refuse_overlaps(_written(signature, args, kwargs))
    with clean_state(), _mode, without_log():
        fakes, named = _faked(args), {k: _faked(a) for k, a in kwargs.items()}
        try:
            out = _DECOMPOSED.get(signature.op, signature.op)(*fakes, **named)
        except _DEPENDS_ON_VALUES:
            return None
        except Exception as error:
            raise _as_eager_says(error, signature, args, kwargs) from None
    outs = out if len(signature.results) > 1 else [out][: len(signature.results)]
    results = [None if n else _geometry(o) for o, n in zip(outs, signature.results, strict=True)]
    after = _written(signature, tuple(fakes), named)
    resizes = [a.size() for a in after] != [a.size() for a in _written(signature, args, kwargs)]
    written = list(map(_geometry, after))
    default = torch.get_default_dtype()
    if not resizes:  # else the call comes again when they are resized
        refuse_as_eager(signature, args, kwargs, [*_flat(results), *written])
    return Recipe(next(_numbers), signature, results, written, resizes, default)


def _check_on_zeros(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager raises to arguments of these sizes."""
    with clean_state():
        op(*_faked(args), **{k: _faked(a) for k, a in kwargs.items()})


def _refuse_overlaps(written: Iterable[torch.Tensor]) -> None:
    """Raise eager's error for a write into a tensor that shows elements more than once."""
    for tensor in written:
        if tensor.numel() and shows_twice(tensor):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                "a single memory location. Please clone() the tensor before performing the "
                "operation."
            )


def _as_eager_says(
    error: Exception, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception:
    """The error of a call in the words of the kernel for the CPU, which fake kernels paraphrase."""
    with unset_fake_temporarily():
        zeros, named = _faked(args), {k: _faked(a) for k, a in kwargs.items()}
        try:
            signature.op(*zeros, **named)
        except Exception as eagers:
            return eagers
    return error


def _written(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """The tensors that a call writes."""
    found: list[torch.Tensor] = []
    for _, name in signature.written:
        argument = signature.argument(name, args, kwargs)
        found += argument if isinstance(argument, list | tuple) else [argument]
    return [a for a in found if a is not None]


def _faked(value: Any) -> Any:
    """The arguments of a call, with zeros on the CPU for tensors; fake ones in a fake mode."""
    if isinstance(value, torch.Tensor):
        size, stride = value.size(), value.stride()
        return torch.empty_strided(size, stride, dtype=value.dtype, device="cpu").zero_()
    if isinstance(value, tuple | list):
        return [_faked(v) for v in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _flat(results: Results) -> Iterable[Geometry]:
    for result in results:
        if isinstance(result, list):
            yield from result
        elif result is not None:
            yield result


def _geometry(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_geometry(v) for v in value]
    assert isinstance(value, FakeTensor), value
    refuse_other_forms(value)
    return (value.dtype, value.size(), value.stride(), 0)
