"""A function compiled on the GPU, compared with eager on the same GPU."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

Check = tuple[str, Callable[[], dict | None]]
# As torch's own tests of Inductor have them.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}


def compiled(f: Callable, backend: Any = None, **how: Any) -> Callable:
    """`f` compiled by us, or by another backend; entry points may not be installed here."""
    import xla_dynamo

    torch._dynamo.reset()
    return torch.compile(f, backend=backend or xla_dynamo.openxla, fullgraph=True, **how)


def wait(device: str) -> None:
    """Wait until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def assert_same(actual: Any, expected: Any, factor: float = 1) -> None:
    """Raise AssertionError unless results agree in structure, dtypes, strides and values."""
    flat, wanted = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(flat) == len(wanted), f"{len(flat)} results, and eager has {len(wanted)}"
    for a, e in zip(flat, wanted, strict=True):
        assert a.device == e.device, f"on {a.device}, and eager's on {e.device}"
        rtol, atol = TOLERANCES.get(e.dtype, (0, 0))
        close = {"rtol": factor * rtol, "atol": factor * atol, "equal_nan": True}
        torch.testing.assert_close(a, e, check_stride=True, **close)


def against_eager(f: Callable, *args: Any, factor: float = 1, grad: bool = False) -> dict:
    """Compare a compiled function with eager, and with `grad` its gradients in float arguments."""

    def run(call: Callable) -> Any:
        given = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        leaves = [a.requires_grad_() for a in given if grad and is_float(a)]
        result = call(*given)
        if not leaves:
            return result
        weights = torch.linspace(-1, 1, result.numel(), device=result.device, dtype=result.dtype)
        return result.detach(), *torch.autograd.grad(result, leaves, weights.view_as(result))

    with contextlib.nullcontext() if grad else torch.no_grad():
        actual, expected = run(compiled(f)), run(f)
        if not any(is_float(a) and a.element_size() == 2 for a in args):
            assert_same(actual, expected, factor)
            return {}
        # Eager rounds half types after every operator, and a compiler less often.
        args = tuple(a.double() if is_float(a) else a for a in args)
        assert_as_near(actual, expected, run(f))
    return {}


def assert_as_near(actual: Any, expected: Any, exact: Any) -> None:
    """Raise AssertionError if results are twice as far from the exact ones as eager's are.

    Besides, each element may be off by one unit in the last place of the largest one.
    """
    leaves = (pytree.tree_leaves(result) for result in (actual, expected, exact))
    for a, e, x in zip(*leaves, strict=True):
        assert (a.device, a.dtype, a.shape) == (e.device, e.dtype, e.shape)
        if not is_float(a):
            continue
        assert torch.equal(a.isnan(), e.isnan()), "NaN where eager has none, or none where it has"
        ours, eagers = ((t.double() - x).nan_to_num().abs().max() for t in (a, e))
        unit = torch.finfo(a.dtype).eps * x.nan_to_num().abs().max()
        assert ours <= 2 * eagers + unit, f"the error is {ours:.1e}, and eager's {eagers:.1e}"


def is_float(x: Any) -> bool:
    """Whether something is a tensor that may need a gradient."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()
