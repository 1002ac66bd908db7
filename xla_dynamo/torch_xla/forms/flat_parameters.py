"""Names of `torch_xla.distributed.fsdp.xla_flatten_params_wrapper`: many parameters as one."""

import contextlib
import itertools
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

Tensor: TypeAlias = torch.Tensor
ParamGroups: TypeAlias = list[list[nn.Parameter]] | list[nn.Parameter] | None
_INNER = "_fpw_module."


class State(NamedTuple):
    """What a flat parameter knows beside its elements.

    Attributes:
        param_numels: how many elements each parameter has.
        param_shapes: their shapes.
        param_infos: the names of their modules, and their own.
        shared_param_infos: the same of each further place of a tied parameter, and its index.
    """

    param_numels: list[int]
    param_shapes: list[torch.Size]
    param_infos: list[tuple[str, str]]
    shared_param_infos: list[tuple[str, str, int]]


class FlatParameter(nn.Parameter):
    """The elements of several parameters of one dtype, one behind the other.

    Args:
        params: the parameters.
        requires_grad: whether this one needs a gradient.

    Raises:
        ValueError: there are none, or one is flat already.
    """

    state: State

    def __new__(cls, params: Sequence[Tensor], requires_grad: bool = True) -> "FlatParameter":
        """Copy the elements."""
        if not isinstance(params, list | tuple) or not params:
            raise ValueError("a flat parameter is made of a list of one parameter or more")
        if not all(isinstance(p, torch.Tensor) for p in params):
            raise ValueError("a flat parameter is made of parameters alone")
        if any(isinstance(p, FlatParameter) for p in params):
            raise ValueError("one of the parameters is flat already: it cannot be inside another")
        flat = torch.cat([p.detach().reshape(-1) for p in params])
        made = super().__new__(cls, flat, requires_grad)
        made.state = State([p.numel() for p in params], [p.size() for p in params], [], [])
        return made

    def __init__(self, params: Sequence[Tensor], requires_grad: bool = True) -> None:
        """Nothing more: `__new__` has it all."""

    def get_param_views(self, external_data: Tensor | None = None) -> Iterator[Tensor]:
        """The parameters as views of this one, or of another tensor of as many elements.

        Raises:
            ValueError: it has another number of elements.
        """
        data = self if external_data is None else external_data
        numels, shapes = self.state.param_numels, self.state.param_shapes
        if data.numel() != sum(numels):
            raise ValueError(f"there are {data.numel()} elements, and not {sum(numels)}")
        ends = itertools.accumulate(numels)
        # Not by split, whose views may not be read once an optimizer has written to the whole.
        return (
            data[end - count : end].view(size)
            for end, count, size in zip(ends, numels, shapes, strict=True)
        )

    def metadata(self) -> tuple[list[str], list[torch.Size], list[int]]:
        """The parameters' names, shapes and numbers of elements."""
        names = [_joined(*place) for place in self.state.param_infos]
        return names, self.state.param_shapes, self.state.param_numels

    def __setstate__(self, state: Any) -> None:
        self.state = State(*state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return FlatParameter, ([self.data], self.requires_grad), tuple(self.state)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FlatParameter":
        if id(self) not in memo:
            made = FlatParameter([self.data], self.requires_grad)
            made.state = State(*(list(field) for field in self.state))
            memo[id(self)] = made
        return memo[id(self)]


FlatTypes: TypeAlias = FlatParameter


class XlaFlattenParamsWrapper(nn.Module):
    """A module whose parameters are one, or one for each group, of which it reads views.

    Args:
        module: the module, whose parameters are taken away.
        param_list: the parameters that become one, or groups of them; all unless given.
        flat_param_names: a name for each group, behind "flat_param_".
        auto_unflatten_state_dict: whether `state_dict` has the parameters that the module had.

    Attributes:
        module: the module.
        is_flattened: whether the parameters are flat now.
        num_params_managed: how many parameters became flat.

    Raises:
        ValueError: two groups have one parameter, names are not as many as groups, or those of a
            group differ in their dtype or in whether they need a gradient.
    """

    def __init__(
        self,
        module: nn.Module,
        param_list: ParamGroups = None,
        flat_param_names: list[str] | None = None,
        auto_unflatten_state_dict: bool = True,
    ) -> None:
        super().__init__()
        self._fpw_module = module
        given: list[Any] = list(module.parameters()) if param_list is None else list(param_list)
        groups = [given] if given and isinstance(given[0], torch.Tensor) else given
        unique = [list(dict.fromkeys(group)) for group in groups]
        self.num_params_managed = sum(map(len, unique))
        if len({id(p) for group in unique for p in group}) != self.num_params_managed:
            raise ValueError("a parameter is in two groups of param_list: it can be in one")
        names = list(map(str, range(len(unique)))) if flat_param_names is None else flat_param_names
        if len(names) != len(unique) or len(set(names)) != len(names):
            raise ValueError(f"flat_param_names has {names}: give {len(unique)} different names")
        self.flat_param_names = [f"flat_param_{name}" for name in names]
        for name, group in zip(self.flat_param_names, unique, strict=True):
            self.register_parameter(name, self._flattened(group))
        self.is_flattened, self._auto = True, auto_unflatten_state_dict
        self._show_views()
        self.register_state_dict_post_hook(_name_as_before)
        self.register_load_state_dict_pre_hook(_name_as_flat)

    def _flattened(self, group: list[nn.Parameter]) -> FlatParameter:
        if len({(p.dtype, p.requires_grad) for p in group}) > 1:
            raise ValueError("parameters of a group have one dtype, and all need gradients or none")
        numbers = {id(p): index for index, p in enumerate(group)}
        first: dict[int, tuple[str, str]] = {}
        shared = []
        for where, module in self._fpw_module.named_modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is None or id(parameter) not in numbers:
                    continue
                index = numbers[id(parameter)]
                if index in first:
                    shared.append((where, name, index))
                first.setdefault(index, (where, name))
                del module._parameters[name]
        flat = FlatParameter(group, group[0].requires_grad)
        flat.state.param_infos.extend(first[index] for index in range(len(group)))
        flat.state.shared_param_infos.extend(shared)
        return flat

    @property
    def module(self) -> nn.Module:
        """The module."""
        return self._fpw_module

    @property
    def flat_params(self) -> list[FlatParameter]:
        """The flat parameters; none where they are not flat."""
        return [getattr(self, n) for n in self.flat_param_names] if self.is_flattened else []

    @property
    def flat_param(self) -> FlatParameter:
        """The flat parameter, if there is one group."""
        (only,) = self.flat_params
        return only

    def get_param_views(self, external_data_list: Any = None) -> Iterator[Tensor]:
        """The parameters of all groups, as views of the flat ones or of other tensors."""
        others = external_data_list or [None] * len(self.flat_params)
        pairs = zip(self.flat_params, others, strict=True)
        return itertools.chain.from_iterable(p.get_param_views(data) for p, data in pairs)

    def metadata(self, flat_param_idx: int) -> tuple[list[str], list[torch.Size], list[int]]:
        """The names, shapes and numbers of elements of a group's parameters."""
        return self.flat_params[flat_param_idx].metadata()

    def _show_views(self) -> None:
        """Let the module read views of the flat parameters."""
        for flat in self.flat_params:
            self._place(flat, list(flat.get_param_views()))

    def _place(self, flat: FlatParameter, values: Sequence[Tensor]) -> None:
        places = [(*place, index) for index, place in enumerate(flat.state.param_infos)]
        for where, name, index in places + flat.state.shared_param_infos:
            module = self._fpw_module.get_submodule(where)
            module.__dict__.pop(name, None)
            setattr(module, name, values[index])

    @contextlib.contextmanager
    def unflatten_params(self, flat_params: list[Tensor] | None = None) -> Iterator[None]:
        """A block in which the module has its parameters, as they were; changes of them stay.

        Args:
            flat_params: tensors whose elements they have then, of one dimension.
        """
        flats = self.flat_params
        given: Sequence[Tensor] = flats if flat_params is None else flat_params
        for flat, data in zip(flats, given, strict=True):
            views = flat.get_param_views(data.detach())
            self._place(flat, [nn.Parameter(v, requires_grad=flat.requires_grad) for v in views])
        self.is_flattened = False
        try:
            yield
        finally:
            self.is_flattened = True
            for flat in flats:
                modules = [
                    (self._fpw_module.get_submodule(w), n) for w, n in flat.state.param_infos
                ]
                with torch.no_grad():
                    flat.copy_(torch.cat([getattr(m, n).reshape(-1) for m, n in modules]))
                for where, name, *_ in flat.state.param_infos + flat.state.shared_param_infos:
                    self._fpw_module.get_submodule(where)._parameters.pop(name, None)
            self._show_views()

    def flat_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """`state_dict` with the flat parameters."""
        before, self._auto = self._auto, False
        try:
            return self.state_dict(*args, **kwargs)
        finally:
            self._auto = before

    def __getstate__(self) -> dict[str, Any]:
        for flat in self.flat_params:  # views in a graph cannot be copied
            self._place(flat, list(flat.get_param_views(flat.detach())))
        return dict(self.__dict__)

    def __getattr__(self, name: str) -> Any:
        """What the module has under a name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fpw_module"), name)

    def __getitem__(self, key: Any) -> Any:
        """What the module has at an index."""
        return self._fpw_module[key]  # type: ignore[index]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        if self.is_flattened:
            self._show_views()  # anew: those of an earlier forward have another graph
        return self._fpw_module(*args, **kwargs)


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def replace_by_prefix_(
    state_dict: MutableMapping[str, Any], old_prefix: str, new_prefix: str
) -> None:
    """Rename what begins with a prefix, in place.

    Raises:
        ValueError: the prefixes are equal.
    """
    if old_prefix == new_prefix:
        raise ValueError(f"both prefixes are {old_prefix!r}")
    for name in [n for n in state_dict if n.startswith(old_prefix)]:
        state_dict[new_prefix + name.removeprefix(old_prefix)] = state_dict.pop(name)


def _name_as_before(
    module: XlaFlattenParamsWrapper, state_dict: dict[str, Any], prefix: str, _: Any
) -> None:
    """Let a state have the names, and the parameters if it is to, that the module had."""
    replace_by_prefix_(state_dict, prefix + _INNER, prefix)
    for flat_name, flat in zip(module.flat_param_names, module.flat_params, strict=False):
        if not module._auto:
            continue
        views = list(flat.get_param_views(state_dict.pop(prefix + flat_name)))
        for index, place in enumerate(flat.state.param_infos):
            state_dict[prefix + _joined(*place)] = views[index]
        for where, name, index in flat.state.shared_param_infos:
            state_dict[prefix + _joined(where, name)] = views[index]


def _name_as_flat(
    module: XlaFlattenParamsWrapper, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """Let a state that is loaded have the flat parameters, and the names inside the wrapper."""
    for flat_name, flat in zip(module.flat_param_names, module.flat_params, strict=False):
        names = [prefix + _joined(*place) for place in flat.state.param_infos]
        if all(name in state_dict for name in names):
            made = torch.cat([state_dict.pop(name).reshape(-1) for name in names])
            state_dict[prefix + flat_name] = made
            for where, name, _index in flat.state.shared_param_infos:
                state_dict.pop(prefix + _joined(where, name), None)
    flat_names = tuple(prefix + name for name in module.flat_param_names)
    for name in list(state_dict):
        inside = name.startswith(prefix) and name not in flat_names
        if inside and not name.startswith(prefix + _INNER):
            state_dict[prefix + _INNER + name.removeprefix(prefix)] = state_dict.pop(name)
