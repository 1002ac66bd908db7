"""Fully sharded data parallel among processes that each have tensors of their own."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xla_dynamo.distributed.collectives import Groups, all_reduce
from xla_dynamo.distributed.fsdp.arguments import of_torch, own_group
from xla_dynamo.distributed.fsdp.materialization import cast_buffers, materialize
from xla_dynamo.distributed.fsdp.shards import Division, Shard, divide
from xla_dynamo.errors import ShardingError
from xla_dynamo.lazy.steps import sync
from xla_dynamo.spmd.recipes.activations import map_tensors
from xla_dynamo.spmd.recipes.wrappers import (
    ModuleWrapper,
    check_wrappable,
    inner_name,
    own_modules,
)
from xla_dynamo.torch_private import backward_id, call_after_backward, pytree, recursive_wrap

_COMPUTED_IN = (torch.float32, torch.float16, torch.bfloat16)
_NOT_FOR_SUBMODULES = (
    "self",
    "registration",
    "module",
    "auto_wrap_policy",
    "auto_wrapper_callable",
    "__class__",
)


class XlaFullyShardedDataParallel(ModuleWrapper):
    """A module of whose parameters, gradients and optimizer state each process has a part.

    As PyTorch/XLA's class of this name. A parameter is flattened, padded, and divided among the
    processes; the part is the module's parameter, of one dimension, under the name that the whole
    one had. The forward gathers the parameters of the module, those inside wrappers in it left out,
    and the backward gives each part the mean of all processes' gradients. Collectives are recorded
    like other operators, so a step is one program; no process group is needed.

    All processes must begin with the same values, as by one seed. Make the optimizer of the wrapped
    module's parameters, and call its own `step()`: `xla_dynamo.optimizer_step` would exchange
    gradients of different elements.

    Args:
        module: the module to wrap. It is changed: submodules are wrapped, parameters divided, and
            what is on the CPU is moved to the device.
        reshard_after_forward: whether whole parameters are freed after the forward, and gathered
            again for the backward.
        flatten_parameters: whether all parameters of the module become one, and all that need no
            gradient another, which are exchanged at once.
        execute_sharding_on_init: whether the parameters are divided now, and not with what comes
            after, so that the memory of the whole ones is free.
        optimization_barrier_in_forward: whether XLA gathers the parameters for the forward only
            when what the module is called with is computed.
        optimization_barrier_in_backward: whether it gathers them for the backward only when the
            gradients of what the module returned are. Otherwise XLA merges this with the gathering
            for the forward where one program has both, and keeps the parameters between.
        mark_step_on_finalization: whether `sync()` is called at the end of the outermost wrapper's
            backward.
        disable_reshard_on_root: whether the outermost wrapper keeps its own parameters whole until
            the backward.
        compute_dtype: the dtype of gathered parameters and of what the module is called with:
            float32, float16 or bfloat16. Unless it is given, they stay as they are. The parts keep
            the dtype that the parameters had.
        buffer_dtype: the dtype of floating-point buffers; `compute_dtype` unless it is given.
        fp32_reduce_scatter: whether gradients of a smaller `compute_dtype` are summed in float32.
        sharding_groups: groups of ranks, as for `all_reduce`, each of which divides the parameters
            by itself and shares its gradients.
        sharding_rank: the index of this process in its group: known without it.
        sharding_world_size: the size of a group: likewise.
        shard_param_on_dim_0: whether parts keep the dimensions of their parameters, and are divided
            along the first one. Without effect if parameters are flattened.
        pin_layout_in_collective_ops: without effect, as `pin_layout` of the collectives.
        auto_wrap_policy: says which submodules are wrapped too: a policy of PyTorch/XLA's form, or
            of `torch.distributed.fsdp.wrap`.
        auto_wrapper_callable: wraps these submodules: this class unless it is given. It is called
            with the module, and with the other arguments by keyword.
        param_init_fn: called with each submodule that has meta tensors, to give it others; without
            it, these get memory on the CPU, and the submodule's `reset_parameters()` is called.

    Attributes:
        rank: the index of this process in its group.
        world_size: how many processes share a parameter.

    Raises:
        ShardingError: the module is wrapped already or has no forward of its own, an argument has
            no meaning, or parameters are tied to those of a wrapper inside.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        mark_step_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Groups | None = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., torch.nn.Module] | None = None,
        param_init_fn: Callable[[torch.nn.Module], Any] | None = None,
    ) -> None:
        from xla_dynamo.lazy import (
            registration,
        )  # claims torch's place, so not before it is asked for

        options = {k: v for k, v in locals().items() if k not in _NOT_FOR_SUBMODULES}
        check_wrappable(module, XlaFullyShardedDataParallel)
        for name in ("compute_dtype", "buffer_dtype"):
            if options[name] not in (None, *_COMPUTED_IN):
                raise ShardingError(
                    f"{name} is one of float32, float16 and bfloat16, not {options[name]}"
                )
        registration.device()
        rank, size = own_group(sharding_groups, sharding_rank, sharding_world_size)
        super().__init__(module)
        self.rank, self.world_size = rank, size
        if auto_wrap_policy is not None:
            self._wrap_inner(auto_wrap_policy, auto_wrapper_callable or type(self), options)
        self.compute_dtype, self.buffer_dtype = compute_dtype, buffer_dtype or compute_dtype
        self.reshard_after_forward = reshard_after_forward
        self.flatten_parameters = flatten_parameters
        self.disable_reshard_on_root = disable_reshard_on_root
        self._waits_in_forward = optimization_barrier_in_forward
        self._waits_in_backward = optimization_barrier_in_backward
        self.mark_step_on_finalization = mark_step_on_finalization
        # Division by powers of two: it rounds nothing.
        before = 2.0 ** (size.bit_length() // 2)
        self._division = Division(
            sharding_groups, rank, size, compute_dtype, fp32_reduce_scatter, before, size / before
        )
        inner = own_modules(module, XlaFullyShardedDataParallel)
        materialize(inner, param_init_fn)
        self._shards = divide(
            inner.values(), module, self._division, flatten_parameters, shard_param_on_dim_0
        )
        self._cast_buffers = cast_buffers(inner.values(), self.buffer_dtype)
        self._is_root: bool | None = None
        self._backward = -1
        if execute_sharding_on_init:
            sync()

    def _wrap_inner(
        self,
        policy: Callable[..., bool],
        wrapper: Callable[..., torch.nn.Module],
        options: dict[str, Any],
    ) -> None:
        """Wrap submodules by a policy."""
        for name, inner in self.module.named_modules():
            if isinstance(inner, XlaFullyShardedDataParallel):
                raise ShardingError(
                    f"{name} is fully sharded already: an auto_wrap_policy is for modules in which "
                    "none is"
                )
        recursive_wrap(
            self.module,
            of_torch(policy),
            wrapper,
            ignored_modules=set(),
            ignored_params=set(),
            only_wrap_children=True,
            **options,
        )

    # --- forward and backward ----------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        self._find_root()
        if self.compute_dtype is not None:
            args, kwargs = map_tensors(self._cast, (args, kwargs))
        first = self._first_of((args, kwargs)) if self._waits_in_forward else None
        self._give([(shard, shard.whole(first)) for shard in self._shards])
        try:
            output = self.module(*args, **kwargs)
        finally:
            self._take_back()
        comes_back = False
        if torch.is_grad_enabled():
            for t in pytree.tree_leaves(output):
                if isinstance(t, torch.Tensor) and t.requires_grad:
                    t.register_hook(self._before_backward)
                    comes_back = True
        keeps = not self.reshard_after_forward or (self._is_root and self.disable_reshard_on_root)
        # Where a checkpoint recomputes, the backward that runs here reads them next.
        if backward_id() == -1 and (not torch.is_grad_enabled() or (comes_back and not keeps)):
            self._let_go()
        return output

    def _cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.compute_dtype) if x.is_floating_point() else x

    @staticmethod
    def _first_of(value: Any) -> torch.Tensor | None:
        """A tensor of the device, of what the module is called with."""
        tensors = (t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor))
        return next((t.detach() for t in tensors if t.device.type == "xla"), None)

    def _find_root(self) -> None:
        """The wrapper whose forward is called first is the outermost one."""
        if self._is_root is None:
            self._is_root = True
            for inner in self._wrappers():
                if inner is not self:
                    inner._is_root = False

    def _wrappers(self) -> list["XlaFullyShardedDataParallel"]:
        return [m for m in self.modules() if isinstance(m, XlaFullyShardedDataParallel)]

    def _give(self, wholes: list[tuple[Shard, torch.Tensor]]) -> None:
        """Let the modules find whole parameters, as attributes that hide the parts."""
        for shard, rows in wholes:
            for member, whole in shard.parameters_in(rows):
                for module, name in member.places:
                    module.__dict__[name] = whole
        self._set_flat_weights(lambda module, name: getattr(module, name))

    def _take_back(self) -> None:
        for shard in self._shards:
            for member in shard.members:
                for module, name in member.places:
                    module.__dict__.pop(name, None)
        self._set_flat_weights(lambda module, name: None)

    def _set_flat_weights(self, weight: Callable[[torch.nn.Module, str], Any]) -> None:
        """Recurrent layers have a list of their parameters beside."""
        for module in own_modules(self.module, XlaFullyShardedDataParallel).values():
            if isinstance(module, torch.nn.RNNBase):
                module._flat_weights = [weight(module, n) for n in module._flat_weights_names]

    def _before_backward(self, gradient: torch.Tensor) -> None:
        """Have the parameters whole where the backward comes to this module."""
        if self._backward != backward_id():
            self._backward = backward_id()
            call_after_backward(self._after_backward)
        # A checkpoint inside that recomputes finds them in the modules.
        with torch.enable_grad():
            first = gradient.detach() if self._waits_in_backward else None
            self._give([(shard, shard.whole_again(first)) for shard in self._shards])

    def _after_backward(self) -> None:
        units = self._wrappers() if self._is_root else [self]
        for unit in units:
            unit._take_back()
            unit._let_go()
            for shard in unit._shards:
                shard.reduce_what_is_left()
        if self._is_root and self.mark_step_on_finalization:
            sync()

    def _let_go(self) -> None:
        for shard in self._shards:
            shard.let_go()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For a block: backwards keep whole gradients, which the first one after it exchanges.

        Of the outermost wrapper. It takes the memory of whole gradients.
        """
        if self._is_root is False:
            raise ShardingError("no_sync is a method of the outermost wrapper")
        before = [(unit._division, unit._division.sums) for unit in self._wrappers()]
        for division, _ in before:
            division.sums = False
        try:
            yield
        finally:
            for division, sums in before:
                division.sums = sums

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Divide gradients by other numbers than those that make the sum a mean.

        Args:
            pre: by what they are divided before the sum.
            post: by what the sum is divided.
            recursive: whether in wrappers inside, too.
        """
        for unit in self._wrappers() if recursive else [self]:
            unit._division.before, unit._division.after = pre, post

    # --- what is asked of the whole ------------------------------------------------------------

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, groups: Groups | None = None
    ) -> torch.Tensor:
        """Scale gradients so that their norm, as of one vector, is no larger than this.

        All processes call it.

        Args:
            max_norm: the largest norm.
            norm_type: the power; `math.inf` for the largest element.
            groups: groups of ranks that have all parts of all parameters: all of them in one unless
                given, or `sharding_groups` if each group has all parameters.

        Returns:
            The norm before.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if not gradients:
            return torch.zeros((), device="xla")
        power = float(norm_type)
        norms = torch.stack([torch.linalg.vector_norm(g.float(), power) for g in gradients])
        own = torch.linalg.vector_norm(norms, power)
        if math.isinf(power):
            total = all_reduce("max", own, groups=groups)
        else:
            total = all_reduce("sum", own**power, groups=groups) ** (1.0 / power)
        factor = torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        return total

    def get_shard_metadata(self) -> dict[str, Any]:
        """What `consolidate_sharded_model_checkpoints` has to know, to be saved with the parts.

        Returns:
            "shard_info": of each entry of `state_dict()` that is a part, whether it has its
            dimensions, and the names and shapes of the parameters in it; "buffer_info": the dtypes
            that buffers had; "world_size" and "rank".
        """
        names: dict[int, list[str]] = {}
        for name, inner in self.named_modules(remove_duplicate=False):
            names.setdefault(id(inner), []).append(inner_name(f"{name}." if name else ""))
        shards: dict[str, Any] = {}
        buffers: dict[str, torch.dtype] = {}
        for unit in self._wrappers():
            for module, name, dtype in unit._cast_buffers:
                buffers |= {start + name: dtype for start in names[id(module)]}
            for shard in unit._shards:
                shards |= shard.described(names)
        return {
            "shard_info": shards,
            "buffer_info": buffers,
            "world_size": self.world_size,
            "rank": self.rank,
        }

    def extra_repr(self) -> str:
        """What `print` shows of the wrapper itself."""
        return (
            f"world_size={self.world_size}, rank={self.rank}, compute_dtype={self.compute_dtype}, "
            f"flatten_parameters={self.flatten_parameters}, "
            f"reshard_after_forward={self.reshard_after_forward}"
        )
