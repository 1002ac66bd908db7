"""Loops of PyTorch/XLA's `scan` and `scan_layers` on lazy tensors, against eager torch."""

import functools

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch.nn import functional as F

import xla_dynamo
from xla_dynamo.torch_private import pytree
from xla_dynamo.torch_xla.forms.scan import scan, split, tree_flatten_none
from xla_dynamo.torch_xla.forms.scan_functions import Scan, value_and_grad_partitioned
from xla_dynamo.torch_xla.forms.scan_rows import Builder, dynamic_slice, dynamic_update_slice
from xla_dynamo.xla_builder import xla_computation_as_func

WIDTH = 16


def one_by_one(fn, init, xs):
    """What a loop does, in eager."""
    length = len(pytree.tree_leaves(xs)[0])
    carry, made = init, []
    for i in range(length):
        carry, y = fn(carry, pytree.tree_map(lambda x, i=i: x[i], xs))
        made.append(y)
    return carry, pytree.tree_map(lambda *ys: None if ys[0] is None else torch.stack(ys), *made)


def on(device, tree):
    """A tree's tensors on a device, as leaves of autograd."""
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().to(device).requires_grad_(t.requires_grad), tree
    )


def results_and_gradients(run, init, xs, others=()):
    """What a loop gives, and the gradients of the sum of squares of it all."""
    results = run(init, xs)
    leaves = [t for t in pytree.tree_leaves(results) if t is not None]
    sum(t.square().sum() for t in leaves if t.requires_grad).backward()
    every = [t for t in pytree.tree_leaves((init, xs, list(others))) if t is not None]
    given = [t for t in every if t.requires_grad]
    return on("cpu", (results, [t.grad for t in given]))


def assert_as_one_by_one(fn, init, xs, others=(), **how):
    device = xla_dynamo.device()
    bound = (lambda o: functools.partial(fn, *o)) if others else lambda o: fn
    here = on("cpu", others)
    expected = results_and_gradients(
        functools.partial(one_by_one, bound(here)), *on("cpu", (init, xs)), here
    )
    there = on(device, others)
    found = results_and_gradients(
        lambda i, x: scan(bound(there), i, x, **how), *on(device, (init, xs)), there
    )
    torch.testing.assert_close(found, expected)


def leaf(*size, dtype=torch.float32):
    return torch.randn(*size, dtype=dtype, requires_grad=True)


FUNCTIONS = {
    "a cumulative sum": (lambda c, x: (c + x, c * x), leaf(3), leaf(4, 3)),
    "no result": (lambda c, x: (torch.cos(c) + x, None), leaf(3), leaf(4, 3)),
    "an empty result": (lambda c, x: (torch.cos(c) + x, ()), leaf(3), leaf(4, 3)),
    "trees": (
        lambda c, x: (
            {"a": c["a"] @ x[0], "b": (c["b"][0] + 1, None)},
            [torch.sigmoid(c["a"]), None, {"n": x[1] * 2}],
        ),
        {"a": leaf(2, 3), "b": (torch.zeros((), dtype=torch.int64), None)},
        (leaf(4, 3, 3), leaf(4, 2)),
    ),
    "what it is given": (lambda c, x: (c, x), leaf(3), leaf(4, 3)),
    "what it is given, the other way round": (
        lambda c, x: ((c[1], c[0]), (x, c[0] * x)),
        (leaf(3), leaf(3)),
        leaf(4, 3),
    ),
    "views of what it is given": (
        lambda c, x: (torch.sin(c.t() @ x.t()), x[0].expand(2, 3)),
        leaf(3, 3),
        leaf(4, 3, 3),
    ),
    "one result twice": (lambda c, x: (2 * (r := torch.sin(c * x)), (r, r)), leaf(3), leaf(4, 3)),
    "rows without gradients": (lambda c, x: (c * x, c + x), leaf(3), torch.randn(4, 3)),
    "a first value without gradients": (lambda c, x: (c * x, c + x), torch.ones(3), leaf(4, 3)),
    "several dtypes": (
        lambda c, x: (torch.sin(c), (torch.sin(x[0]), x[1] + 1)),
        leaf(3, dtype=torch.float64),
        (leaf(4, 3), torch.arange(4)),
    ),
    "what it makes": (
        lambda c, x: (c + torch.tensor([1.0, 2.0], device=c.device), x.clone().add_(42)),
        leaf(2),
        leaf(3, 2),
    ),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("is_fn_pure", [False, True], ids=["by Dynamo", "pure"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name, is_fn_pure):
    fn, init, xs = FUNCTIONS[name]
    assert_as_one_by_one(fn, init, xs, is_fn_pure=is_fn_pure)


def test_nothing_has_a_gradient():
    device = xla_dynamo.device()
    carry, ys = scan(
        lambda c, x: (c + x, c), torch.zeros(2, device=device), torch.ones(3, 2).to(device)
    )
    assert not carry.requires_grad
    torch.testing.assert_close(
        (carry.cpu(), ys.cpu()), (torch.full((2,), 3.0), torch.arange(3.0)[:, None].expand(3, 2))
    )


def test_what_is_found_outside_has_a_gradient():
    """A weight that all rows share, read twice, and the first value itself."""
    fn = lambda w, b, c, x: (torch.tanh(c @ w) * x, (c @ w) + b)  # noqa: E731
    assert_as_one_by_one(fn, leaf(2, 3), leaf(4, 2, 3), (leaf(3, 3), leaf(3)))


def test_what_dynamo_cannot_trace_is_called_once():
    calls = []

    def fn(carry, x):
        calls.append(print(end=""))  # a graph break
        return carry * x, carry + x

    assert_as_one_by_one(fn, leaf(3), leaf(4, 3))
    assert len(calls) == 4 + 2  # in eager, by the forward and the backward of one trace


@pytest.mark.parametrize("is_fn_pure", [False, True])
def test_writes_are_errors(is_fn_pure):
    device = xla_dynamo.device()
    total = torch.zeros(3, device=device)

    def into_rows(carry, x):
        return carry + x.add_(1), None

    def outside(carry, x):
        total.add_(x)
        return carry + total, None

    for fn in (into_rows, outside):
        with pytest.raises(RuntimeError, match="in-place operation"):
            scan(
                fn,
                torch.zeros(3, device=device),
                torch.ones(2, 3, device=device),
                is_fn_pure=is_fn_pure and fn is into_rows,
            )
    assert total.tolist() == [0, 0, 0]


def test_wrong_calls():
    x = torch.ones(2, 3, device=xla_dynamo.device())
    with pytest.raises(ValueError, match="takes a function"):
        scan(3, x[0], x)
    with pytest.raises(ValueError, match=r"first size.*\[2, 1\]"):
        scan(lambda c, x: (c, c), x[0], (x, x[:1]))
    with pytest.raises(ValueError, match="xs is empty"):
        scan(lambda c, x: (c, c), x[0], ())
    with pytest.raises(ValueError, match="keep the form of what it carries"):
        scan(lambda c, x: (c[:1], c), x[0], x)


def test_partition_functions():
    """What the backward computes again is not handed over."""

    def fn(carry, x):
        for _ in range(4):
            carry, x = torch.sin(carry), torch.sin(x)
        return carry, x

    handed = {}
    for partition_fn in (default_partition, min_cut_rematerialization_partition):
        assert_as_one_by_one(fn, leaf(3), leaf(5, 3), partition_fn=partition_fn)
        x = leaf(5, 3).to(xla_dynamo.device()).detach().requires_grad_()
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
            scan(fn, x[0].detach(), x, partition_fn=partition_fn)
        handed[partition_fn] = sum(t.shape[:1] == (5,) and t is not x for t in saved)
        assert any(t is x for t in saved), "rows are saved as they are"
    assert handed[default_partition] > handed[min_cut_rematerialization_partition]


# --- random numbers -------------------------------------------------------------------------------


def test_each_row_and_each_step_draws_anew_and_the_backward_draws_nothing():
    device = xla_dynamo.device()
    rows, size, p = 6, 4000, 0.3

    def fn(carry, x):
        return carry + 0, F.dropout(x, p)

    def step():
        x = torch.ones(rows, size, device=device, requires_grad=True)
        _, ys = scan(fn, torch.zeros((), device=device), x)
        ys.sum().backward()
        return ys.detach().cpu(), x.grad.cpu()

    xla_dynamo.manual_seed(3)
    (first, gradient), (second, _) = step(), step()
    torch.testing.assert_close(gradient, first, rtol=0, atol=0)
    kept = first != 0
    torch.testing.assert_close(first.unique(), torch.tensor([0, 1 / (1 - p)]))
    deviation = (p * (1 - p) / size) ** 0.5
    assert all(abs(row.mean() - (1 - p)) < 5 * deviation for row in kept.float())
    every = torch.cat([kept, second != 0]).float()
    together = torch.corrcoef(every) - torch.eye(2 * rows)
    assert together.abs().max() < 5 / size**0.5
    xla_dynamo.manual_seed(3)
    torch.testing.assert_close(step()[0], first, rtol=0, atol=0)


# --- names of the parts ---------------------------------------------------------------------------


def test_split_and_flat_trees():
    assert split([1, 2, 3, 4, 5], 2, 2) == ([1, 2], [3, 4], [5])
    assert split((1, 2), 2) == ((1, 2), ())
    flat, make = tree_flatten_none(((1, 2), (None, 3), None))
    assert flat == [1, 2, 3]
    assert make([4, 5, 6]) == ((4, 5), (None, 6), None)


def test_forward_and_backward_of_a_row():
    device = xla_dynamo.device()
    init, xs = leaf(2, 2).to(device), leaf(3, 2, 2).to(device)
    parts = value_and_grad_partitioned(lambda c, x: (c @ x, c @ x), init, xs)
    forward, alias_input, backward = parts
    carry, (y, own) = forward(init, xs[0])
    torch.testing.assert_close((carry.cpu(), y.cpu()), 2 * ((init @ xs[0]).cpu(),))
    one = torch.ones(2, 2, device=device)
    of_carry, of_x = backward(one, (one, alias_input(own, xs[0])))
    torch.testing.assert_close(of_carry.cpu(), (2 * one @ xs[0].t()).cpu())
    torch.testing.assert_close(of_x.cpu(), (init.t() @ (2 * one)).cpu())
    init, xs = (t.detach().requires_grad_() for t in (init, xs))
    results_and_gradients(lambda i, x: Scan.apply(*parts, i, x), init, xs)
    found = init.grad.cpu(), xs.grad.cpu()
    init.grad = xs.grad = None
    results_and_gradients(lambda i, x: scan(lambda c, x: (c @ x, c @ x), i, x), init, xs)
    torch.testing.assert_close(found, (init.grad.cpu(), xs.grad.cpu()))


def test_rows_in_computations():
    """A row of a stack, doubled, in the place of another one."""
    device = xla_dynamo.device()
    stack, first, second = torch.randn(3, 2, 4), torch.tensor(0), torch.tensor(2)
    builder = Builder("rows")
    numbers = [builder.add_param(t.to(device)) for t in (stack, first, second)]
    assert numbers == [0, 1, 2]
    assert builder.num_params() == 3
    rows, at, to = builder.params()
    row = dynamic_slice(rows, at)
    computation = dynamic_update_slice(rows, row + row, to).build("rows")
    (found,) = xla_computation_as_func(computation)(list(builder.param_tensors()))
    expected = stack.clone()
    expected[2] = 2 * stack[0]
    torch.testing.assert_close(found.cpu(), expected)
