"""Names of the modules of `torch_xla.distributed.fsdp`: wrapping by a policy, and collectives."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

import xla_dynamo
from xla_dynamo import torch_private
from xla_dynamo.distributed.fsdp.arguments import of_torch
from xla_dynamo.torch_private import pytree
from xla_dynamo.torch_xla.forms.functions import own_part

Tensor: TypeAlias = torch.Tensor
FLOAT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
_MEGABYTE = 1024 * 1024


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wrap the submodules that a policy chooses, from the inside out.

    Args:
        module: the module, whose submodules are replaced.
        auto_wrap_policy: called with `module`, `recurse` and `unwrapped_params`, the number of
            parameters that are in no wrapper yet; or a policy of `torch.distributed.fsdp.wrap`.
        wrapper_cls: wraps a module; it is called with `kwargs`.
        ignored_modules: modules that are not wrapped.
        ignored_params: parameters that are not counted.
        only_wrap_children: whether the module itself is not wrapped.
        kwargs: arguments of the wrapper. A module's `_wrap_overrides` replace some.

    Returns:
        The module or its wrapper, and how many parameters are in wrappers.
    """
    return torch_private.recursive_wrap(
        module,
        of_torch(auto_wrap_policy),
        wrapper_cls,
        ignored_modules=ignored_modules,
        ignored_params=ignored_params,
        only_wrap_children=only_wrap_children,
        **kwargs,
    )


def apply_to_tensors(fn: Callable[[Tensor], Any], container: Any) -> Any:
    """A value like another, with what a function makes of its tensors."""
    return pytree.tree_map_only(torch.Tensor, fn, container)


def collect_tensors(container: Any) -> list[Tensor]:
    """The tensors of a value."""
    return [leaf for leaf in pytree.tree_leaves(container) if isinstance(leaf, torch.Tensor)]


def dummy_all_gather(value: Tensor, dim: int = 0, groups: Any = None) -> Tensor:
    """A tensor of the shape that `all_gather` returns, without communication: for measurements."""
    return torch.cat([value] * xla_dynamo.xrt_world_size(), dim)


def dummy_all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None) -> Any:
    """What `all_reduce` would return if all others had nothing: for measurements."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    return [one.mul_(scale) for one in inputs]


class DummyReduceScatter:
    """Takes this process's part of tensors instead of reducing them: for measurements.

    Attributes:
        scale: without effect.
    """

    def __init__(self, shard_count: int) -> None:
        """Take the number of processes.

        Raises:
            ValueError: it is another.
        """
        if shard_count != (size := xla_dynamo.xrt_world_size()):
            raise ValueError(f"shard_count is {shard_count}, and there are {size} processes")
        self.scale = 1.0

    def __call__(self, input: Tensor, callback: Callable[[Tensor], Any]) -> None:
        """Call a function with this process's part along the first dimension."""
        callback(own_part(input, 0))

    def flush(self) -> None:
        """Nothing waits here."""


class BucketizedReduceScatter:
    """Sums tensors over processes, a bucket of them at once, and hands their parts over.

    Attributes:
        scale: what sums are multiplied by.
    """

    def __init__(
        self, bucket_size_mb: int, shard_count: int, groups: Any, pin_layout: bool
    ) -> None:
        """Take how many megabytes wait, and the arguments of `reduce_scatter`.

        With 0 megabytes, none waits.
        """
        self._most, self._count, self._groups = bucket_size_mb * _MEGABYTE, shard_count, groups
        self._waiting: list[tuple[Tensor, Callable[[Tensor], Any]]] = []
        self.scale = 1.0

    def __call__(self, input: Tensor, callback: Callable[[Tensor], Any]) -> None:
        """Call a function with this process's part of a sum, when the bucket is full."""
        self._waiting.append((input, callback))
        if sum(t.numel() * t.element_size() for t, _ in self._waiting) > self._most:
            self.flush()

    def flush(self) -> None:
        """Sum what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        given = [t for t, _ in waiting]
        parts = xla_dynamo.reduce_scatter("sum", given, self.scale, 0, self._count, self._groups)
        for part, (_, callback) in zip(parts, waiting, strict=True):
            callback(part)
