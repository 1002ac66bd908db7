"""Programs of dynamic sizes: one module for all, equal to eager at each; every one starts cold."""

import re

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.nn import functional

import xla_dynamo
from tests.stablehlo.exporting import Function, exported
from xla_dynamo.stablehlo import NumpyGraphModule

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
BATCH, LENGTH = Dim("batch"), Dim("length")


def _assert_equal_at(f, calls, shapes):
    module = exported(Function(f), *calls[0], dynamic_shapes=(shapes,))
    assert "tensor<?x" in module.get_stablehlo_text()
    for args in calls:
        torch.testing.assert_close(module(*args), f(*args), rtol=1e-5, atol=1e-5)
    return module


def pieces(x):
    return x.mean(0), x[1:], x[:, ::2], x.flatten(), x / x.shape[0], x.shape[0] * 2


def moved(x):
    return functional.pad(x, (1, 2, 0, 1)), x.flip(0), x.tril(), x.repeat(2, 1), x.unfold(1, 4, 2)


def made(x):
    return torch.arange(x.shape[0]) + 1, torch.ones(x.shape[0], 3), x.new_full(x.shape, 7)


def ordered(x):
    return tuple(x.topk(3)), tuple(x.sort(0)), x.argmax(0), x.cumsum(0), torch.cat([x, x[1:]])


@pytest.mark.parametrize(("f", "least"), [(pieces, 3), (moved, 1), (made, 1), (ordered, 3)])
@pytest.mark.slow
def test_one_dynamic_size(f, least):
    calls = [(torch.randn(n, 8),) for n in (5, least, 40)]
    _assert_equal_at(f, calls, ({0: Dim("batch", min=least)},))


@pytest.mark.slow
def test_two_dynamic_sizes():
    def f(x, table):
        scores = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return scores, table[: x.shape[1]] + x, torch.bmm(x, x.mT).softmax(-1)

    table = torch.randn(64, 8)
    calls = [(torch.randn(b, n, 8), table) for b, n in ((2, 5), (1, 7), (3, 1), (1, 1), (4, 64))]
    module = _assert_equal_at(f, calls, ({0: BATCH, 1: Dim("length", max=64)}, None))
    signature = "(float32[batch, length, 8], float32[64, 8]) -> "
    assert str(module.signature).startswith(signature)
    assert str(module.signature).endswith("where batch from 1, length from 1 to 64")


def test_what_depends_on_two_sizes_of_small_ranges():
    """At (5, 4), (3, 2) and (4, 3), the difference of the sizes is always 1."""

    def f(x):
        return x * (x.shape[0] - x.shape[1])

    calls = [(torch.randn(m, n) + 3,) for m, n in ((5, 4), (3, 2), (2, 4), (5, 2))]
    _assert_equal_at(f, calls, ({0: Dim("m", min=2, max=5), 1: Dim("n", min=2, max=4)},))


def test_sizes_that_follow_from_others():
    def f(x, y):
        return torch.cat([x.repeat_interleave(2, 0), y, y[1:]])

    calls = [(torch.randn(n, 3), torch.randn(2 * n, 3)) for n in (4, 2, 9)]
    module = _assert_equal_at(f, calls, ({0: Dim("n", min=2)}, {0: 2 * Dim("n", min=2)}))
    assert "float32[2*n, 3]" in str(module.signature)
    with pytest.raises(ValueError, match=r"args\[1\] has shape \[7, 3\].*\[2\*n, 3\] with n = 4"):
        module(torch.randn(4, 3), torch.randn(7, 3))


@pytest.mark.slow
def test_the_dynamic_size_of_an_input_that_nothing_reads():
    calls = [(torch.randn(n, 3), torch.randn(n + 1, 2)) for n in (4, 1, 9)]
    _assert_equal_at(lambda x, y: y * 2, calls, ({0: BATCH}, {0: LENGTH}))


def test_ranges_are_kept(tmp_path):
    module = exported(
        Function(lambda x: x + 1),
        torch.randn(4, 2),
        dynamic_shapes=(({0: Dim("n", min=3, max=9)},),),
    )
    module.save(tmp_path / "program")
    others = NumpyGraphModule.load(tmp_path / "program")
    for n in (3, 9):
        x = torch.randn(n, 2)
        assert torch.equal(module(x), x + 1)
        assert (others(x.numpy()) == (x + 1).numpy()).all()
    for n in (2, 10):
        x = torch.randn(n, 2)
        for call, given in ((module, x), (others, x.numpy())):
            with pytest.raises(ValueError, match=rf"the dimension 'n' is {n}, and may be from 3"):
                call(given)


@pytest.mark.parametrize(
    ("f", "shapes", "message"),
    [
        (lambda x: x.roll(1, 0), {0: BATCH}, "PythonMod.*not a polynomial"),
        (lambda x: x + 1, {0: Dim("n", min=3, max=4)}, "'n' has a range of too few sizes"),
        (functional.dropout, {0: BATCH}, "random numbers"),
    ],
)
def test_what_cannot_be_dynamic_is_refused(f, shapes, message):
    with pytest.raises(xla_dynamo.UnsupportedError, match=re.compile(message, re.DOTALL)):
        exported(Function(f), torch.randn(4, 4), dynamic_shapes=((shapes,),))


def test_a_dynamic_number_is_refused():
    shapes = ((None, Dim.DYNAMIC),)
    with pytest.raises(xla_dynamo.UnsupportedError, match=r"is a SymIntArgument.*pass it as a"):
        exported(Function(lambda x, n: x * n), torch.randn(3), 5, dynamic_shapes=shapes)


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [None, ({0: BATCH},)], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("kind", ["cond", "while_loop", "scan"])
def test_branches_and_loops(kind, shapes):
    class Model(torch.nn.Module):
        def forward(self, x):
            if kind == "cond":
                ones = torch.ones(x.shape[0], 1)
                return torch.cond(
                    x.sum() > 0,
                    lambda x: x.sin() + x.mean(0) + ones,
                    torch.nn.functional.gelu,
                    (x,),
                )
            if kind == "while_loop":
                return while_loop(
                    lambda i, x: i < 3,
                    lambda i, x: (i + 1, x.sin() + x.sum(0)),
                    (torch.tensor(0), x),
                )[1]
            return scan(lambda c, y: (c + y, c * y), x.sum(1), x.t().contiguous(), dim=0)

    model = Model()
    module = exported(model, torch.randn(3, 4), dynamic_shapes=shapes)
    for batch in (3, 1, 7) if shapes else (3,):
        for x in (torch.rand(batch, 4), -torch.rand(batch, 4)):
            torch.testing.assert_close(module(x), model(x))


def test_a_refusal_names_the_operation_and_the_line():
    class Running(torch.nn.Module):
        def forward(self, x):
            return x.cummax(0).values

    refusal = r"stablehlo\.\w+: (?s:.)*  at .*test_open_sizes\.py:\d+ in forward: return x\.cummax"
    with pytest.raises(xla_dynamo.UnsupportedError, match=refusal):
        exported(Running(), torch.randn(5, 4), dynamic_shapes=({0: BATCH},))
