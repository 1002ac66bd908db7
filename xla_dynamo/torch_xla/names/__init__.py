"""What stands for each name of PyTorch/XLA 2.9, by module."""

from collections.abc import Mapping

from xla_dynamo.torch_xla.names import (
    builder,
    c_extension,
    debug,
    distributed,
    experimental,
    kernels,
    lazy_tensors,
    runtime,
    utilities,
)
from xla_dynamo.torch_xla.names.entries import Names

_PARTS = (
    builder,
    c_extension,
    debug,
    distributed,
    experimental,
    kernels,
    lazy_tensors,
    runtime,
    utilities,
)


def _joined() -> dict[str, Names]:
    """The tables of all parts, of which several may have names of one module."""
    found: dict[str, Names] = {}
    for part in _PARTS:
        for module, names in part.TABLES.items():
            known = found.get(module, {})
            assert not known.keys() & names.keys(), f"{module} has names twice"
            found[module] = {**known, **names}
    return found


TABLES: Mapping[str, Names] = _joined()
# What a module's import registers in torch, beside names: operators.
IMPORTS: Mapping[str, tuple[str, ...]] = {
    **kernels.IMPORTS,
    "torch_xla.experimental.xla_dynamic_reshape_ops": ("xla_dynamo.torch_xla.forms.dynamic_sizes",),
}
