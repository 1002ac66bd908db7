"""Programs of one call, by which the forms of a call are timed against each other."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.runtime.buffers import import_tensor
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.cpu.call_scripts import handles_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer

Call = Callable[[], Any]
# A form that takes so many times as long as the fastest one is not timed any further.
_HOPELESS = 3


def trial(
    write: Callable[..., Any], tensors: Sequence[torch.Tensor], plans: Sequence[Any] = ()
) -> Call:
    """A call of a program that `write` writes, on tensors, behind handles of plans if any.

    Raises:
        CompileError: XLA refused the program.
    """
    placement = placement_of(torch.device("cpu"))
    given = [*([handles_of(plans)] if plans else []), *tensors]
    buffers = [import_tensor(tensor, placement) for tensor in given]
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [tensor_type(list(tensor.shape), tensor.dtype) for tensor in given]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", (types, []), visibility="public")
            block = main.add_entry_block()
            with ir.InsertionPoint(block):
                result = write(*block.arguments)
                func.ReturnOp([result])
        kind = ir.FunctionType.get(types, [result.type])
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        executable = Executable(module, placement)

    def call() -> Buffer:
        ((result,),) = executable.execute(buffers)
        result.block_until_ready()
        return result

    return call


def median_seconds(
    calls: Mapping[str, Call], *, rounds: int = 7, seconds: float = 0.01
) -> dict[str, float]:
    """Seconds of a call in each form: medians of rounds in which each takes its turn."""
    once = {name: min(_timed(call, 1) for _ in range(3)) for name, call in calls.items()}
    fastest = min(once.values(), default=0.0)
    kept = [name for name, took in once.items() if took <= _HOPELESS * fastest]
    counts = {name: max(1, min(1000, round(seconds / max(once[name], 1e-7)))) for name in kept}
    samples: dict[str, list[float]] = {name: [] for name in kept}
    for _ in range(rounds):
        for name in kept:
            samples[name].append(_timed(calls[name], counts[name]))
    return once | {name: statistics.median(times) for name, times in samples.items()}


def _timed(call: Call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times
