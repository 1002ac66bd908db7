"""Shardy's passes: how each value is sharded, from how some are, and the collectives between."""

from collections.abc import Sequence

from jax.extend.mlir import ir, passmanager

from xla_dynamo.lowerings.builders.functions import operations_within
from xla_dynamo.lowerings.partitioning import elementwise_calls

# The steps of `sdy-propagation-pipeline`, but for the last ones, which are for XLA's partitioner.
_PROPAGATION = (
    "symbol-dce",
    "sdy-lift-inlined-meshes",
    "sdy-remove-size-one-axes",
    "sdy-propagate-sharding-from-func-to-call",
    "sdy-constant-or-scalar-splitter",
    "symbol-dce",
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-user-priority-propagate{conservative-propagation=false keep-sharding-rules=true "
    "propagation-strategy=aggressive run-op-priority-propagation=true}",
    "sdy-propagate-to-func-results",
    "func.func(sdy-constant-or-scalar-merger)",
    "func.func(sdy-sink-data-flow-edges)",
    "sdy-remove-sharding-groups",
    "func.func(sdy-sharding-constraint-to-reshard)",
    "sdy-update-non-divisible-input-output-shardings",
    "sdy-remove-sub-axes-in-input-output-shardings",
    "sdy-close-shardings",
)
_COLLECTIVES = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true})",
    "canonicalize{enable-patterns={sdy-reshard}}",
    "func.func(sdy-reshard-to-collectives)",
    "canonicalize{enable-patterns={sdy-collective}}",
    "func.func(sdy-drop-sharding-rules)",
)


def propagate(module: ir.Module) -> None:
    """Give each value of a module a sharding, from those of some.

    Elementwise operations of CHLO, which Shardy does not know, become calls with a sharding rule:
    `elementwise_calls.unwrap` takes each back.

    Raises:
        MLIRError: Shardy refuses the module.
    """
    for op in list(operations_within(module)):
        elementwise_calls.wrap(op)
    _run(module, _PROPAGATION)


def insert_collectives(module: ir.Module) -> None:
    """Insert Shardy's collectives where an operand must be sharded otherwise than it is.

    Raises:
        MLIRError: Shardy refuses the module.
    """
    _run(module, _COLLECTIVES)


def remove_duplicates(module: ir.Module) -> None:
    """Compute what several operations compute alike once."""
    _run(module, ["cse"])


def _run(module: ir.Module, passes: Sequence[str]) -> None:
    passmanager.PassManager.parse(f"builtin.module({','.join(passes)})").run(module.operation)
