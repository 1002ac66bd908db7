"""`torch.cond`: values and gradients of eager's, compiled as one program."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import cond, while_loop

from tests.compiling import assert_matches_eager, compiled, compiled_whole, leaf
from tests.host_operators import host_sine


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("make", [torch.randn, leaf])
def test_cond(sign, make):
    assert_matches_eager(
        compiled_whole(
            lambda x, s: cond(
                s > 0, lambda x: (x.sin(), x.t() @ x), lambda x: (x * 2, x.t() @ -x), [x]
            )
        ),
        make(4, 3),
        torch.tensor(sign),
    )


def test_cond_of_one_element_and_of_nan():
    f = lambda x: cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))  # noqa: E731
    assert_matches_eager(compiled_whole(f), torch.tensor([1.0]))
    assert_matches_eager(compiled_whole(f), torch.tensor([float("nan")]), equal_nan=True)


def test_cond_takes_parameters_from_outside():
    layer, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    f = lambda x: cond(x.sum() > 0, lambda x: layer(x), lambda x: other(x), (x,))  # noqa: E731
    g = compiled_whole(f)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert_matches_eager(g, x)
        expected, actual = (
            torch.autograd.grad(h(x).sum(), [*layer.parameters(), *other.parameters()])
            for h in (f, g)
        )
        torch.testing.assert_close(actual, expected)


def test_cond_in_cond_in_loop():
    def inner(x):
        return cond(x.sum() > 0, lambda x: x - 1.5, lambda x: x + 1.0, (x,))

    def body(i, x):
        return i + 1, cond(i % 2 == 0, inner, lambda x: x * 1.25, (x,))

    f = lambda x: while_loop(lambda i, x: i < 7, body, (torch.tensor(0), x))  # noqa: E731
    assert_matches_eager(compiled_whole(f), torch.randn(5))


def test_cond_on_a_size_is_decided_when_compiling():
    def f(x):
        return cond(x.shape[0] > 3, lambda x: x.sin(), lambda x: x.cos(), (x,))

    g = compiled_whole(f, dynamic=True)
    for n in (2, 3, 4, 9):
        x = torch.randn(n, 2)
        assert_matches_eager(g, x)


def test_cond_of_dynamic_sizes():
    f = lambda x: cond(x.sum() > 0, lambda x: x.cumsum(0), lambda x: x * 2, (x,))  # noqa: E731
    g = compiled_whole(f, dynamic=True)
    for n in (2, 5, 9):
        x = torch.randn(n, 3)
        assert_matches_eager(g, x)


def test_draws_in_a_branch():
    f = lambda x: cond(x.sum() > 0, torch.rand_like, lambda x: x * 1, (x,))  # noqa: E731
    g = compiled_whole(f)
    first, second = g(torch.ones(100)), g(torch.ones(100))
    assert not torch.equal(first, second)
    assert 0.3 < first.mean() < 0.7
    torch.testing.assert_close(g(-torch.ones(100)), -torch.ones(100))
    torch.manual_seed(3)
    expected = f(torch.ones(100))
    torch.manual_seed(3)
    assert torch.equal(compiled_whole(f, rng="torch")(torch.ones(100)), expected)


def test_an_operator_without_a_rule_in_a_branch():
    def f(x):
        return cond(x.sum() > 0, host_sine, lambda x: x * 1, (x.exp(),)) + 1

    assert_matches_eager(compiled(f), torch.ones(2, 2))


def test_a_check_of_values_in_a_branch_is_not_lost():
    def f(x):
        factor = torch.linalg.cholesky_ex(x, check_errors=True)[0]
        return (factor + 1).contiguous()

    g = lambda x: cond(x.sum() > 0, f, lambda x: x * 1, (x,))  # noqa: E731
    assert_matches_eager(compiled(g), torch.eye(3))
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="not positive-definite"):
        compiled(g)(bad)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="raises errors that depend on values"):
        compiled_whole(g)(bad)


def test_an_error_inside_names_the_line():
    def f(x):
        def branch(x):
            return host_sine(x)  # the line to name

        return cond(x.sum() > 0, branch, lambda x: x * 1, (x,))

    with pytest.raises(BackendCompilerFailed, match="host_sine") as raised:
        compiled_whole(f)(torch.ones(3, 1))
    assert "# the line to name" in str(raised.value)
