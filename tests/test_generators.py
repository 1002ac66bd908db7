"""An operator that is given a generator draws from it, or is refused: it is never ignored."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import xla_dynamo
from tests.compiling import compiled
from xla_dynamo import UnsupportedOperator
from xla_dynamo.graphs.request import Request
from xla_dynamo.options import Options

aten = torch.ops.aten


@pytest.mark.parametrize("rng", ["xla", "torch"])
def test_generators_in_a_compiled_function(rng):
    def f(x, g):
        return (
            torch.rand(3, generator=g) + x,
            x.clone().normal_(generator=g),
            torch.randperm(5, generator=g),
            torch.multinomial(torch.ones(4), 2, generator=g),
        )

    # Dynamo breaks the graph at each.
    c = compiled(f, fullgraph=False, rng=rng)
    x, one, two = torch.zeros(3), torch.Generator(), torch.Generator()
    one.manual_seed(5)
    two.manual_seed(6)
    default = torch.get_rng_state()
    results = [c(x, one), c(x, one), c(x, two)]
    assert torch.equal(default, torch.get_rng_state())
    one.manual_seed(5)
    two.manual_seed(6)
    for result, again in zip(results, [f(x, one), f(x, one), f(x, two)], strict=True):
        assert all(map(torch.equal, result, again))
    assert not any(map(torch.equal, results[0][:2], results[1][:2]))
    assert not any(map(torch.equal, results[0][:2], results[2][:2]))


# The others cannot be traced: their fake functions refuse a generator.
_GENERATED = [
    lambda x, g: torch.rand(5, generator=g),
    lambda x, g: torch.bernoulli(x, generator=g),
    lambda x, g: aten.bernoulli.p(x, 0.5, generator=g),
    lambda x, g: torch.normal(x, 1.0, generator=g),
    lambda x, g: torch.poisson(x, g),
    lambda x, g: torch._standard_gamma(x, g),
    lambda x, g: torch._sample_dirichlet(x, g),
    lambda x, g: torch.binomial(x.ceil(), x / 2, g),
    lambda x, g: torch.multinomial(x, 2, generator=g),
    lambda x, g: torch.randperm(5, generator=g),
    lambda x, g: torch.randint(9, (5,), generator=g),
    lambda x, g: aten.rand_like.generator(x, generator=g),
    *(
        lambda x, g, op=op: op(x, generator=g)
        for op in (
            aten.uniform.default,
            aten.normal_functional.default,
            aten.random.default,
        )
    ),
    lambda x, g: aten.rrelu_with_noise_functional(-x, x, 0.1, 0.3, True, g)[0],
]


@pytest.mark.parametrize("draw", _GENERATED)
def test_generators_of_a_graph(draw):
    g, x = torch.Generator(), torch.rand(5) + 0.1
    gm = make_fx(lambda x: [draw(x.exp().log(), g) * 2], tracing_mode="fake")(x)
    graph = xla_dynamo.compile_graph(gm, [x])
    default = torch.get_rng_state()
    g.manual_seed(4)
    results = [graph(x)[0], graph(x)[0]]
    state = g.get_state()
    assert torch.equal(default, torch.get_rng_state())
    g.manual_seed(4)
    for result in results:
        torch.testing.assert_close(result, draw(x.exp().log(), g) * 2)
    assert torch.equal(state, g.get_state())
    with pytest.raises(UnsupportedOperator, match="generator of its own"):
        xla_dynamo.compile_graph(gm, [x], Request(Options(fallback="error")))


def test_one_generator_is_drawn_from_in_order():
    g, x = torch.Generator(), torch.rand(5)

    def f(x):
        late = torch.multinomial(x.exp(), 2, generator=g)
        return [late + 1, torch.rand(5, generator=g) * x]

    gm = make_fx(f, tracing_mode="fake")(x)
    graph = xla_dynamo.compile_graph(gm, [x])
    g.manual_seed(4)
    results = graph(x)
    g.manual_seed(4)
    assert all(map(torch.equal, results, f(x)))
