"""Fully sharded data parallel: each device keeps a part of every parameter and of the batch."""

from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.runtime import marks
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.meshes import get_1d_mesh, get_global_mesh
from xla_dynamo.spmd.operators import mark_in_graph
from xla_dynamo.spmd.recipes.activations import map_tensors
from xla_dynamo.spmd.recipes.axes import checked_axes
from xla_dynamo.spmd.recipes.data_parallel import batch_sharder
from xla_dynamo.spmd.recipes.parameters import shard_largest_dimension
from xla_dynamo.spmd.recipes.wrappers import (
    ModuleWrapper,
    check_wrappable,
    inner_name,
    own_modules,
)
from xla_dynamo.torch_private import is_tracing_here, recursive_wrap


class SpmdFullyShardedDataParallel(ModuleWrapper):
    """A module whose parameters and activations are sharded over one axis of a mesh.

    As PyTorch/XLA's class of this name. Each parameter is marked along the axis, on its largest
    dimension that is divisible. One that has a mark, as of tensor parallel, is sharded by this axis
    too, on another dimension; one without a divisible dimension stays whole. XLA gathers a layer's
    parameters where the layer is computed, and leaves each device its part of their gradients. The
    batch, and what the module returns, are sharded by the first dimension.

    `state_dict`, `load_state_dict` and `named_parameters` have the wrapped module's names, so that
    checkpoints go both ways. Attributes and indices that the wrapper lacks are the module's.
    Outside of compiled regions the wrapper computes what the module does.

    Args:
        module: the module to wrap. It is changed: submodules are wrapped, parameters marked.
        mesh: the devices: unless it is given, the global mesh, or without one all devices along the
            axis.
        shard_output: called with what the module returned and the mesh, in compiled regions. It
            marks the output by `mark_sharding`; without it, the tensors of the output whose first
            dimension is the batch are sharded by it, as `data_parallel` shards them.
        auto_wrap_policy: says which submodules are wrapped too, as a policy of
            `torch.distributed.fsdp.wrap`, such as `transformer_auto_wrap_policy`.
        auto_wrapper_callable: wraps these submodules: this class unless it is given. One that
            checkpoints them too is
            `lambda m, **kwargs: SpmdFullyShardedDataParallel(checkpoint_module(m), **kwargs)`.
        extra_data_axis: an axis that shards the batch and no parameter, the major one.
        axis: the axis that shards parameters.

    Raises:
        ShardingError: the mesh has no such axis, or the module is wrapped already or has no forward
            of its own.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        mesh: Mesh | None = None,
        shard_output: Callable[[Any, Mesh], Any] | None = None,
        *,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., torch.nn.Module] | None = None,
        extra_data_axis: str | None = None,
        axis: str = "fsdp",
    ) -> None:
        check_wrappable(module, SpmdFullyShardedDataParallel)
        mesh = mesh or get_global_mesh() or get_1d_mesh(axis)
        extra = () if extra_data_axis is None else (extra_data_axis,)
        batch_axes = checked_axes(mesh, (*extra, axis))
        if auto_wrap_policy is not None:
            recursive_wrap(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or type(self),
                ignored_modules=set(),
                ignored_params=set(),
                only_wrap_children=True,
                mesh=mesh,
                shard_output=shard_output,
                extra_data_axis=extra_data_axis,
                axis=axis,
            )
        for name, p in module.named_parameters():
            shard_largest_dimension(p, mesh, axis, inner_name(name))
        super().__init__(module)
        self._axis = axis
        self._shardings = {name: _axes_of(p) for name, p in self._own_parameters().items()}
        self._mesh, self._batch_axes, self._shard_output = mesh, batch_axes, shard_output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, sharded in compiled regions."""
        if not is_tracing_here():
            return self._orig_module(*args, **kwargs)
        for name, p in self._own_parameters().items():
            axes = self._shardings.get(name, [])
            if any(self._axis in names for names in axes):
                _gather_where_read(p, self._mesh, axes, self._axis)
        shard = batch_sharder(self._mesh, self._batch_axes, (args, kwargs))
        args, kwargs = map_tensors(shard, (args, kwargs))
        output = self._orig_module(*args, **kwargs)
        if self._shard_output is None:
            return map_tensors(shard, output, in_place=True)
        marked = self._shard_output(output, self._mesh)
        return output if marked is None else marked

    def _own_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Those of the module without those of the wrappers inside it, each once, by name."""
        found: dict[str, torch.nn.Parameter] = {}
        for prefix, module in own_modules(self.module, SpmdFullyShardedDataParallel).items():
            for name, p in module._parameters.items():
                if p is not None and not any(p is other for other in found.values()):
                    found[prefix + name] = p
        return found


def _axes_of(parameter: torch.Tensor) -> list[list[str]]:
    sharding = marks.sharding_of(parameter)
    return [list(names) for names in sharding.axes] if sharding is not None else []


def _gather_where_read(p: torch.Tensor, mesh: Mesh, axes: list[list[str]], axis: str) -> None:
    """Have a compiled region read a parameter whole along an axis, and shard its gradient by it.

    The marks are statements: what the region does with the parameter from here on is after them.
    """
    mark_in_graph(p, mesh, axes, with_gradients=True)
    whole = [[name for name in names if name != axis] for names in axes]
    mark_in_graph(p, mesh, whole, with_gradients=False)
