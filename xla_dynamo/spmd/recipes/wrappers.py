"""A module around a module: its parameters, state dict, attributes and indices are the inner's."""

from typing import Any

import torch

from xla_dynamo.errors import ShardingError

_WRAPPED = "_orig_module."


class ModuleWrapper(torch.nn.Module):
    """A wrapper that has the names of the module in it.

    `state_dict`, `load_state_dict` and `named_parameters` have the wrapped module's names, so that
    checkpoints go both ways. Attributes and indices that the wrapper lacks are the module's.

    Args:
        module: the module to wrap.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._orig_module = module
        self.register_state_dict_post_hook(_take_prefix_off)
        self.register_load_state_dict_pre_hook(_put_prefix_on)

    @property
    def module(self) -> torch.nn.Module:
        """The module that is wrapped."""
        return self._orig_module

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """As the wrapped module's, by its names."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield inner_name(name), parameter

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_orig_module":  # not there yet
                raise
            return getattr(self._orig_module, name)

    def __getitem__(self, key: Any) -> Any:
        return self._orig_module[key]  # type: ignore[index]


def check_wrappable(module: torch.nn.Module, wrapper: type[ModuleWrapper]) -> None:
    """Refuse a module that has such a wrapper already, or no forward to wrap.

    Raises:
        ShardingError: it is one of these.
    """
    name = type(module).__name__
    if isinstance(module, wrapper):
        raise ShardingError(f"this {type(module.module).__name__} is fully sharded already")
    if getattr(type(module), "forward", None) in (None, torch.nn.Module.forward):
        raise ShardingError(
            f"{name} has no forward of its own, which is where its output would be sharded: wrap "
            "the modules in it, or the module that holds it"
        )


def inner_name(name: str) -> str:
    """The name that a parameter or buffer would have without wrappers."""
    return name.replace(_WRAPPED, "")


def own_modules(module: torch.nn.Module, wrapper: type[ModuleWrapper]) -> dict[str, Any]:
    """A module and those inside it, without those that have a wrapper of their own, by name."""
    found: dict[str, Any] = {}
    pending = [("", module)]
    for prefix, one in pending:
        if any(one is other for other in found.values()):
            continue
        found[prefix] = one
        pending += [
            (f"{prefix}{name}.", inner)
            for name, inner in one._modules.items()
            if inner is not None and not isinstance(inner, wrapper)
        ]
    return found


def _take_prefix_off(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    _rename(state, prefix + _WRAPPED, prefix)
    _rename(getattr(state, "_metadata", {}), prefix + _WRAPPED, prefix)


def _put_prefix_on(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    if not any(key.startswith(prefix + _WRAPPED) for key in state):
        _rename(state, prefix, prefix + _WRAPPED)


def _rename(entries: dict[str, Any], old: str, new: str) -> None:
    """Give the entries below one prefix another, the entry of the module itself too."""
    for key in [k for k in entries if f"{k}.".startswith(old)]:
        entries[(new + f"{key}."[len(old) :])[:-1]] = entries.pop(key)
