"""torch's operator database: what the sweeps draw from it, and what is peculiar to some of it."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import scipy.special
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    SampleInput,
    UnaryUfuncInfo,
)

# Values are drawn at random: shape, dtype and strides are compared; values are only if torch draws.
DRAWN = frozenset(
    {
        "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial",
        "nn.functional.alpha_dropout", "nn.functional.dropout",
        "nn.functional.dropout2d", "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d", "nn.functional.rrelu",
        "normal", "rand_like", "randint", "randint_like", "randn", "randn_like",
        "svd_lowrank", "uniform",
    }
)  # fmt: skip
# What was there before: shape, dtype and strides are compared.
UNINITIALIZED = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    }
)  # fmt: skip

# Which of several equal elements an index names is left to the algorithm: an introsort, a
# quickselect. Such results are compared by the elements that they choose.
TIES = frozenset({"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"})

# Sums and products in another order than eager's, so that both differ from the exact result by more
# than torch.testing allows them to differ from each other. These must be as near to a float64 run
# as eager is.
ROUNDING = frozenset(
    {
        "__rmatmul__", "__rpow__", "addbmm", "asin", "atanh", "baddbmm", "erfinv", "fft.hfft2",
        "grid_sampler_2d", "grid_sampler_3d", "kron", "ldexp", "linalg.cond", "linalg.eigh",
        "linalg.householder_product", "linalg.pinv.hermitian", "linalg.svd", "logcumsumexp",
        "matmul", "matrix_exp", "native_layer_norm", "nn.functional.conv2d", "nn.functional.conv3d",
        "nn.functional.conv_transpose3d", "nn.functional.grid_sample", "nn.functional.layer_norm",
        "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
        "pow", "stft", "svd", "svd_lowrank",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    }
)  # fmt: skip

# Eager's own are good to seven digits in float64 too, and XLA's to fifteen: SciPy's decide.
SEVEN_DIGITS: dict[str, Callable[..., Any]] = {
    f"special.bessel_{name}": getattr(scipy.special, name) for name in ("j0", "j1", "y0", "y1")
}

# Of those and of half types, the ones that magnify rounding: over 60 random matrices the error is
# eager's in the median, and up to 6 times as much or as little in single ones; at negative numbers
# polygamma is a small difference of large terms; near 1 the gradient of erfinv has no bound. How
# many times eager's error theirs may be.
ILL_CONDITIONED = {
    "erfinv": 16,
    **dict.fromkeys(
        (
            "linalg.householder_product", "linalg.svd", "polygamma.polygamma_n_0",
            "polygamma.polygamma_n_1", "polygamma.polygamma_n_2", "polygamma.polygamma_n_3",
            "polygamma.polygamma_n_4", "special.polygamma.special_polygamma_n_0", "svd",
        ),
        8,
    ),
}  # fmt: skip

# Vectors that are right with either sign (or complex phase): the values of the database's own
# functions of the result are compared, since LAPACK's libraries differ in the choice.
UP_TO_SIGN = frozenset(
    {"linalg.eig", "linalg.eigh", "linalg.svd", "pca_lowrank", "svd", "svd_lowrank"}
)

# Operators that compute each element, or each group of elements, by itself.
_BY_ELEMENT = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)

# The database seeds within its functions, which Dynamo does not trace; `op_forms` seeds outside.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
# It looks through the stack for a `unittest.TestCase` to tell which sample it is at: none is here.
core.extract_test_fn = lambda: None


def full_name(op: OpInfo) -> str:
    """The operator's name with its variant, which is unique in the database."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators(dtype: torch.dtype, form: str = "values") -> list[OpInfo]:
    """The operators that support a dtype on the CPU, and have a form; see `op_forms.FORMS`."""
    every = [op for op in op_db if dtype in op.supported_dtypes("cpu")]
    has = {
        "values": lambda op: True,
        "gradients": lambda op: op.supports_autograd and dtype in op.backward_dtypes,
        "in-place": lambda op: op.inplace_variant is not None,
        "out": lambda op: op.supports_out,
        "special": lambda op: isinstance(op, _BY_ELEMENT),
        "literals": lambda op: not dtype.is_complex,
    }[form]
    return [op for op in every if has(op)]


def samples(op: OpInfo, dtype: torch.dtype, limit: int | None, form: str) -> Iterator[SampleInput]:
    """Sample inputs; with a limit, spread over all of them, since the odd ones come late."""
    torch.manual_seed(0)
    every = list(op.sample_inputs("cpu", dtype, requires_grad=form == "gradients"))
    if form == "in-place":
        every = [sample for sample in every if not sample.broadcasts_input]
    if form == "special":
        # Where a quotient overflows, eager's vectorized kernels give NaN, those for scalars 0.
        divides = op.name in ("fmod", "remainder", "__rmod__")
        numbers = _SPECIAL[:-1] if divides else _SPECIAL
        every = [sample.transform(functools.partial(_with_special, numbers)) for sample in every]
    if limit is None or len(every) <= limit:
        return iter(every)
    chosen = {round(i * (len(every) - 1) / (limit - 1)) for i in range(limit)} if limit > 1 else {0}
    return (every[i] for i in sorted(chosen))


# Infinities, NaN, zeros and, by their names in torch.finfo, the largest and least numbers.
_SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, "max", "min", -1.0, "tiny")


def _with_special(names: Sequence[float | str], x: Any) -> Any:
    """A tensor with these numbers at every second place."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.layout != torch.strided:
        return x
    limits = torch.finfo(x.dtype)
    numbers = [getattr(limits, n) if isinstance(n, str) else n for n in names]
    special = torch.tensor(numbers, dtype=x.dtype)
    place = torch.arange(x.numel()).reshape(x.shape)
    chosen = special[place // 2 % len(numbers)]
    return torch.where(place % 2 == 0, chosen, x.detach()).requires_grad_(x.requires_grad)
