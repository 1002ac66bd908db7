"""Search how the arguments of a program are best sharded over the axes of a mesh.

Choices are tried one role at a time, each judged by what Shardy makes of the whole program, until
none is better. The search takes no clock into account, so each process of a job finds the same.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from jax.extend.mlir import ir

from xla_dynamo.lowerings.auto_sharding.costs import Cost, Speeds, cost_of
from xla_dynamo.lowerings.auto_sharding.roles import Role, roles_of
from xla_dynamo.lowerings.builders.functions import bytecode_of, main_of, operations_within
from xla_dynamo.lowerings.builders.shardings import SHARDING, declare_mesh, sharding_attribute
from xla_dynamo.lowerings.builders.values import rank_of
from xla_dynamo.lowerings.partitioning.propagation import (
    insert_collectives,
    propagate,
    remove_duplicates,
)
from xla_dynamo.lowerings.partitioning.shards import Axes

# Shardy takes some 40 microseconds an operation, so that a search ends within about a minute.
_OPERATIONS_IN_ALL = 1_000_000
_MOST_ROLES = 24
_LEAST_BYTES = 1024  # of an array that is worth sharding, unless the program only reads it
_LEAST_GAIN = 1e-3  # of the cost


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The best choice that a search found for a mesh.

    Attributes:
        axes: for arguments, by number, the axes that shard each dimension; others are whole.
        cost: of a call, for each device.
        whole: what a call costs where each device has everything that is not sharded already.
        seconds: of a call, where nothing overlaps.
        tried: how many choices were judged.
    """

    axes: Mapping[int, Axes]
    cost: Cost
    whole: Cost
    seconds: float
    tried: int


def search(
    module: ir.Module,
    axis_sizes: Mapping[str, int],
    fixed: Mapping[int, Axes],
    changed: Sequence[int],
    speeds: Speeds,
) -> Found:
    """The best choice for a mesh.

    Args:
        module: the program of one device, without a mesh; it stays as it is.
        axis_sizes: the axes of the mesh by name, with their sizes.
        fixed: the arguments, by number, that are sharded already, and how.
        changed: the arguments whose new values the program computes: parameters that it trains, and
            the optimizer's state.
        speeds: of a device.

    Raises:
        MLIRError: Shardy refuses the program.
    """
    return _Search(module, axis_sizes, fixed, changed, speeds).found()


class _Search:
    def __init__(
        self,
        module: ir.Module,
        axis_sizes: Mapping[str, int],
        fixed: Mapping[int, Axes],
        changed: Sequence[int],
        speeds: Speeds,
    ) -> None:
        base = ir.Module.parse(bytecode_of(module))
        remove_duplicates(base)
        arguments = main_of(base).entry_block.arguments
        free = [n for n in range(len(arguments)) if n not in fixed]
        self._roles = _worthwhile(roles_of(base, free, changed))
        declare_mesh(base, list(axis_sizes), list(axis_sizes.values()))
        self._ranks = [rank_of(x) for x in arguments]
        self._base, self._sizes = bytecode_of(base), dict(axis_sizes)
        self._fixed, self._speeds = dict(fixed), speeds
        self._judged: dict[tuple[Axes, ...], tuple[float, Cost]] = {}
        self._most = max(_OPERATIONS_IN_ALL // sum(1 for _ in operations_within(base)), 24)

    def found(self) -> Found:
        """The best choice."""
        best = min(self._starts(), key=self._seconds)
        improves = True
        while improves and self._has_time():
            improves = False
            for number in range(len(self._roles)):
                tried = [best, *self._moves(best, number)]
                better = min(tried, key=self._seconds)
                if self._seconds(better) < self._seconds(best) * (1 - _LEAST_GAIN):
                    best, improves = better, True
        seconds, cost = self._judged[best]
        axes = self._arguments(best)
        _, whole = self._judged[tuple(map(_whole, self._roles))]
        return Found(axes, cost, whole, seconds, len(self._judged))

    def _has_time(self) -> bool:
        return len(self._judged) < self._most

    def _starts(self) -> Iterator[tuple[Axes, ...]]:
        """Choices to begin with: all whole, data parallel, and fully sharded."""
        every = tuple(self._sizes)
        yield tuple(map(_whole, self._roles))
        yield tuple(_whole(r) if r.is_state else self._by_first(r, every) for r in self._roles)
        yield tuple(
            self._by_largest(r, every) if r.is_state else self._by_first(r, every)
            for r in self._roles
        )

    def _by_first(self, role: Role, names: tuple[str, ...]) -> Axes:
        return self._sharded(role, 0, names)

    def _by_largest(self, role: Role, names: tuple[str, ...]) -> Axes:
        dims = sorted(range(len(role.shape)), key=lambda d: -role.shape[d])
        found = (self._sharded(role, d, names) for d in dims)
        return next((axes for axes in found if any(axes)), _whole(role))

    def _sharded(self, role: Role, dim: int, names: tuple[str, ...]) -> Axes:
        """A role sharded along one dimension, by as many of these axes as divide it."""
        while names and role.shape[dim] % self._count(names):
            names = names[:-1]
        return tuple(names if d == dim else () for d in range(len(role.shape)))

    def _count(self, names: Sequence[str]) -> int:
        count = 1
        for name in names:
            count *= self._sizes[name]
        return count

    def _moves(self, choice: tuple[Axes, ...], number: int) -> Iterator[tuple[Axes, ...]]:
        """Choices in which one role has an axis elsewhere, or no more."""
        role, now = self._roles[number], choice[number]
        for name in self._sizes:
            without = tuple(tuple(n for n in names if n != name) for names in now)
            options = [without]
            for dim, size in enumerate(role.shape):
                names = (*without[dim], name)
                if size and size % self._count(names) == 0:
                    options.append((*without[:dim], names, *without[dim + 1 :]))
            for axes in options:
                moved = (*choice[:number], axes, *choice[number + 1 :])
                if axes != now and (moved in self._judged or self._has_time()):
                    yield moved

    def _arguments(self, choice: tuple[Axes, ...]) -> dict[int, Axes]:
        """The axes of each argument that is sharded."""
        found = {n: axes for r, axes in zip(self._roles, choice, strict=True) for n in r.arguments}
        return {n: axes for n, axes in found.items() if any(axes)}

    def _seconds(self, choice: tuple[Axes, ...]) -> float:
        if choice not in self._judged:
            cost = self._judge(self._arguments(choice))
            self._judged[choice] = cost.seconds(self._speeds), cost
        return self._judged[choice][0]

    def _judge(self, axes: Mapping[int, Axes]) -> Cost:
        module = ir.Module.parse(self._base)
        given = {**axes, **self._fixed}
        main_of(module).arg_attrs = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({SHARDING: sharding_attribute(given.get(n, ((),) * rank))})
                for n, rank in enumerate(self._ranks)
            ]
        )
        propagate(module)
        insert_collectives(module)
        remove_duplicates(module)
        return cost_of(module)


def _worthwhile(roles: Sequence[Role]) -> list[Role]:
    """What is searched: what the program only reads first, as the batch decides most."""
    known = [r for r in roles if not r.is_state or r.bytes >= _LEAST_BYTES * len(r.arguments)]
    return sorted(known[:_MOST_ROLES], key=lambda r: r.is_state)


def _whole(role: Role) -> Axes:
    return ((),) * len(role.shape)
