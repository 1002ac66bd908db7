"""The comparison with eager notices each way in which compiled code may be wrong."""

import pytest
import torch

from tests.compiling import assert_matches_eager, assert_module_matches_eager, compiled, leaf


class Other(torch.autograd.Function):
    """The identity, with another gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 1.01


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x + 1.001, "not close"),
        (lambda x: (x + 1).double(), "dtype"),
        (lambda x: (x + 1)[:1], "shape"),
        (lambda x: (x + 1).t().contiguous().t(), "stride"),
        (lambda x: (x + 1, x), "structure"),
        (lambda x: x.detach() + 1, "number"),
        (lambda x: Other.apply(x) + 1, "not close"),
    ],
    ids=["value", "dtype", "shape", "strides", "count", "no gradient", "gradient"],
)
def test_wrong_results_are_noticed(wrong, message):
    run, x = compiled(lambda x: x + 1), leaf(3, 4)
    assert_matches_eager(run, x)
    with pytest.raises(AssertionError, match=message):
        assert_matches_eager(run, x, eager=wrong)


def test_nan_is_equal_only_on_request():
    run, x = compiled(lambda x: x * torch.nan), torch.ones(3)
    assert_matches_eager(run, x, equal_nan=True)
    with pytest.raises(AssertionError, match="not close"):
        assert_matches_eager(run, x)


def test_other_changes_of_an_argument_are_noticed():
    run, x = compiled(lambda x: x.add_(1).sum()), torch.zeros(3)
    assert_matches_eager(run, x, calls=2)
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(AssertionError, match="not close"):
        assert_matches_eager(run, x, eager=lambda x: x.sum() + 3)


def test_strides_of_gradients_are_compared_on_request():
    class Transposed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, grad):
            return grad.t().contiguous().t()

    run, x = compiled(lambda x: x + 1), leaf(3, 4)
    assert_matches_eager(run, x, gradient_strides=True)
    assert_matches_eager(run, x, eager=Transposed.apply)
    with pytest.raises(AssertionError, match="stride"):
        assert_matches_eager(run, x, eager=Transposed.apply, gradient_strides=True)


def test_other_gradients_and_buffers_of_a_module_are_noticed():
    class Wrong(torch.nn.Module):
        def __init__(self, what):
            super().__init__()
            self.what = what
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            compiling = torch.compiler.is_compiling()
            if not (compiling and self.what == "buffer"):
                self.calls.add_(1)
            weight = self.weight.detach() if compiling and self.what == "gradient" else self.weight
            return x * weight

    assert_module_matches_eager(Wrong(None), leaf(3))
    for what in ("buffer", "gradient"):
        torch._dynamo.reset()
        with pytest.raises(AssertionError):
            assert_module_matches_eager(Wrong(what), leaf(3))
