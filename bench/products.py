"""Which form of a matrix product is the fastest on this machine: what `product_choices` is made of.

`python -m bench.products [--dtype bfloat16]` prints µs a product, all forms in turn: eager torch,
torch's product with packed weights, XLA's own, XLA's call of oneDNN, and plans of ours with plain
and with packed weights, by ranges of rows and of columns.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context
from rich.console import Console
from rich.table import Table

from bench.timing import interleave, positive, set_threads
from xla_dynamo.calls.packed_values import pack
from xla_dynamo.kernels import planned_product
from xla_dynamo.kernels.libraries import can_execute_packed
from xla_dynamo.kernels.library_calls import script_calls
from xla_dynamo.kernels.onednn_product import OneDNNProduct
from xla_dynamo.kernels.planned_product import PlannedProduct
from xla_dynamo.kernels.product_choices import Choice
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.passes.pack_weights import Packed
from xla_dynamo.runtime.buffers import import_tensor
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer

# Stack, rows, inner size and columns; the second factor is the transpose of weights.
PRODUCTS = [
    (1, 1, 768, 3072),
    (1, 1, 4096, 4096),
    (1, 8, 768, 3072),
    (1, 32, 768, 3072),
    (1, 197, 192, 768),
    (1, 256, 768, 768),
    (1, 256, 768, 3072),
    (1, 256, 3072, 768),
    (1, 1024, 1024, 1024),
    (24, 128, 64, 128),
    (48, 197, 64, 197),
]
# By rows and by columns: choices that divide every product so.
_WAYS = {
    "rows": Choice(0, 0, 0, 0, thin_stacks=True),
    "columns": Choice(0, 1 << 62, 0, 1 << 62, thin_stacks=True),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=positive, default=2)
    options = parser.parse_args()
    set_threads(options.threads)
    if not can_execute_packed():
        parser.error("there is no library of oneDNN's own here")
    table = Table(title=f"{options.dtype}: µs a product")
    for number, product in enumerate(PRODUCTS):
        times = interleave(forms(product, getattr(torch, options.dtype)), rounds=9, seconds=0.05)
        if not number:
            for column in ("", *times):
                table.add_column(column, justify="right" if column else "left")
        name = " x ".join(map(str, product[product[0] == 1 :]))
        table.add_row(name, *(f"{times[k] * 1e6:.0f}" if k in times else "" for k in _names(table)))
    Console().print(table)


def _names(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns[1:]]


def forms(sizes: Sequence[int], dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Calls that compute a product, by the form that it takes."""
    count, m, k, n = sizes
    stack = (count,) if count > 1 else ()
    x, weight = torch.randn(*stack, m, k, dtype=dtype), torch.randn(*stack, n, k, dtype=dtype)
    made: dict[str, Callable[[], object]] = {"eager": lambda: x @ weight.mT}
    if not stack:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, m)
        linear = torch.ops.mkldnn._linear_pointwise
        made = {
            "eager": lambda: F.linear(x, weight),
            "torch, packed": lambda: linear(x, packed, None, "none", [], ""),
        }
    product = OneDNNProduct(stack, m, k, n, False, True, (dtype, dtype), False)
    rank, shape = x.dim(), [*stack, m, n]
    contract, batch = ([rank - 1], [rank - 1]), list(range(rank - 2))

    def dot(x: Any, weight: Any) -> Any:
        return build.dot_general(x, weight, contract, (batch, batch), dtype)

    made["XLA"] = _run(dot, [x, weight])
    made["XLA's oneDNN"] = _run(lambda *given: product.emit(None, *given), [x, weight])  # type: ignore[arg-type]
    form, placement = PlannedProduct(product), placement_of(torch.device("cpu"))
    for way, choice in _WAYS.items() if not stack else [("rows", _WAYS["rows"])]:
        with mock.patch.object(planned_product, "choice", lambda _, choice=choice: choice):
            plain = pack([Packed((), form)], [()], placement)
            made[f"plan, {way}"] = _run(_planned(shape, dtype), [x, weight], plain)
            if not stack:
                values = [(import_tensor(weight, placement),)]
                handles = pack([Packed(("weight",), form)], values, placement)
                made[f"packed, {way}"] = _run(_planned(shape, dtype), [x], handles)
    return made


def _planned(shape: Sequence[int], dtype: torch.dtype) -> Callable[..., Any]:
    return lambda *given: script_calls(0, given, [tensor_type(list(shape), dtype)])[0]


def _run(
    write: Callable[..., Any], tensors: Sequence[torch.Tensor], handles: Buffer | None = None
) -> Callable[[], object]:
    """A call of a program that `write` writes, on tensors, behind handles if there are any."""
    placement = placement_of(torch.device("cpu"))
    given = [] if handles is None else [handles]
    buffers = [*given, *(import_tensor(tensor, placement) for tensor in tensors)]
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [tensor_type([1], torch.int64) for _ in given]
        types += [tensor_type(list(tensor.shape), tensor.dtype) for tensor in tensors]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", (types, []), visibility="public")
            block = main.add_entry_block()
            with ir.InsertionPoint(block):
                result = write(*block.arguments)
                func.ReturnOp([result])
        kind = ir.FunctionType.get(types, [result.type])
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        executable = Executable(module, placement)
    return lambda: executable.execute(buffers)


if __name__ == "__main__":
    main()
