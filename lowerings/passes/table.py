"""The passes that the package brings, in the order in which they run."""

import dataclasses
from collections.abc import Callable

from jax.extend.mlir import ir

from xla_dynamo.lowerings.passes import contraction_barriers, result_permutations
from xla_dynamo.lowerings.passes.call_packed import call_packed
from xla_dynamo.lowerings.passes.channels_last import put_channels_last
from xla_dynamo.lowerings.passes.combine_collectives import combine_collectives
from xla_dynamo.lowerings.passes.gather_manual_regions import gather_manual_regions
from xla_dynamo.lowerings.passes.guard_exponentials import guard_exponentials
from xla_dynamo.lowerings.passes.integer_moves import move_as_integers
from xla_dynamo.lowerings.passes.materialize import materialize
from xla_dynamo.lowerings.passes.matmul_precision import set_matmul_precision
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.outline import outline
from xla_dynamo.lowerings.passes.reassociate_all_reduces import reassociate_all_reduces
from xla_dynamo.lowerings.passes.split_reductions import split_reductions
from xla_dynamo.lowerings.passes.unmerge_products import unmerge_products
from xla_dynamo.lowerings.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """A pass, the targets that it is for, and whether programs can do without it.

    Attributes:
        rewrite: the function that rewrites a module in place for a target, and returns its notes.
        for_cpu: whether the pass is for XLA:CPU.
        for_others: whether the pass is for the other platforms.
        for_partitions: whether the pass is also for programs that XLA partitions over devices.
            XLA's partitioner does not look into outlined functions and library calls.
        for_single: whether the pass is also for programs that run on one device.
        for_one_replica: whether the pass is also for programs that exchange nothing with replicas,
            which are other processes or the devices of a program that is partitioned already.
        for_embedded: whether the pass is also for parts of programs of JAX's, which has XLA's
            default options and inlines functions.
        is_needed: whether programs do not run without it: no switch leaves it out.
        keeps_numbers: whether some programs have other numbers than eager's without it. The limit
            of passes does not count it, so that a program of few passes has eager's numbers, too.
        remove_marks: removes what the lowering has marked for the pass, where it is left out.
    """

    rewrite: Callable[[ir.Module, Target], Notes | None]
    for_cpu: bool = True
    for_others: bool = False
    for_partitions: bool = False
    for_single: bool = True
    for_one_replica: bool = True
    for_embedded: bool = False
    is_needed: bool = False
    keeps_numbers: bool = False
    remove_marks: Callable[[ir.Module], None] | None = None

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
        if not (target.replicas or self.for_one_replica):
            return False
        return self.for_cpu if target.is_cpu else self.for_others


PASSES = (
    Pass(
        unmerge_products,
        for_others=True,
        for_partitions=True,
        for_single=False,
        for_embedded=True,
    ),
    Pass(reassociate_all_reduces, for_one_replica=False),
    Pass(
        contraction_barriers.insert_barriers,
        for_others=True,
        for_partitions=True,
        for_embedded=True,
        keeps_numbers=True,
        remove_marks=contraction_barriers.remove_marks,
    ),
    Pass(combine_collectives, for_one_replica=False),
    Pass(put_channels_last),
    # XLA knows no packed convolutions.
    Pass(call_packed, is_needed=True),
    Pass(
        result_permutations.choose_permutations,
        for_others=True,
        remove_marks=result_permutations.remove_marks,
    ),
    # A NaN that XLA knows has a wrong exponential there.
    Pass(guard_exponentials, for_partitions=True, for_embedded=True, keeps_numbers=True),
    Pass(split_reductions),
    Pass(move_as_integers),
    # Some updates in place read what they have overwritten, if they are not outlined.
    Pass(outline, keeps_numbers=True),
    Pass(materialize),
    # XLA:CPU has float32 products alone.
    Pass(
        set_matmul_precision,
        for_cpu=False,
        for_others=True,
        for_partitions=True,
        for_embedded=True,
        keeps_numbers=True,
    ),
    # The last, so that the others see the operations of a manual region among their readers. The
    # partitioner knows no ends of regions.
    Pass(
        gather_manual_regions,
        for_others=True,
        for_partitions=True,
        for_single=False,
        is_needed=True,
    ),
)
