"""Where XLA:CPU would recompute the operations of a function, if it fused all that it can."""

import functools
from collections.abc import Sequence

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.operation_names import (
    ELEMENTWISE,
    PERMUTATIONS,
    REDUCTIONS,
    RESHAPES,
    named,
)
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.passes.post_dominators import PostDominatorTree

# Operations that read elements at other indices than they write.
SHIFTING = PERMUTATIONS | named("concatenate pad")
# Operations that XLA fuses into their users.
FUSIBLE = ELEMENTWISE | RESHAPES | SHIFTING


def find_recomputed(ops: Sequence[ir.Operation]) -> tuple[set[Value], set[Value]]:
    """Find the results of fusible operations that XLA would compute more than once.

    Args:
        ops: the operations of a function, in their order.

    Returns:
        The values that several kernels would compute, and those that one kernel would compute at
        several indices for each element. A value is in neither set where all its users feed one
        operation at the same index: it is fused there.
    """
    fusions = _Fusions(ops)
    for number, op in reversed(list(enumerate(ops))):
        if op.name in FUSIBLE:
            fusions.visit(number, op)
    in_several_kernels = {ops[n].results[0] for n in fusions.in_several_kernels()}
    return in_several_kernels, {ops[n].results[0] for n in fusions.at_several_indices}


class _Fusions:
    """The kernels that operations would be fused into; operations are visited from last to first.

    Attributes:
        at_several_indices: the operations, by number, whose users need them at several indices.
    """

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self._ops = ops
        self._numbers = {op: number for number, op in enumerate(ops)}
        # The root stands for all users that are not fused. An operation's weight is 1 where it
        # reads at other indices than it writes.
        self._root = len(ops)
        self._tree = PostDominatorTree(self._root)
        # By each operation the last operations of the kernels that compute it: two of them say
        # enough.
        self._kernels: dict[int, frozenset[int]] = {}
        self._unused: set[int] = set()  # as maxima are where nobody asks for them
        self.at_several_indices: set[int] = set()

    def visit(self, number: int, op: ir.Operation) -> None:
        """Add an operation, all of whose users have been visited."""
        users, kernels = self._users(number, op)
        if not users:
            self._unused.add(number)
            return
        tree = self._tree
        parent = functools.reduce(tree.common_ancestor, users)
        # A shift on one way to the parent, so that this way needs other elements than another.
        is_shifted = any(tree.weights[user] > tree.weights[parent] for user in users)
        if is_shifted:
            self.at_several_indices.add(number)
        tree.add(number, parent, int(is_shifted or op.name in SHIFTING))
        self._kernels[number] = frozenset(sorted(kernels)[:2])

    def _users(self, number: int, op: ir.Operation) -> tuple[set[int], set[int]]:
        """The users in the tree, and the kernels that compute the operation for them."""
        users: set[int] = set()
        kernels: set[int] = set()
        for use in op.results[0].uses:
            user = self._numbers.get(use.owner.operation, self._root)  # it may be in a region
            if user in self._unused:
                continue
            if user in self._kernels:  # fused, and computed wherever the user is
                users.add(user)
                kernels |= self._kernels[user]
            else:
                users.add(self._root)
                kernels.add(user if self._is_reduction(user) else number)
        return users, kernels

    def _is_reduction(self, user: int) -> bool:
        """Whether a user is fused with its operands, though not with its own users."""
        return user < self._root and self._ops[user].name in REDUCTIONS

    def in_several_kernels(self) -> set[int]:
        """The operations that several kernels would compute, without a post-dominator."""
        parents, root = self._tree.parents, self._root
        several = (number for number, kernels in self._kernels.items() if len(kernels) > 1)
        return {number for number in several if parents[number] == root}
