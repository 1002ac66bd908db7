"""`torch.autocast("xla")`: which operators run in the lower precision, and which in float32.

The lists are those of torch's other devices (aten/src/ATen/autocast_mode.h). A kernel casts its
tensors and calls the operator again, below autocast.
"""

from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.torch_private import (
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeys,
    leave_to_python,
)

aten = torch.ops.aten
_LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv1d.padding conv2d.padding "
    "conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input "
    "convolution prelu addmm addmv addr matmul mm mv linalg_vecdot linear addbmm baddbmm bmm "
    "chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "_scaled_dot_product_flash_attention scaled_dot_product_attention"
)
_FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm "
    "group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
    "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist "
    "pdist cdist renorm logsumexp cross_entropy_loss"
)
# These have an argument for the dtype, which they are given in place of a cast.
_FLOAT32_BY_DTYPE = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
_KEYS = DispatchKeySet(DispatchKey.AutocastPrivateUse1)
Kernel = Callable[..., Any]


def register_autocast(library: torch.library.Library) -> torch.library.Library:
    """Give operators of ATen a kernel for autocast on the device.

    Returns:
        Another library, which lets all other operators through, for as long as it lives.
    """
    for names, make in (
        (_LOWER, _in_lower_precision),
        (_FLOAT32, _in_float32),
        (_FLOAT32_BY_DTYPE, _with_dtype),
        (_WIDEST, _in_the_widest),
    ):
        for name in names.split():
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet, None), overload or "default", None)
            if op is not None:  # operators come and go with torch's versions
                kernel = make(op)
                leave_to_python(kernel)
                library.impl(name, kernel, "AutocastPrivateUse1")
    library.impl("binary_cross_entropy", _refuse, "AutocastPrivateUse1")
    torch.set_autocast_dtype("xla", torch.bfloat16)  # PyTorch/XLA's, where torch has float16
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return others


def _in_lower_precision(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("xla")
        with ExcludeDispatchKeys(_KEYS):
            return op(*_cast(args, dtype), **_cast(kwargs, dtype))

    return kernel


def _in_float32(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with ExcludeDispatchKeys(_KEYS):
            return op(*_cast(args, torch.float32), **_cast(kwargs, torch.float32))

    return kernel


def _with_dtype(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = [a for a in args if isinstance(a, torch.dtype)]
        if _is_castable(args[0]) and kwargs.get("dtype") is None and not given:
            kwargs["dtype"] = torch.float32
        with ExcludeDispatchKeys(_KEYS):
            return op(*args, **kwargs)

    return kernel


def _in_the_widest(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        found = [a.dtype for a in _leaves((args, kwargs)) if _is_castable(a)]
        widest = torch.float32 if torch.float32 in found else torch.get_autocast_dtype("xla")
        with ExcludeDispatchKeys(_KEYS):
            return op(*_cast(args, widest), **_cast(kwargs, widest))

    return kernel


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss, which take what comes before the "
        "sigmoid"
    )


def _is_castable(value: Any) -> bool:
    """Whether autocast may change a value's dtype: tensors of the device, up to float32."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "xla"
        and value.dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, dict):
        return {name: _cast(v, dtype) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_cast(v, dtype) for v in value)
    return value.to(dtype) if _is_castable(value) else value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [x for v in value for x in _leaves(v)] if isinstance(value, list | tuple) else [value]
