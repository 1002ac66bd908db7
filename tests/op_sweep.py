"""torch's own operator database run through the backend, one operator and dtype at a time.

As a command, for work on the rules: `python -m tests.op_sweep 'fft' --dtype float32 --all`.
"""

import argparse
import dataclasses
import itertools
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

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
        "__rmatmul__", "__rpow__", "addbmm", "atanh", "erfinv", "fft.hfft2", "grid_sampler_2d",
        "grid_sampler_3d", "ldexp", "linalg.cond", "linalg.eigh", "linalg.householder_product",
        "linalg.pinv.hermitian", "linalg.svd", "logcumsumexp", "matmul", "matrix_exp",
        "native_layer_norm", "nn.functional.conv3d", "nn.functional.conv_transpose3d",
        "nn.functional.grid_sample", "nn.functional.layer_norm",
        "nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention",
        "pow", "stft", "svd",
    }
)  # fmt: skip

# Of those, the ones that magnify rounding: over 60 random matrices the error is eager's in the
# median, and up to 6 times as much or as little in single ones.
ILL_CONDITIONED = frozenset({"linalg.householder_product", "linalg.svd", "svd"})

# Vectors that are right with either sign (or complex phase): the values of the database's own
# functions of the result are compared, since LAPACK's libraries differ in the choice.
UP_TO_SIGN = frozenset(
    {"linalg.eig", "linalg.eigh", "linalg.svd", "pca_lowrank", "svd", "svd_lowrank"}
)

# The database seeds within its functions, which Dynamo does not trace; `_call` seeds outside.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@dataclasses.dataclass
class Outcome:
    """What became of one operator and dtype: "pass", "fail", or "unsupported" by torch itself."""

    status: str
    samples: int = 0
    detail: str = ""


def full_name(op: OpInfo) -> str:
    """The operator's name with its variant, which is unique in the database."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators(dtype: torch.dtype) -> list[OpInfo]:
    """The operators that support a dtype on the CPU."""
    return [op for op in op_db if dtype in op.supported_dtypes("cpu")]


def differentiable(dtype: torch.dtype) -> list[OpInfo]:
    """The operators that have gradients at a dtype on the CPU."""
    every = operators(dtype)
    return [op for op in every if op.supports_autograd and dtype in op.backward_dtypes]


def samples(
    op: OpInfo, dtype: torch.dtype, limit: int | None, *, gradients: bool = False
) -> Iterator[SampleInput]:
    """Sample inputs; with a limit, spread over all of them, since the odd ones come late."""
    torch.manual_seed(0)
    every = list(op.sample_inputs("cpu", dtype, requires_grad=gradients))
    if limit is None or len(every) <= limit:
        return iter(every)
    chosen = {round(i * (len(every) - 1) / (limit - 1)) for i in range(limit)} if limit > 1 else {0}
    return (every[i] for i in sorted(chosen))


def _call(op: OpInfo, compiler: str | None, sample: SampleInput, **options: Any) -> Any:
    """The result of an operator, in eager (None) or through a backend."""
    return _run(op, compiler, sample, options)[0]


def _gradients(op: OpInfo, compiler: str | None, sample: SampleInput, **options: Any) -> Any:
    """The gradients of an operator's results, weighted at random, in its inputs."""
    result, tensors = _run(op, compiler, sample, options)
    leaves = pytree.tree_leaves(sample.output_process_fn_grad(result))
    outputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    inputs = [t for t in tensors if t.requires_grad]
    torch.manual_seed(2)
    weights = [torch.randn_like(t) for t in outputs]
    if not outputs:
        return ()
    return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def _run(
    op: OpInfo, compiler: str | None, sample: SampleInput, options: dict[str, Any]
) -> tuple[Any, list[torch.Tensor]]:
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def program(tensors: list[torch.Tensor]) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        input_, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(input_, *args, **kwargs)

    tensors = [_copy(leaves[i]) for i in places]
    torch.manual_seed(1)
    if compiler is None:
        return program(tensors), tensors
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=compiler, fullgraph=True, options=options)
    return compiled(tensors), tensors


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf that keeps the strides: what a sample is about may be just those."""
    given = tensor.detach()
    if tensor.layout is torch.strided and torch._debug_has_internal_overlap(tensor) == 0:
        given = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
        ).copy_(given)
    return given.requires_grad_(tensor.requires_grad)


def compare(expected: Any, actual: Any, *, values: bool, strides: bool = True) -> None:
    """Raise AssertionError unless two results agree in structure, types, strides and values."""
    flat_e, spec_e = pytree.tree_flatten(expected)
    flat_a, spec_a = pytree.tree_flatten(actual)
    assert len(flat_e) == len(flat_a), f"structure: {spec_e} against {spec_a}"
    for e, a in zip(flat_e, flat_a, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(e) is type(a), f"type: {type(e)} against {type(a)}"
            assert not values or e == a or e != e, f"number: {e} against {a}"
            continue
        assert e.dtype == a.dtype, f"dtype: eager {e.dtype}, compiled {a.dtype}"
        assert e.shape == a.shape, f"shape: eager {e.shape}, compiled {a.shape}"
        assert not strides or same_strides(e, a), (
            f"stride: eager {e.stride()}, compiled {a.stride()}"
        )
        if values:
            e, a = (t.resolve_conj().resolve_neg() for t in (e, a))
            torch.testing.assert_close(a, e, equal_nan=True, check_stride=False)


def compare_with_exact(
    op: OpInfo, sample: SampleInput, expected: Any, actual: Any, call: Callable[..., Any] = _call
) -> None:
    """Raise AssertionError if a result is twice as far from a float64 run as eager's is.

    Eight times, for what is ill conditioned. Besides, every element may be off by four units in the
    last place of the largest one.
    """

    def widen(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
        return wide.detach().requires_grad_(x.requires_grad)

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what integers become
    try:
        exact = call(op, None, sample.transform(widen))
    finally:
        torch.set_default_dtype(default)
    leaves = [pytree.tree_leaves(r) for r in (exact, expected, actual)]
    for x, e, a in zip(*leaves, strict=True):
        if isinstance(x, torch.Tensor) and x.numel():
            ours, eagers = ((t.to(x.dtype) - x).abs().max() for t in (a, e))
            eagers = eagers.nan_to_num(0)  # matrix_exp in bfloat16, where the truth is a number
            whole = not (a.is_floating_point() or a.is_complex())
            scale = 0 if whole else 4 * x.abs().max() * torch.finfo(a.dtype).eps
            factor = 8 if full_name(op) in ILL_CONDITIONED else 2
            assert ours <= factor * eagers + scale, f"error {ours:.1e}, eager's {eagers:.1e}"


def settle_ties(x: torch.Tensor, expected: Any, actual: Any) -> Any:
    """The actual result with the expected indices where its own choose the same elements of x."""
    flat_e, flat_a = pytree.tree_leaves(expected), pytree.tree_leaves(actual)
    settled = [
        e if e.dtype == a.dtype == torch.int64 and _same_choice(x, e, a) else a
        for e, a in zip(flat_e, flat_a, strict=True)
    ]
    return pytree.tree_unflatten(settled, pytree.tree_structure(actual))


def _same_choice(x: torch.Tensor, e: torch.Tensor, a: torch.Tensor) -> bool:
    """Whether two tensors of indices, none twice, choose equal elements along some dimension."""
    if e.shape != a.shape or not same_strides(e, a) or not 0 <= x.dim() - e.dim() <= 1:
        return False
    for dim in range(x.dim()):
        e_, a_ = (t if t.dim() == x.dim() else t.unsqueeze(dim) for t in (e, a))
        rest = [n for d, n in enumerate(x.shape) if d != dim]
        if rest != [n for d, n in enumerate(e_.shape) if d != dim] or not a_.numel():
            continue
        if a_.min() < 0 or max(a_.max(), e_.max()) >= x.shape[dim]:
            continue
        once = a_.sort(dim).values.diff(dim=dim).ne(0).all()
        if once and torch.allclose(x.gather(dim, e_), x.gather(dim, a_), 0, 0, equal_nan=True):
            return True
    return False


def same_strides(e: torch.Tensor, a: torch.Tensor) -> bool:
    """Strides agree where they mean something: not in sizes 0 and 1."""
    if e.numel() == 0:
        return True
    pairs = zip(e.shape, e.stride(), a.stride(), strict=True)
    return all(n == 1 or s == t for n, s, t in pairs)


def _drops(op: OpInfo, sample: SampleInput) -> bool:
    """Whether an attention sample asks for dropout, which is drawn at random."""
    if op.name == "nn.functional.multi_head_attention_forward":
        return sample.kwargs["training"]
    return sample.kwargs.get("dropout_p", 0) > 0


def check(
    op: OpInfo,
    dtype: torch.dtype,
    limit: int | None = None,
    *,
    fallback: str = "error",
    rng: str = "xla",
    gradients: bool = False,
) -> Outcome:
    """Run an operator's samples; samples that `aot_eager` cannot run either do not count.

    With rng="torch", torch's generator must also come out of both runs in the same state.
    """
    ran = 0
    call = _gradients if gradients else _call
    for sample in samples(op, dtype, limit, gradients=gradients):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = call(op, None, sample)
                state = torch.get_rng_state()
            except Exception:
                continue  # eager refuses the sample
            try:
                actual = call(op, "openxla", sample, fallback=fallback, rng=rng)
                same_state = torch.equal(state, torch.get_rng_state())
            except Exception as error:
                try:
                    call(op, "aot_eager", sample)
                except Exception:
                    continue
                text = "".join(traceback.format_exception_only(error))
                return Outcome("fail", ran, f"raised on {sample.summary()}\n{text}")
            try:
                assert same_state or rng == "xla", "the generator's state"
                drawn = op.name in DRAWN or _drops(op, sample)
                exact = op.name not in UNINITIALIZED and (rng == "torch" or not drawn)
                if op.name in TIES and not gradients:
                    actual = settle_ties(sample.input, expected, actual)
                if op.name in UP_TO_SIGN and not gradients:
                    compare(expected, actual, values=False)
                    expected, actual = map(sample.output_process_fn_grad, (expected, actual))
                try:
                    compare(expected, actual, values=exact, strides=not gradients)
                except AssertionError:
                    # Half types are rounded after every step in eager, and less often in XLA.
                    if full_name(op) not in ROUNDING and dtype.itemsize != 2:
                        raise
                    compare(expected, actual, values=False, strides=not gradients)
                    compare_with_exact(op, sample, expected, actual, call)
            except AssertionError as error:
                return Outcome("fail", ran, f"differs on {sample.summary()}\n{error}")
            ran += 1
    return Outcome("pass" if ran else "unsupported", ran)


def main() -> None:
    """Print a line for each operator that fails, and a count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression of names")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--all", action="store_true", help="every sample, not the first few")
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th operator from the i-th")
    parser.add_argument("--gradients", action="store_true", help="gradients, not results")
    parser.add_argument("--fallback", choices=("error", "eager"), default="error")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    index, count = map(int, options.shard.split("/"))
    database = differentiable(dtype) if options.gradients else operators(dtype)
    chosen = [op for op in database if re.search(options.pattern, full_name(op))]
    tally: dict[str, int] = {}
    for op in itertools.islice(chosen, index, None, count):
        limit = None if options.all else options.limit
        outcome = check(op, dtype, limit, fallback=options.fallback, gradients=options.gradients)
        tally[outcome.status] = tally.get(outcome.status, 0) + 1
        if outcome.status != "pass" or options.verbose:
            lines = [line for line in outcome.detail.splitlines() if line.strip()]
            shown = "\n    ".join(line[:300] for line in lines[: 12 if options.verbose else 6])
            print(f"{outcome.status:12} {full_name(op)} {options.dtype}\n    {shown}", flush=True)
    print(tally)
    sys.exit(bool(tally.get("fail")))


if __name__ == "__main__":
    main()
