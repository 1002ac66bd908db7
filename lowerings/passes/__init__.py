"""Passes over a whole module: StableHLO to StableHLO.

A pass rewrites a module in place for a target. Its docstring says what it assumes of the module and
what it leaves as it is. `PASSES` lists the passes in the order in which `run` runs them.
"""

import dataclasses
from collections.abc import Callable

from jax.extend.mlir import ir

# Modules, and not their functions: some have the name of the module, which they would hide here.
from xla_dynamo.lowerings.passes import (
    call_packed,
    channels_last,
    contraction_barriers,
    guard_exponentials,
    manual_regions,
    materialize,
    matmul_precision,
    outline,
    result_permutations,
    split_reductions,
    unmerge_products,
)
from xla_dynamo.lowerings.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """A pass, and the targets that it is for.

    Attributes:
        rewrite: the function that rewrites a module in place for a target.
        for_cpu: whether the pass is for XLA:CPU.
        for_others: whether the pass is for the other platforms.
        for_partitions: whether the pass is also for programs that XLA divides over devices. XLA's
            partitioner does not look into outlined functions and library calls.
        for_single: whether the pass is also for programs that run on one device.
        for_embedded: whether the pass is also for parts of programs of JAX's, which has XLA's
            default options and inlines functions.
    """

    rewrite: Callable[[ir.Module, Target], None]
    for_cpu: bool = True
    for_others: bool = False
    for_partitions: bool = False
    for_single: bool = True
    for_embedded: bool = False

    @property
    def name(self) -> str:
        """The name of the function that rewrites."""
        return self.rewrite.__name__

    def is_for(self, target: Target) -> bool:
        """Whether the pass is for a target."""
        if not (self.for_partitions if target.partitions > 1 else self.for_single):
            return False
        if target.embedded and not self.for_embedded:
            return False
        return self.for_cpu if target.is_cpu else self.for_others


PASSES = (
    Pass(
        unmerge_products.unmerge_products,
        for_others=True,
        for_partitions=True,
        for_single=False,
        for_embedded=True,
    ),
    Pass(
        contraction_barriers.insert_barriers,
        for_others=True,
        for_partitions=True,
        for_embedded=True,
    ),
    Pass(channels_last.put_channels_last),
    Pass(call_packed.call_packed),
    Pass(result_permutations.choose_permutations, for_others=True),
    Pass(guard_exponentials.guard_exponentials, for_partitions=True, for_embedded=True),
    Pass(split_reductions.split_reductions),
    Pass(outline.outline),
    Pass(materialize.materialize),
    # XLA:CPU has float32 products alone.
    Pass(
        matmul_precision.set_matmul_precision,
        for_cpu=False,
        for_others=True,
        for_partitions=True,
        for_embedded=True,
    ),
    # The last, so that the others see the operations of a manual region among their readers.
    Pass(
        manual_regions.gather_manual_regions,
        for_others=True,
        for_partitions=True,
        for_single=False,
    ),
)


def run(module: ir.Module, target: Target) -> None:
    """Run every pass that is for the target, in the order of `PASSES`."""
    for a_pass in PASSES:
        if a_pass.is_for(target):
            a_pass.rewrite(module, target)
