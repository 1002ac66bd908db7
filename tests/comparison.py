"""How results are compared with eager's: structure, dtypes, strides, values."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def compare(
    expected: Any, actual: Any, *, values: bool, strides: bool = True, **tolerance: Any
) -> None:
    """Raise AssertionError unless two results agree in structure, types, strides and values.

    `tolerance` is as for `torch.testing.assert_close`; unless told otherwise, NaN equals NaN.
    """
    tolerance = {"equal_nan": True, "check_stride": False, **tolerance}
    flat_e, spec_e = pytree.tree_flatten(expected)
    flat_a, spec_a = pytree.tree_flatten(actual)
    assert len(flat_e) == len(flat_a), f"structure: {spec_e} against {spec_a}"
    for e, a in zip(flat_e, flat_a, strict=True):
        if not isinstance(e, torch.Tensor):
            assert type(e) is type(a), f"type: {type(e)} against {type(a)}"
            assert not values or e == a or (e != e and a != a), f"number: {e} against {a}"
            continue
        assert isinstance(a, torch.Tensor), f"type: {type(e)} against {type(a)}"
        assert e.dtype == a.dtype, f"dtype: eager {e.dtype}, compiled {a.dtype}"
        assert e.shape == a.shape, f"shape: eager {e.shape}, compiled {a.shape}"
        assert e.layout == a.layout, f"layout: eager {e.layout}, compiled {a.layout}"
        assert not strides or e.layout is not torch.strided or same_strides(e, a), (
            f"stride: eager {e.stride()}, compiled {a.stride()}"
        )
        if values:
            if e.layout is torch.strided:
                e, a = (t.resolve_conj().resolve_neg() for t in (e, a))
            torch.testing.assert_close(a, e, **tolerance)


def compare_with_exact(exact: Any, expected: Any, actual: Any, factor: float = 2) -> None:
    """Raise AssertionError if a result is `factor` times as far from the exact one as eager's is.

    Besides, every element may be off by four units in the last place of the largest one; of half
    types by one, since XLA rounds them less often than eager does.
    """
    leaves = [pytree.tree_leaves(r) for r in (exact, expected, actual)]
    for x, e, a in zip(*leaves, strict=True):
        if not isinstance(x, torch.Tensor) or not x.numel():
            continue
        alike = a.isnan() & e.isnan()
        ours = _distance(a, x).masked_fill(alike, 0).max()
        eagers = _distance(e, x).nan_to_num(0).max()  # NaN where the truth is a number
        whole = not (a.is_floating_point() or a.is_complex())
        scale = x[x.isfinite()].abs().amax() if x.isfinite().any() else 0
        ulps = 0 if whole else (1 if a.element_size() == 2 else 4) * torch.finfo(a.dtype).eps
        assert ours <= factor * eagers + ulps * scale, f"error {ours:.1e}, eager's {eagers:.1e}"


def whole_or_in_pieces(run: Callable[..., Any], **options: Any) -> tuple[str, Any]:
    """What became of a program, and its result: `run(backend=…, fullgraph=…, options=…)` runs it.

    "pass": compiled as one graph. "breaks": in pieces, since Dynamo cannot trace it as one graph,
    which `aot_eager` shows. "unsupported", and no result: `aot_eager` cannot run it even so.

    Raises:
        Exception: what compiling or running raises where `aot_eager` gets through.
    """
    try:
        return "pass", run(backend="openxla", fullgraph=True, options=options)
    except Exception:
        if _runs(run, fullgraph=True):
            raise
    if not _runs(run, fullgraph=False):
        return "unsupported", None
    options = {key: value for key, value in options.items() if key != "fallback"}
    return "breaks", run(backend="openxla", fullgraph=False, options=options)


def _runs(run: Callable[..., Any], **how: Any) -> bool:
    """Whether torch's own part of the road, without a compiler, gets through."""
    try:
        run(backend="aot_eager", **how)
    except Exception:
        return False
    return True


def copied(x: torch.Tensor) -> torch.Tensor:
    """A leaf that keeps the strides: what a sample is about may be just those."""
    given = x.detach()
    if x.layout is torch.strided and torch._debug_has_internal_overlap(x) == 0:
        given = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
        given.copy_(x.detach())
    return given.requires_grad_(x.requires_grad)


def widened(x: Any) -> Any:
    """A tensor of floating-point or complex numbers in double precision; all else as it is."""
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    return wide.detach().requires_grad_(x.requires_grad)


def drawn_like(x: torch.Tensor) -> torch.Tensor:
    """Random numbers in the shape of x, the same ones (rounded) for every dtype."""
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return torch.randn(x.shape, dtype=dtype).to(x.dtype)


def _distance(t: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far from the exact result; 0 where both are the same infinity or NaN."""
    t = t.to(exact.dtype)
    return (t - exact).abs().masked_fill((t == exact) | (t.isnan() & exact.isnan()), 0)


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


def parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The plain tensors of a tensor, by their path."""
    if not is_traceable_wrapper_subclass(tensor):
        return {"": tensor}
    names, _ = tensor.__tensor_flatten__()
    below = {name: parts(getattr(tensor, name)) for name in names}
    return {f".{name}{rest}": t for name in names for rest, t in below[name].items()}


def compare_wrappers(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise AssertionError unless two tensors agree, and the tensors inside of wrappers.

    Compared are types, layouts, dtypes, sizes, strides and values.
    """
    assert type(actual) is type(expected)
    assert actual.layout == expected.layout
    assert actual.dtype == expected.dtype
    assert actual.requires_grad == expected.requires_grad
    if not expected.is_nested:  # whose sizes have a symbol of their own, unless offsets are shared
        assert actual.shape == expected.shape
        assert actual.stride() == expected.stride()
    ours, eagers = parts(actual), parts(expected)
    # torch caches the longest and shortest length at the tensor, once it has computed them.
    computed = {"._max_seqlen_tensor", "._min_seqlen_tensor"}
    assert ours.keys() - computed == eagers.keys() - computed
    for path in ours.keys() & eagers.keys():
        torch.testing.assert_close(ours[path], eagers[path], check_stride=True)
