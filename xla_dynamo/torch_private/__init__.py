"""Every use of torch's private parts: names that torch may move, each with what we use it for.

Each name's place is a row of `PLACES`, looked up at its first use: importing this costs nothing.
The functions wrap each use of a private attribute of one of torch's objects.
`tests/test_torch_private.py` fails with a clear message when one of these moves.
"""

from typing import Any

from xla_dynamo.torch_private.compilers import (
    current_region,
    function_of,
    is_tracing_here,
    leave_to_python,
    mark_boxed,
    new_symbol,
    region_of,
    sizes_seen_to_vary,
    source_name,
    source_of,
    uncompiled,
)
from xla_dynamo.torch_private.operators import (
    call_kernel,
    define_quantized_decomposed,
    forget_kernels,
    library_kernels,
    public_name,
    schema,
)
from xla_dynamo.torch_private.optimizers import (
    init_group,
    is_counted_by_scheduler,
    makes_state_in_groups,
    mark_stepped,
    scaler_tensors,
    step_hooks,
)
from xla_dynamo.torch_private.places import PLACES, find
from xla_dynamo.torch_private.process_groups import (
    change_default_device,
    change_makers_of_maps,
    set_dtensor_draws,
)
from xla_dynamo.torch_private.settings import (
    change_accelerator,
    functorch_settings,
    global_settings,
    in_a_mode,
    set_mkldnn,
)
from xla_dynamo.torch_private.tensors import (
    base_of,
    call_after_backward,
    has_gradient_hooks,
    in_forward_mode,
    is_conjugated_or_negated,
    is_function_wrapper,
    is_view,
    is_zero_tensor,
    number_of_storage,
    storage_id,
    version_of,
)


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = find(name)
    return found


__all__ = [
    "PLACES",
    "base_of",
    "call_after_backward",
    "call_kernel",
    "change_accelerator",
    "change_default_device",
    "change_makers_of_maps",
    "current_region",
    "define_quantized_decomposed",
    "forget_kernels",
    "function_of",
    "functorch_settings",
    "global_settings",
    "has_gradient_hooks",
    "in_a_mode",
    "in_forward_mode",
    "init_group",
    "is_conjugated_or_negated",
    "is_counted_by_scheduler",
    "is_function_wrapper",
    "is_tracing_here",
    "is_view",
    "is_zero_tensor",
    "leave_to_python",
    "library_kernels",
    "makes_state_in_groups",
    "mark_boxed",
    "mark_stepped",
    "new_symbol",
    "number_of_storage",
    "public_name",
    "region_of",
    "scaler_tensors",
    "schema",
    "set_dtensor_draws",
    "set_mkldnn",
    "sizes_seen_to_vary",
    "source_name",
    "source_of",
    "step_hooks",
    "storage_id",
    "uncompiled",
    "version_of",
]
