"""Let code run around the forward of a module.

Not hooks: `torch.compile(module)` runs the hooks of the module itself outside of the graph that it
compiles, where marks would shard nothing.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

# Is given the forward that a module had, its arguments and its keywords; returns the output.
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def wrap_forward(module: torch.nn.Module, around: Around) -> None:
    """Let a function call the forward of this one module, and see what it takes and returns.

    The module stays of its class. A `copy.deepcopy` of it has a forward that is wrapped, too.
    """
    before = module.forward
    is_method = isinstance(before, types.MethodType) and before.__self__ is module
    inner = before.__func__ if is_method else before  # type: ignore[union-attr]

    @functools.wraps(inner)
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(inner, self) if is_method else inner, args, kwargs)

    module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


def map_inputs(module: torch.nn.Module, change: Callable[[Any], Any]) -> None:
    """Change what a module is called with: a function of the arguments and keywords, as a pair."""

    def around(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        args, kwargs = change((args, kwargs))
        return forward(*args, **kwargs)

    wrap_forward(module, around)


def map_output(module: torch.nn.Module, change: Callable[[Any], Any]) -> None:
    """Change what a module returns."""
    wrap_forward(module, lambda forward, args, kwargs: change(forward(*args, **kwargs)))
