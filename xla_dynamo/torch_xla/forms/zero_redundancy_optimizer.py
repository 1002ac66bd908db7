"""Names of `torch_xla.distributed.zero_redundancy_optimizer`: an optimizer of parts (ZeRO-1)."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

import xla_dynamo
from xla_dynamo.distributed.fsdp.arguments import own_group
from xla_dynamo.distributed.fsdp.shards import Division, padded
from xla_dynamo.errors import OptionError
from xla_dynamo.torch_xla.forms.buckets import all_gather_bucketized, reduce_scatter_bucketized

Tensor: TypeAlias = torch.Tensor
Groups: TypeAlias = Sequence[Sequence[int]]
Pair: TypeAlias = tuple[Tensor, nn.Parameter]  # a parameter, and this process's part of it


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """An optimizer whose state each process has for its part of the parameters alone.

    A step gives each process its part of the mean gradients, updates that part, and gathers the
    parameters. A parameter is divided along its first dimension, which is padded with zeros. So
    optimizers that look at whole parameters, such as LAMB, compute something else.

    Args:
        params: parameters on the device, or groups of them.
        optimizer_class: the optimizer of the parts.
        optimizer_dtype: the dtype of the parts and of their gradients; float32 unless given.
        grad_clipping: whether the norm of all gradients is limited.
        max_norm: to how much; 1.0 unless given.
        pin_layout: as for `all_reduce`.
        sharding_groups: groups of ranks, each of which divides the parameters; all in one unless
            given.
        grad_norm_groups: groups of ranks over which the square of the norm is summed beside.
        lazy_init: whether the parameters are divided only by `init_zero`.
        bucket_cap_mb_all_gather: how many megabytes are gathered at once; 0 for each by itself.
        bucket_cap_mb_reduce_scatter: likewise, of gradients.
        use_grad_acc_hook: whether backwards add gradients up in `optimizer_dtype`.
        save_master_weights: whether `state_dict` has the parts, in `optimizer_dtype`.
        higher_cc_precision: whether gradients are summed in `optimizer_dtype`.
        defaults: arguments of the optimizer.

    Attributes:
        base_optimizer: the optimizer of the parts.
        grad_norm: the norm of the gradients at the last step, before it was limited.

    Raises:
        OptionError: the parameters are not on the device.
        ShardingError: groups are not of one size with each process in one.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: Callable[..., torch.optim.Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Groups | None = None,
        grad_norm_groups: Groups | None = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(params, defaults)
        self.optimizer_class, self.optimizer_dtype = (
            optimizer_class,
            optimizer_dtype or torch.float32,
        )
        self.grad_clipping, self.max_norm = grad_clipping, 1.0 if max_norm is None else max_norm
        self.pin_layout = pin_layout
        self._groups, self._norm_groups = sharding_groups, grad_norm_groups
        self._caps = bucket_cap_mb_all_gather, bucket_cap_mb_reduce_scatter
        self.use_grad_acc_hook, self.save_master_weights = use_grad_acc_hook, save_master_weights
        self.higher_cc_precision = higher_cc_precision
        self._handles: list[Any] = []
        self.grad_norm: Tensor | None = None
        self.inited = False
        if not lazy_init:
            self.init_zero()

    @property
    def sharding_groups(self) -> Groups:
        """The groups of ranks, each of which divides the parameters."""
        return self._groups or [list(range(xla_dynamo.xrt_world_size()))]

    @sharding_groups.setter
    def sharding_groups(self, groups: Groups) -> None:
        if self.inited:
            raise OptionError("sharding_groups come too late: the parameters are divided already")
        self._groups = groups

    def init_zero(self) -> None:
        """Divide the parameters, as they are now, and make the optimizer of the parts."""
        for handle in self._handles:
            handle.remove()
        rank, size = own_group(self._groups, None, None)
        self._division = Division(self._groups, rank, size)
        every = [p for group in self.param_groups for p in group["params"]]
        if any(p.device.type != "xla" for p in every):
            raise OptionError("parameters are on the device 'xla': move the model there first")
        with torch.no_grad():
            groups = [
                {**group, "params": [self._part_of(p) for p in group["params"]]}
                for group in self.param_groups
            ]
        self.base_optimizer = self.optimizer_class(groups, **self.defaults)
        xla_dynamo.unlazy([part for group in groups for part in group["params"]])
        if self.use_grad_acc_hook:
            self._handles = [self._add_up(p, part) for p, part in self._pairs() if p.requires_grad]
        self._copy_options(self.base_optimizer, self)
        self.inited = True

    def _part_of(self, parameter: Tensor) -> nn.Parameter:
        own = self._division.own_part(_rows(parameter.detach())).to(self.optimizer_dtype)
        return nn.Parameter(own, requires_grad=parameter.requires_grad)

    def _pairs(self) -> Iterator[Pair]:
        """Each parameter, and its part."""
        for group, parts in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            yield from zip(group["params"], parts["params"], strict=True)

    def _add_up(self, parameter: Any, part: Any) -> Any:
        """Add gradients of a parameter up in the dtype of its part; returns the hook's handle."""

        def hook(p: Any) -> None:
            with torch.no_grad():
                gradient = p.grad.to(self.optimizer_dtype)
                known = getattr(part, "main_grad", None)
                part.main_grad = p.main_grad = gradient if known is None else known.add_(gradient)
            p.grad = None

        return parameter.register_post_accumulate_grad_hook(hook)

    def _gradient(self, parameter: Any, part: Any) -> Tensor | None:
        return getattr(part, "main_grad", None) if self.use_grad_acc_hook else parameter.grad

    @staticmethod
    def _copy_options(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
        for given, taking in zip(source.param_groups, target.param_groups, strict=True):
            taking.update({name: v for name, v in given.items() if name != "params"})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update the parameters of all processes.

        Args:
            closure: computes the loss anew, if it is given.
            kwargs: what the optimizer of the parts is called with. A `sharding_scheme` lists, as
                dictionaries, the groups over which gradients are summed one after the other: their
                "sharding_group", "group_size" and "scale_factor".

        Returns:
            What the closure returned.

        Raises:
            OptionError: the parameters are not divided yet.
        """
        if not self.inited:
            raise OptionError("call init_zero() before step(): lazy_init=True was given")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scheme = kwargs.pop("sharding_scheme", None) or self._own_scheme()
        pairs = [pair for pair in self._pairs() if self._gradient(*pair) is not None]
        self._copy_options(self, self.base_optimizer)
        self._reduce(pairs, scheme)
        if self.grad_clipping:
            self._limit([part for _, part in pairs])
        self.base_optimizer.step(**kwargs)
        self.base_optimizer.zero_grad(set_to_none=True)
        self._gather(pairs, scheme)
        self._copy_options(self.base_optimizer, self)
        return loss

    def _own_scheme(self) -> list[dict[str, Any]]:
        size = self._division.size
        return [{"scale_factor": 1.0, "sharding_group": self._groups, "group_size": size}]

    def _reduce(self, pairs: Sequence[Pair], scheme: Sequence[dict[str, Any]]) -> None:
        """Give each part the mean gradient."""
        made = []
        for pair in pairs:
            gradient = self._gradient(*pair)
            assert gradient is not None
            rows = padded(_rows(gradient), self._division.size)
            made.append(rows.to(self.optimizer_dtype) if self.higher_cc_precision else rows)
        for step in scheme:
            size, groups = step["group_size"], step["sharding_group"]
            scale = step["scale_factor"] / size
            made = reduce_scatter_bucketized(
                "sum", made, scale, 0, size, groups, None, self.pin_layout, self._caps[1]
            )
        for (_, part), gradient in zip(pairs, made, strict=True):
            part.grad = gradient.to(self.optimizer_dtype)

    def _limit(self, parts: Sequence[nn.Parameter]) -> None:
        """Limit the norm of all gradients."""
        gradients = [part.grad for part in parts if part.grad is not None]
        device = self.param_groups[0]["params"][0].device
        square = torch.zeros((), dtype=self.optimizer_dtype, device=device)
        for gradient in gradients:
            square = square + (gradient * gradient).sum()
        square = xla_dynamo.all_reduce("sum", square, groups=self._groups)
        if self._norm_groups is not None:
            square = xla_dynamo.all_reduce("sum", square, groups=self._norm_groups)
        self.grad_norm = square.sqrt()
        factor = (self.max_norm / (self.grad_norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)

    def _gather(self, pairs: Sequence[Pair], scheme: Sequence[dict[str, Any]]) -> None:
        """Give parameters the elements of all processes' parts."""
        made = [part.detach().to(parameter.dtype) for parameter, part in pairs]
        for step in reversed(scheme):
            groups = step["sharding_group"]
            made = all_gather_bucketized(made, 0, groups, None, self.pin_layout, self._caps[0])
        with torch.no_grad():
            for (parameter, _), rows in zip(pairs, made, strict=True):
                parameter.copy_(rows[: len(_rows(parameter))].view_as(parameter))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero; also those that hooks have added up."""
        super().zero_grad(set_to_none=set_to_none)
        if self.inited and self.use_grad_acc_hook:
            for _, part in self._pairs():
                if getattr(part, "main_grad", None) is not None:
                    part.main_grad.zero_()  # type: ignore[attr-defined]

    def get_shape_info(self) -> dict[int, torch.Size]:
        """The shapes of the whole parameters, by their numbers."""
        every = (p for group in self.param_groups for p in group["params"])
        return {number: p.shape for number, p in enumerate(every)}

    def state_dict(self) -> dict[str, Any]:
        """This process's state: "base_state" is that of the parts, by the parameters' numbers."""
        found = super().state_dict()
        found["base_state"] = self.base_optimizer.state_dict()["state"]
        found["shape_info"] = self.get_shape_info()
        if self.save_master_weights:
            parts = (part.detach() for _, part in self._pairs())
            found["sharded_master_weights"] = dict(enumerate(parts))
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state that `state_dict` returned in the process of this rank.

        Saved parts become the parameters of all processes, which call this together.
        """
        given = copy.deepcopy(state_dict)
        base_state = given.pop("base_state")
        super().load_state_dict(given)
        self.init_zero()
        whole = self.base_optimizer.state_dict()
        self.base_optimizer.load_state_dict(
            {**whole, "state": base_state, "param_groups": given["param_groups"]}
        )
        saved = given.get("sharded_master_weights")
        if saved is None:
            return
        pairs = list(self._pairs())
        with torch.no_grad():
            for number, (_, part) in enumerate(pairs):
                part.copy_(saved[number])
        self._gather(pairs, self._own_scheme())
        xla_dynamo.sync()


def _rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor.reshape(1)
