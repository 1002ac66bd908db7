"""torch's database of modules through the backend: outputs, gradients and buffers.

As a command: `python -m tests.module_sweep 'Norm' --dtype float64 --all`.
"""

import argparse
import collections
import copy
import functools
import re
import sys
import traceback
import warnings
from typing import Any

import torch
from torch.testing._internal.common_modules import FunctionInput, ModuleInfo, ModuleInput, module_db
from torch.utils import _pytree as pytree

from tests.comparison import (
    compare,
    compare_with_exact,
    copied,
    drawn_like,
    whole_or_in_pieces,
    widened,
)

# They draw random numbers in training: compared with those of torch's generator.
DRAWN = frozenset(
    {
        "nn.FractionalMaxPool2d", "nn.FractionalMaxPool3d", "nn.MultiheadAttention",
        "nn.Transformer", "nn.TransformerDecoderLayer", "nn.TransformerEncoder",
        "nn.TransformerEncoderLayer",
    }
)  # fmt: skip
# Sums in another order than eager's: as near to a float64 run as eager is.
ROUNDING = frozenset(
    {
        "nn.Conv3d", "nn.ConvTranspose3d", "nn.LazyConv3d", "nn.LazyConvTranspose3d",
        "nn.MultiheadAttention", "nn.TransformerEncoder", "nn.TransformerEncoderLayer",
    }
)  # fmt: skip
# Large scores, by which a gradient's rounding is multiplied: up to 5 times eager's error, or a
# fifth of it, in single ones. How many times eager's error theirs may be.
ILL_CONDITIONED = {"nn.MultiheadAttention": 8}
# Torch's decomposition, which no backend can avoid, gives another shape than its kernel where the
# input is a vector and nothing is reduced: aot_eager is the reference.
OTHER_IN_AOT = frozenset({"nn.MultiLabelMarginLoss"})


def cases(info: ModuleInfo, dtype: torch.dtype, *, training: bool) -> list[ModuleInput]:
    """The module's sample inputs, with gradients wanted."""
    torch.manual_seed(0)
    return list(
        info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
    )


def run(
    module: torch.nn.Module, given: FunctionInput, *, backend: str | None, **how: Any
) -> tuple[Any, Any, Any]:
    """Outputs, gradients in parameters and inputs, and buffers, of copies of what is given."""
    module = copy.deepcopy(module)
    leaves, spec = pytree.tree_flatten((given.args, given.kwargs))
    leaves = [copied(x) if isinstance(x, torch.Tensor) else x for x in leaves]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    torch._dynamo.reset()
    call = module if backend is None else torch.compile(module, backend=backend, **how)
    torch.manual_seed(1)
    outputs = call(*args, **kwargs)
    flat = [o for o in pytree.tree_leaves(outputs) if isinstance(o, torch.Tensor)]
    flat = [o for o in flat if o.requires_grad]
    wanted = [p for p in module.parameters() if p.requires_grad]
    wanted += [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.manual_seed(2)
    weights = [drawn_like(o) for o in flat]
    grads = torch.autograd.grad(flat, wanted, weights, allow_unused=True) if flat else ()
    return pytree.tree_map(_detached, outputs), grads, dict(module.named_buffers())


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _widened(given: FunctionInput) -> FunctionInput:
    return FunctionInput(
        *pytree.tree_map(widened, given.args), **pytree.tree_map(widened, given.kwargs)
    )


def check(
    info: ModuleInfo,
    dtype: torch.dtype,
    limit: int | None = None,
    *,
    training: bool = True,
    fallback: str = "error",
) -> tuple[str, str]:
    """What became of a module's samples, as in `op_sweep.Outcome`; and why, if it is "fail"."""
    seen = set()
    for case in cases(info, dtype, training=training)[:limit]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status, why = _check_case(info, case, dtype, training, fallback)
        if status == "fail":
            return status, why
        seen.add(status)
    return next((s for s in ("pass", "breaks") if s in seen), "unsupported"), ""


def _check_case(
    info: ModuleInfo, case: ModuleInput, dtype: torch.dtype, training: bool, fallback: str
) -> tuple[str, str]:
    constructor, given = case.constructor_input, case.forward_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(training)
    if given is None:
        return "unsupported", ""
    try:
        if info.is_lazy:
            module(*given.args, **given.kwargs)
        reference = "aot_eager" if info.name in OTHER_IN_AOT else None
        expected = run(module, given, backend=reference)
    except Exception:
        return "unsupported", ""
    rng = "torch" if info.name in DRAWN else "xla"
    what = f"{constructor.args} {constructor.kwargs}"
    try:
        how = functools.partial(run, module, given)
        status, actual = whole_or_in_pieces(how, fallback=fallback, rng=rng)
    except Exception as error:
        return "fail", what + "".join(traceback.format_exception_only(error))
    if status == "unsupported":
        return status, ""
    try:
        compare(expected[0], actual[0], values=False)
        try:
            compare(expected, actual, values=True, strides=False)
        except AssertionError:
            if info.name not in ROUNDING:
                raise
            exact = run(copy.deepcopy(module).double(), _widened(given), backend=None)
            factor = ILL_CONDITIONED.get(info.name, 2)
            compare_with_exact(exact, expected, actual, factor)
    except AssertionError as error:
        return "fail", f"{what}\n{error}"
    return status, ""


def main() -> None:
    """Print a line for each module that does not pass, and a count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression of names")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--all", action="store_true", help="every sample, not the first")
    parser.add_argument("--fallback", choices=("error", "eager"), default="error")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    tally: collections.Counter[str] = collections.Counter()
    for info in module_db:
        if not re.search(options.pattern, info.name):
            continue
        for training in (True, False) if info.train_and_eval_differ else (True,):
            limit = None if options.all else 1
            status, why = check(info, dtype, limit, training=training, fallback=options.fallback)
            tally[status] += 1
            if status != "pass":
                print(f"{status:12} {info.name} training={training} {why[:600]}", flush=True)
    print(dict(tally))
    sys.exit(bool(tally["fail"]))


if __name__ == "__main__":
    main()
