"""Memory and types across the cuts of a graph: views, and results other than promised."""

import pytest
import torch

from tests.compiling import assert_matches_eager, compiled_anew
from tests.host_operators import host_sine, liar, transposed, two
from xla_dynamo import ExecutionError


def test_views_of_one_memory_across_the_cut():
    def f(x):
        y = x * 2
        z = host_sine(y)
        return y, y.view(-1), z, z.t()

    with torch.no_grad():
        y, flat, z, t = compiled_anew(f)(torch.randn(3, 4))
    assert y.data_ptr() == flat.data_ptr()
    assert z.data_ptr() == t.data_ptr()


def test_strides_other_than_promised():
    def f(x):
        return transposed(x * 2) + torch.arange(16.0).view(4, 4)

    # The sum's strides are the promised ones.
    assert_matches_eager(compiled_anew(f), torch.randn(4, 4), calls=2, strides=False)


def test_a_shape_other_than_promised():
    with pytest.raises(
        ExecutionError, match=r"liar.*promised .*\(4,\)\n  at .*test_fallback_memory"
    ):
        compiled_anew(lambda x: liar(x * 2) + 1)(torch.randn(4))


def memories(tensors):
    """Which of some tensors share memory, as the number of the first that each one is with."""
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    return [storages.index(s) for s in storages]


def first_and_view(x):
    a, b = two(x * 2)
    return a, a.view(-1), b


def base_and_pieces(x):
    y = x * 2
    a, b = y.split(4)
    return y, a, b, host_sine(y) * 3


def pieces_of_a_result(x):
    a, b = host_sine(x * 2).split(4)
    return a, b, b.t()


def slices_at_a_number(x):
    y = x * 2
    n = (y > 0).sum().item()
    torch._check(n <= 8)
    return y, y[:n], y[n:]


@pytest.mark.parametrize(
    "fn", [first_and_view, base_and_pieces, pieces_of_a_result, slices_at_a_number]
)
def test_memory_is_shared_across_cuts(fn):
    x = torch.randn(8)
    with torch.no_grad():
        actual, expected = compiled_anew(fn)(x), fn(x)
    torch.testing.assert_close(actual, expected)
    assert memories(actual) == memories(expected)


def test_as_strided_across_a_cut():
    def of_a_view(x):
        y = x * 2
        w = y[2:]
        return host_sine(w)[:2] * w.as_strided((2,), (1,), 1)

    def of_an_input(x):
        w = x[2:]
        return host_sine(w)[:2] * w.as_strided((2,), (1,), 1)

    for fn in (of_a_view, of_an_input):
        with torch.no_grad():
            assert_matches_eager(compiled_anew(fn), torch.arange(8.0), calls=2)


def test_saved_strides_other_than_promised():
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)

    def f(x):
        return host_sine(transposed(w * x)) * torch.arange(16.0).view(4, 4)

    (actual,) = torch.autograd.grad(compiled_anew(f)(x).sum(), w)
    (expected,) = torch.autograd.grad(f(x).sum(), w)
    torch.testing.assert_close(actual, expected)


def test_a_dtype_other_than_promised():
    @torch.library.custom_op("xla_dynamo_tests::sometimes_int", mutates_args=())
    def sometimes_int(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        return y.int() if x.sum() > 3 else y

    @sometimes_int.register_fake
    def _(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    run = compiled_anew(lambda x: sometimes_int(x * 1) + 1)
    assert run(torch.tensor([1.0, 1, -1])).tolist() == [2, 2]
    with pytest.raises(ExecutionError, match=r"torch.int32"):
        run(torch.tensor([3.0, 3, -1]))
