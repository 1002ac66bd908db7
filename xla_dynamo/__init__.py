"""`torch.compile(model, backend="openxla")` on any device that has a PJRT plugin."""

from typing import Any

from xla_dynamo.errors import (
    CompileError,
    ExecutionError,
    LoweringError,
    OptionError,
    UnsupportedDtype,
    UnsupportedError,
    UnsupportedOperator,
    UnsupportedTensor,
    XlaDynamoError,
)

# Looked up on first use: torch reads an entry point in this package while it is being imported
# itself, and must not pay for jax there.
_LAZY = {
    "Context": "xla_dynamo.lowerings.table",
    "lowers": "xla_dynamo.lowerings.table",
    "call_jax": "xla_dynamo.lowerings.from_jax",
    "compile_graph": "xla_dynamo.compiled_graph",
    "device": "xla_dynamo.lazy",
    "explain": "xla_dynamo.explained",
    "openxla": "xla_dynamo.backend",
    "refreeze": "xla_dynamo.frozen_inputs",
    "sync": "xla_dynamo.lazy",
    "train_step": "xla_dynamo.training",
}

__all__ = [
    "CompileError",
    "Context",
    "ExecutionError",
    "LoweringError",
    "OptionError",
    "UnsupportedDtype",
    "UnsupportedError",
    "UnsupportedOperator",
    "UnsupportedTensor",
    "XlaDynamoError",
    "call_jax",
    "compile_graph",
    "device",
    "explain",
    "lowers",
    "openxla",
    "refreeze",
    "sync",
    "train_step",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "lowerings", "runtime"]
