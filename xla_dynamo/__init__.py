"""`torch.compile(model, backend="openxla")` on any device that has a PJRT plugin."""

from typing import Any

from xla_dynamo.errors import (
    CompileError,
    ExecutionError,
    LoweringError,
    OptionError,
    StorageError,
    UnsupportedDtype,
    UnsupportedError,
    UnsupportedOperator,
    UnsupportedTensor,
    XlaDynamoError,
)

# Looked up at first use: torch reads an entry point of this package during its own import, which
# must not wait for the import of jax.
_LAZY = {
    "Context": "xla_dynamo.lowerings.table",
    "lowers": "xla_dynamo.lowerings.table",
    "call_jax": "xla_dynamo.lowerings.builders.from_jax",
    "compile_graph": "xla_dynamo.execution.compiled_graph",
    "explain": "xla_dynamo.reports.explain",
    "openxla": "xla_dynamo.backend",
    "refreeze": "xla_dynamo.execution.frozen_inputs",
    "train_step": "xla_dynamo.training.train_step",
}

__all__ = [
    "CompileError",
    "Context",
    "ExecutionError",
    "LoweringError",
    "OptionError",
    "StorageError",
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


# Functions and not rows of the table: who only looks at the names of this package, as `help` and
# `import *` do, must not claim the one place that torch has for further devices.
def device(index: int = 0) -> Any:
    """The lazy device, `torch.device("xla", 0)`: tensors that are made there are computed by XLA.

    The first call makes the device known to torch; `import xla_dynamo.lazy` does, too.

    Raises:
        ValueError: another index than 0, since there is one device.
        XlaDynamoError: another package has taken torch's place for further devices.
    """
    from xla_dynamo.lazy import registration

    return registration.device(index)


def sync() -> None:
    """Compute all tensors of the 'xla' device that live, as one program.

    Call it once a step: equal steps are then equal programs, of which one is compiled.

    Raises:
        XlaDynamoError: XLA cannot compile or run the program; see `xla_dynamo.errors`.
    """
    from xla_dynamo.lazy import execution

    execution.sync()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "lowerings", "runtime"]
