"""The parameters of a wrapped module as shards: how they are divided, gathered and reduced."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.distributed.collectives import Groups, all_gather, reduce_scatter
from xla_dynamo.distributed.fsdp.ordering import after
from xla_dynamo.errors import ShardingError
from xla_dynamo.torch_private import preserve_version

Tensor: TypeAlias = torch.Tensor
# A module, and the name of one of its parameters.
Place: TypeAlias = tuple[torch.nn.Module, str]
# On a parameter that was divided, which no module has any more.
_DIVIDED = "_xla_is_divided"


@dataclasses.dataclass
class Division:
    """Over which processes parameters are divided, and in which dtypes they are exchanged.

    Attributes:
        groups: the groups of ranks, or None for all of them in one.
        rank: the index of this process in its group.
        size: how many processes a group has.
        compute_dtype: the dtype of a gathered parameter; None for its own.
        fp32_reduce_scatter: whether gradients of a smaller dtype are summed in float32.
        before, after: what gradients are divided by before they are summed, and after.
        sums: whether a backward sums gradients over processes, and does not keep them whole.
    """

    groups: Groups | None
    rank: int
    size: int
    compute_dtype: torch.dtype | None = None
    fp32_reduce_scatter: bool = False
    before: float = 1.0
    after: float = 1.0
    sums: bool = True

    def own_part(self, rows: Tensor) -> Tensor:
        """This process's part of a tensor, along its first dimension, which is padded with zeros.

        The rank is no constant of what is recorded on the device: a program is the same in all
        processes.
        """
        rows = padded(rows, self.size)
        parts = rows.unflatten(0, (self.size, len(rows) // self.size))
        if rows.device.type != "xla":
            return parts[self.rank].clone().to("xla")
        return parts.index_select(0, torch.tensor([self.rank]).to("xla")).squeeze(0)

    def reduced(self, gradient: Tensor, dtype: torch.dtype) -> Tensor:
        """The mean of the processes' gradients of a whole parameter: this process's part of it.

        Args:
            gradient: as many rows as the parameter has.
            dtype: that of the result.
        """
        rows = padded(gradient, self.size)
        if self.fp32_reduce_scatter and rows.is_floating_point():
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        rows = rows / self.before
        part = reduce_scatter("sum", rows, 1.0, 0, self.size, self.groups)
        return part.to(dtype) / self.after


@dataclasses.dataclass
class Member:
    """A parameter that a shard has a part of.

    Attributes:
        places: where the module has it; several for a parameter that is tied.
        shape: its shape.
    """

    places: list[Place]
    shape: torch.Size


class Shard:
    """This process's part of a parameter, or of several that are one behind the other.

    The part is a parameter of the module, under the whole parameter's name. The whole one has
    memory that stays the same tensor for good, since what autograd has saved of it for a backward
    must show its elements again after it was freed and gathered anew.

    Args:
        members: the parameters, by where the module has them.
        name: the name of the part in `root`, or None: as the one member is called.
        root: the wrapped module.
        on_dim_0: whether the one member keeps its dimensions, and is divided along the first.
        division: the processes.

    Attributes:
        part: the parameter of the module.
        members: as given.
        on_dim_0: as given.
        places: where the module has the part.
        is_whole: whether the whole parameter has its elements.
        unreduced: gradients of whole parameters that no process has summed yet.
    """

    def __init__(
        self,
        members: Sequence[Member],
        name: str | None,
        root: torch.nn.Module,
        on_dim_0: bool,
        division: Division,
    ) -> None:
        given = [_parameter(member.places[0]) for member in members]
        self.members, self.division = members, division
        self.on_dim_0 = on_dim_0 and given[0].dim() > 0
        with torch.no_grad():
            whole = given[0].detach() if self.on_dim_0 else _behind_each_other(given)
            self._rows = len(whole)
            own = division.own_part(whole)
        self.part = torch.nn.Parameter(own, requires_grad=given[0].requires_grad)
        self.places = members[0].places if name is None else [(root, name)]
        for module, parameter in [place for member in members for place in member.places]:
            if name is not None:
                del module._parameters[parameter]
            if isinstance(module, torch.nn.RNNBase):
                module._flat_weights = []  # it would keep the whole parameters alive
        for module, parameter in self.places:
            module.register_parameter(parameter, self.part)
        self._memory: Tensor | None = None
        self.is_whole = False
        self.unreduced: Tensor | None = None

    def whole(self, first: Tensor | None) -> Tensor:
        """Gather the parameter: its rows, by which a backward finds the part's gradient.

        Args:
            first: what XLA computes before, if anything.
        """
        rows: Tensor = _Gathered.apply(self.part, self, first)  # type: ignore[no-untyped-call]
        return rows

    def whole_again(self, first: Tensor | None) -> Tensor:
        """The rows for the backward, gathered if they were freed: a leaf, of the same memory.

        Args:
            first: what XLA computes before, if anything.
        """
        if not self.is_whole:
            self.fill(first, again=True)
        assert self._memory is not None
        return self._memory.detach()[: self._rows].requires_grad_(self.part.requires_grad)

    def parameters_in(self, rows: Tensor) -> Iterable[tuple[Member, Tensor]]:
        """Each member with its tensor, of the rows."""
        if self.on_dim_0:
            return [(self.members[0], rows)]
        sizes = [math.prod(member.shape) for member in self.members]
        views = (r.view(m.shape) for r, m in zip(rows.split(sizes), self.members, strict=True))
        return zip(self.members, views, strict=True)

    def fill(self, first: Tensor | None, again: bool = False) -> Tensor:
        """Write the elements of all processes' parts into the memory of the whole parameter.

        Args:
            first: what XLA computes before, if anything.
            again: whether it is for the backward. XLA:CPU drops the order before it merges equal
                operations, so this one gets a shape of its own.
        """
        part, dtype = after(self.part.detach(), first), self.division.compute_dtype
        if dtype is not None and part.is_floating_point():
            part = part.to(dtype)
        with torch.no_grad():
            if again and first is not None:
                gathered = all_gather(part.unsqueeze(0), 0, self.division.groups).flatten(0, 1)
            else:
                gathered = all_gather(part, 0, self.division.groups)
            if self._memory is None:
                self._memory = torch.empty_like(gathered)
            with preserve_version(self._memory):
                self._memory.copy_(gathered)
        self.is_whole = True
        return self._memory

    def let_go(self) -> None:
        """Free the elements of the whole parameter."""
        if self._memory is not None and self.is_whole:
            self._memory.untyped_storage().resize_(0)
        self.is_whole = False

    def gradient_of_part(self, gradient: Tensor) -> Tensor | None:
        """What a backward gives the part: its gradient, or None if it stays with the whole one."""
        if self.unreduced is not None:
            gradient = self.unreduced + gradient
        self.unreduced = None if self.division.sums else gradient
        return self.division.reduced(gradient, self.part.dtype) if self.division.sums else None

    def described(self, names: Mapping[int, Sequence[str]]) -> dict[str, Any]:
        """What consolidation has to know, by each name that the part has in a state dict.

        Args:
            names: by the id of each module, what the names of its parameters begin with.
        """

        def named(places: Sequence[Place]) -> list[str]:
            return [start + name for module, name in places for start in names[id(module)]]

        members = [(named(m.places), tuple(m.shape)) for m in self.members]
        keys = named(self.places)
        if keys == members[0][0]:  # each of its names is an entry of its own
            return {
                key: {"on_dim_0": self.on_dim_0, "members": [([key], members[0][1])]}
                for key in keys
            }
        return {key: {"on_dim_0": self.on_dim_0, "members": members} for key in keys}

    def reduce_what_is_left(self) -> None:
        """Give the part the gradients that were kept whole and that no later backward has taken."""
        if self.unreduced is None or not self.division.sums:
            return
        with torch.no_grad():
            own = self.division.reduced(self.unreduced, self.part.dtype)
            self.part.grad = own if self.part.grad is None else self.part.grad + own
        self.unreduced = None


def divide(
    modules: Iterable[torch.nn.Module],
    root: torch.nn.Module,
    division: Division,
    flatten: bool,
    on_dim_0: bool,
) -> list[Shard]:
    """Divide the parameters of modules.

    Args:
        modules: the modules, each with parameters of its own.
        root: the one that is wrapped, which has the parts of those that become one.
        division: the processes.
        flatten: whether all become one, those apart that need no gradient or have another dtype.
        on_dim_0: whether the parts keep the dimensions.

    Raises:
        ShardingError: a parameter is tied to one that was divided before.
    """
    members: dict[torch.nn.Parameter, Member] = {}
    for module in modules:
        for name, p in module._parameters.items():
            if getattr(p, _DIVIDED, False):
                raise ShardingError(
                    f"the parameter {name!r} of {type(module).__name__} is tied to one of a module "
                    "that is fully sharded by itself: have one wrapper around both, with none "
                    "between"
                )
            if p is not None:
                members.setdefault(p, Member([], p.shape)).places.append((module, name))
    for p in members:
        setattr(p, _DIVIDED, True)
    if not flatten:
        return [Shard([member], None, root, on_dim_0, division) for member in members.values()]
    kinds: dict[Any, list[Member]] = {}
    for p, member in members.items():
        kinds.setdefault((not p.requires_grad, p.dtype), []).append(member)
    return [
        Shard(same, f"flat_param_{i}", root, False, division)
        for i, same in enumerate(kinds.values())
    ]


class _Gathered(torch.autograd.Function):
    """The rows of a whole parameter, of its part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, shard: Shard, first: Tensor | None) -> Tensor:
        ctx.shard = shard
        return shard.fill(first).detach()[: shard._rows]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.shard.is_whole:
            name = ctx.shard.places[0][1]
            raise RuntimeError(
                f"the backward of a fully sharded module has read its {name!r} after it was freed: "
                "none of the tensors that the module returned has a part in this loss, or it "
                "returned them inside an object that torch.utils._pytree does not look into. "
                "Return them in tuples, lists, dicts or registered classes, or give "
                "reshard_after_forward=False"
            )
        return ctx.shard.gradient_of_part(gradient), None, None


def padded(rows: Tensor, count: int) -> Tensor:
    """A tensor with rows of zeros behind it, so that their number is divisible by this one."""
    rest = -len(rows) % count
    return rows if rest == 0 else torch.cat([rows, rows.new_zeros(rest, *rows.shape[1:])])


def _behind_each_other(parameters: Sequence[Tensor]) -> Tensor:
    flat = [p.detach().flatten() for p in parameters]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _parameter(place: Place) -> torch.nn.Parameter:
    module, name = place
    found = module._parameters[name]
    assert found is not None
    return found
