"""An ATen graph to a function of StableHLO in a module that JAX builds, and a call of it."""

from collections.abc import Sequence

import jax
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir

from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.graphs.subgraphs import inline_subgraphs
from xla_dynamo.jax.arrays import to_numpy
from xla_dynamo.lowerings.builders.functions import merge
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.layouts import InputLayout
from xla_dynamo.programs.lower_nodes import GraphLowering
from xla_dynamo.programs.module_builder import ModuleBuilder
from xla_dynamo.programs.program import Constant, Input, Seed, Slot
from xla_dynamo.programs.run_passes import run_passes


def call_graph(
    into: ir.Module,
    symbols: ir.SymbolTable,
    name: str,
    gm: torch.fx.GraphModule,
    inputs: Sequence[ir.Value],
    seed: ir.Value | None,
    target: Target,
) -> list[ir.Value]:
    """Add a graph to a module as a private function, and call it at the insertion point.

    Args:
        into: the module, of the MLIR context that is current.
        symbols: the module's, in which JAX looks up names.
        name: of the function, which is changed if it is taken.
        gm: a functional graph whose nodes have fake values of static sizes.
        inputs: a value for each placeholder, of its shape and dtype.
        seed: ui64[1], if the graph draws random numbers.
        target: what the module is for.

    Raises:
        UnsupportedOperator: a node has no rule.
        LoweringError: a rule failed or emitted another type than the fake value's.
    """
    inline_subgraphs(gm)
    builder = ModuleBuilder(target, Request())
    lowering = GraphLowering(gm, static_values(gm), builder)
    with ir.InsertionPoint(builder.block), ir.Location.unknown():
        for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
            fake = node.meta["val"]
            slot = Input(index, InputLayout(tuple(range(fake.ndim))))
            lowering.env[node] = builder.argument(slot, fake.shape, fake.dtype)
        lowering.lower_nodes()
        results = gm.graph.output_node().args[0]
        func.ReturnOp([lowering.env[node] for node in results])  # type: ignore[index, union-attr]
    builder.finish()
    run_passes(builder.module, target)
    operands = [_operand(slot, inputs, seed) for slot in builder.arguments]
    functions = [op for op in builder.module.body.operations if isinstance(op, func.FuncOp)]
    function = merge(into, builder.module, name)
    for op in functions:
        symbols.insert(op)
    reference = ir.FlatSymbolRefAttr.get(function.name.value)
    return list(func.CallOp(function.type.results, reference, operands).results)


def _operand(slot: Slot, inputs: Sequence[ir.Value], seed: ir.Value | None) -> ir.Value:
    """The value of an argument of the graph's function."""
    if isinstance(slot, Input):
        return inputs[slot.index]
    if isinstance(slot, Constant):
        return _constant(slot.tensor)
    assert isinstance(slot, Seed)
    assert seed is not None
    return seed


def _constant(tensor: torch.Tensor) -> ir.Value:
    with jax.enable_x64(True):  # else JAX narrows it
        return mlir.ir_constant(to_numpy(tensor))
