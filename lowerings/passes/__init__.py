"""StableHLO to StableHLO: what is rewritten in a module when all of it is there.

A pass takes a module and the target, and rewrites the module in place. Its docstring says what it
assumes and what it leaves. `PASSES` has them in the order that `run` runs them in.
"""

import dataclasses
from collections.abc import Callable

from jax.extend.mlir import ir

from xla_dynamo.lowerings.passes.channels_last import put_channels_last
from xla_dynamo.lowerings.passes.contraction_barriers import insert_barriers
from xla_dynamo.lowerings.passes.guard_exponentials import guard_exponentials
from xla_dynamo.lowerings.passes.materialize import materialize
from xla_dynamo.lowerings.passes.matmul_precision import set_matmul_precision
from xla_dynamo.lowerings.passes.outline import outline
from xla_dynamo.lowerings.passes.result_permutations import choose_permutations
from xla_dynamo.lowerings.passes.split_reductions import split_reductions
from xla_dynamo.lowerings.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """A pass, and the targets that it is for.

    Attributes:
        rewrite: rewrites a module in place for a target.
        for_cpu: whether it is for XLA:CPU.
        for_others: whether it is for the other platforms.
        for_partitions: whether it is for programs that XLA divides over devices, too: its
            partitioner does not look into functions and library calls.
    """

    rewrite: Callable[[ir.Module, Target], None]
    for_cpu: bool = True
    for_others: bool = False
    for_partitions: bool = False

    @property
    def name(self) -> str:
        """The name of the function that rewrites."""
        return self.rewrite.__name__

    def is_for(self, target: Target) -> bool:
        """Whether modules for a target are rewritten."""
        if target.partitions > 1 and not self.for_partitions:
            return False
        return self.for_cpu if target.is_cpu else self.for_others


PASSES = (
    Pass(insert_barriers, for_others=True, for_partitions=True),
    Pass(put_channels_last),
    Pass(choose_permutations, for_others=True),
    Pass(guard_exponentials, for_partitions=True),
    Pass(split_reductions),
    Pass(outline),
    Pass(materialize),
    # XLA:CPU has float32 products alone.
    Pass(set_matmul_precision, for_cpu=False, for_others=True, for_partitions=True),
)


def run(module: ir.Module, target: Target) -> None:
    """Rewrite a module by every pass that is for the target."""
    for a_pass in PASSES:
        if a_pass.is_for(target):
            a_pass.rewrite(module, target)
