"""Jagged tensors, nested_tensor(layout=torch.jagged), are compiled as the values that they wrap."""

import pytest
import torch
from torch import nn
from torch.nested import nested_tensor, nested_tensor_from_jagged
from torch.nn import functional as F

import xla_dynamo
from tests.comparison import compare_wrappers
from tests.compiling import compiled, compiled_whole

LENGTHS = ((2, 3), (4, 1), (3, 5, 2), (1, 1, 7, 2), (2, 3))


def jagged(lengths, width=4, dtype=torch.float64):
    rows = [torch.randn(n, width, dtype=dtype) for n in lengths]
    return nested_tensor(rows, layout=torch.jagged, requires_grad=dtype.is_floating_point)


def gradients(result, inputs):
    values = result.values() if result.is_nested else result
    return torch.autograd.grad(values.sin().sum(), inputs)


WEIGHT = torch.randn(4, 4, dtype=torch.float64)
JAGGED = {
    "pointwise": lambda x: (x * 2 + 1).sin(),
    "of itself": lambda x: x + x.relu() * x,
    "linear": lambda x: F.gelu(F.linear(x, WEIGHT)),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "softmax": lambda x: x.softmax(-1),
    "cat and chunk": lambda x: torch.cat([x, x * 2], -1).chunk(2, -1)[1],
    "heads": lambda x: x.sin().unflatten(-1, [2, 2]).transpose(1, 2).transpose(1, 2).flatten(2),
    "inner values": lambda x: x * x.values().sum(),
    "to plain": lambda x: x.values() * 2,
    "made": lambda x: nested_tensor_from_jagged(x.values() * 2, x.offsets()),
    "itself": lambda x: x,
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", JAGGED)
def test_jagged(name):
    """Forward and backward, at several lengths."""
    f = JAGGED[name]
    ours = compiled(f)
    for lengths in LENGTHS:
        x = jagged(lengths)
        actual, expected = ours(x), f(x)
        compare_wrappers(actual, expected)
        if expected.is_nested:
            assert actual.shape == x.shape  # the same symbol: x + f(x) works
        for a, e in zip(gradients(actual, [x]), gradients(expected, [x]), strict=True):
            compare_wrappers(a, e)
        with torch.no_grad():
            compare_wrappers(ours(x), f(x))


def test_other_lengths_are_no_other_graph():
    torch._dynamo.utils.counters.clear()
    ours = compiled(lambda x: x.sin() * 2)
    for lengths in ((2, 3), (5, 4), (2, 9)):
        x = jagged(lengths)
        compare_wrappers(ours(x), x.sin() * 2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_jagged_layers():
    layers = [nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()]
    model = nn.Sequential(*layers).double()
    ours = compiled(model)
    for lengths in LENGTHS:
        words = [torch.randint(0, 20, (n,)) for n in lengths]
        x = nested_tensor(words, layout=torch.jagged)
        actual, expected = ours(x), model(x)
        compare_wrappers(actual, expected)
        params = list(model.parameters())
        torch.testing.assert_close(gradients(actual, params), gradients(expected, params))


def test_jagged_tensors_that_share_offsets():
    """Several come in and go out, and can still be added to each other."""

    def f(x, y):
        return x + y, x * 2, x.values().sum()

    ours = compiled(f)
    for lengths in LENGTHS:
        x = jagged(lengths)
        y = nested_tensor_from_jagged(torch.randn_like(x.values()), x.offsets())
        actual, expected = ours(x, y), f(x, y)
        for a, e in zip(actual, expected, strict=True):
            compare_wrappers(a, e)
        compare_wrappers(actual[0] + actual[1] + x, expected[0] + expected[1] + x)


def test_jagged_with_gaps():
    """A view of a padded batch has lengths beside its offsets."""
    padded, start = torch.randn(3, 7, 4), torch.zeros(3, dtype=torch.int64)
    ours = compiled(lambda x: x.sin() * 2)
    for lengths in ([1, 2, 3], [7, 2, 1]):
        x = torch.nested.narrow(padded, 1, start, torch.tensor(lengths), layout=torch.jagged)
        actual = ours(x)
        assert actual.lengths().tolist() == lengths
        torch.testing.assert_close(actual.unbind(), [t.sin() * 2 for t in x.unbind()])


def test_jagged_in_place():
    ours = compiled(lambda x: x.mul_(3))
    for lengths in LENGTHS:
        x = jagged(lengths).detach()
        expected = x.clone().mul_(3)
        compare_wrappers(ours(x), expected)
        compare_wrappers(x, expected)


@pytest.mark.parametrize("f", [lambda x: x.to_padded_tensor(-1.0), lambda x: x.amax(1)])
def test_jagged_operators_without_a_rule_run_in_torch(f):
    ours = compiled(lambda x: f(x.sin()).cos())
    for lengths in LENGTHS:
        x = jagged(lengths).detach()
        compare_wrappers(ours(x), f(x.sin()).cos())
    with pytest.raises(xla_dynamo.UnsupportedOperator, match="_jagged_to_padded_dense_forward"):
        compiled_whole(f)(x)


def test_jagged_attention_breaks_the_graph():
    """The code that torch has for the CPU makes a list of tensors, which Dynamo cannot trace."""

    def f(x):
        q = x.sin().unflatten(-1, [2, 2]).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2) * 2

    with pytest.raises(torch._dynamo.exc.Unsupported, match="_nested_tensor_from_tensor_list"):
        compiled(f)(jagged((2, 3)))
    ours = compiled(f, fullgraph=False)
    for lengths in LENGTHS:
        x = jagged(lengths)
        actual, expected = ours(x), f(x)
        compare_wrappers(actual, expected)
        compare_wrappers(gradients(actual, [x])[0], gradients(expected, [x])[0])


@pytest.mark.parametrize("backend", ["openxla", "aot_eager"])
def test_the_gradient_of_a_jagged_sum_is_an_error_of_torchs(backend):
    """AOTAutograd meets an operator that torch has not written for jagged tensors."""
    f = torch.compile(lambda x: x.sum(-1), backend=backend)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="_nested_sum_backward"):
        f(jagged((2, 3)))


def test_train_step_refuses_jagged_tensors():
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = xla_dynamo.train_step(model, lambda model, x: model(x).values().sum(), optimizer)
    with pytest.raises(xla_dynamo.UnsupportedError, match="jagged"):
        step(jagged((2, 3)))
