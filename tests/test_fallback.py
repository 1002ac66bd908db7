"""What XLA cannot run runs eagerly between compiled parts: where graphs are cut, and what of."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled, compiled_anew
from tests.host_operators import double_, host_sine
from xla_dynamo import UnsupportedOperator
from xla_dynamo.execution import split_graph
from xla_dynamo.runtime import metrics


def layers(number):
    blocks = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(number)]
    return torch.nn.Sequential(*blocks)


class TwoStacks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = layers(3), layers(3)

    def forward(self, x):
        return self.after(host_sine(self.before(x)))


def test_an_operator_between_two_stacks_of_layers(split_graphs, monkeypatch):
    model, x = TwoStacks(), torch.randn(4, 8)
    metrics.clear_all()
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(split_graph.log, "handlers", [handler])
    with torch.no_grad():
        assert_matches_eager(compiled_anew(model), x, calls=2)
    (graph,) = split_graphs
    assert len(graph.parts) == 2
    assert [str(n.target) for n in graph.eager] == ["xla_dynamo_tests.host_sine.default"]
    assert metrics.counter_value("xla_dynamo_tests::host_sine") == 2
    (line,) = lines
    assert "host_sine.default runs eagerly: no lowering" in line
    assert "test_fallback.py" in line


def test_training_across_the_cut(split_graphs):
    model, x = TwoStacks(), torch.randn(4, 8)
    run = compiled_anew(model)
    actual = torch.autograd.grad(run(x).square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(actual, expected)
    assert split_graphs


def test_parameters_are_seen_on_both_sides():
    model, x = TwoStacks(), torch.randn(4, 8)
    run = compiled_anew(model)
    with torch.no_grad():
        for _ in range(3):
            assert_matches_eager(run, x)
            for parameter in model.parameters():
                parameter.add_(0.1)


def test_as_few_parts_as_the_chain_is_long(split_graphs):
    def f(x, y):
        a, b = host_sine(x * 2), host_sine(y * 3)  # independent: one cut
        c = host_sine(x)  # of an input: before any part
        return a + b, host_sine(a * b) + c, x.exp()

    with torch.no_grad():
        assert_matches_eager(compiled_anew(f), torch.randn(5), torch.randn(5), calls=2)
    assert len(split_graphs[0].parts) == 3


def test_what_inputs_decide_waits_for_the_part_that_needs_it(split_graphs):
    def f(x, w):
        w = w.t() * 2
        return host_sine(x) @ w

    with torch.no_grad():
        assert_matches_eager(compiled_anew(f), torch.randn(5, 5), torch.randn(5, 5), calls=2)
    assert len(split_graphs[0].parts) == 1


def test_fallback_error():
    with pytest.raises(Exception, match=r"no lowering for .*host_sine.*\n  at .*test_fallback.py"):
        compiled_anew(TwoStacks(), fallback="error")(torch.randn(4, 8))


def test_mutation_comes_after_every_read():
    def f(x, y):
        old = x.clone()
        x.mul_(2)
        picked = x[y > 0]
        y.add_(1)
        return picked + old[y > 1]

    for _ in range(2):
        x, y = torch.randn(6), torch.tensor([1.0, -1, 2, -3, 4, 0.5])
        a, b = x.clone(), y.clone()
        torch.testing.assert_close(compiled_anew(f)(x, y), f(a, b))
        torch.testing.assert_close((x, y), (a, b))


def test_mutation_by_an_eager_operator():
    def f(x):
        y = x + 1
        double_(y)
        double_(x)
        return y * 2 + x

    x = torch.randn(6)
    a = x.clone()
    torch.testing.assert_close(compiled_anew(f)(x), f(a))
    torch.testing.assert_close(x, a)


def test_control_flow_runs_in_torch():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x * 2,)) + 1

    run = compiled_anew(f)
    for x in (torch.ones(3), -torch.ones(3)):
        assert_matches_eager(run, x)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_dtype_without_a_type():
    def f(x):
        return x.to(torch.complex32).to(torch.complex64) * 2

    assert_matches_eager(compiled_anew(f), torch.randn(4, dtype=torch.complex64), calls=2)
    with pytest.raises(Exception, match="complex32"):
        compiled_anew(f, fallback="error")(torch.randn(4, dtype=torch.complex64))


def test_symbolic_sizes():
    model = TwoStacks()
    run = compiled(model, dynamic=True)
    with torch.no_grad():
        for n in (2, 3, 5, 3):
            x = torch.randn(n, 8)
            assert_matches_eager(run, x)


def test_threads():
    def f(x):
        return x[x > 0].sum() * 2, host_sine(x + 1)

    run = compiled_anew(f)
    inputs = [torch.randn(20) for _ in range(8)]
    run(inputs[0])

    def work(x):
        for _ in range(20):
            assert_matches_eager(run, x)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, inputs))


def test_inputs_are_freed_early():
    freed = []

    @torch.library.custom_op("xla_dynamo_tests::watch", mutates_args=())
    def watch(x: torch.Tensor) -> torch.Tensor:
        freed.append(alive() is None)
        return x.clone()

    watch.register_fake(torch.empty_like)
    import weakref

    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(lambda x: [watch(x * 2) + 1], tracing_mode="fake")(torch.ones(3))
    run = xla_dynamo.compile_graph(gm, [torch.ones(3)])
    x = torch.ones(3)
    alive = weakref.ref(x)
    args = [x]
    del x
    (result,) = run.call(args)
    assert freed == [True]
    torch.testing.assert_close(result, torch.full((3,), 3.0))


def test_what_a_rule_refuses():
    mask, x = torch.tensor([True, True, True]), torch.randn(3, 3)
    assert_matches_eager(
        compiled_anew(lambda x: x.index_put((torch.tensor([0, 1, 2]), mask), torch.tensor(3.0))),
        x,
        calls=2,
    )


def test_sparse_gradients():
    embedding, layer = torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 4)
    run = compiled_anew(lambda t: layer(embedding(t)) + layer(embedding(t + 1)))
    run(torch.tensor([1, 2, 2])).sum().backward()
    assert embedding.weight.grad.is_sparse
    assert embedding.weight.grad.to_dense().abs().sum(1).count_nonzero() == 3


def test_an_effect_with_results(capsys):
    def f(x):
        torch._higher_order_ops.print("sum {}", x.sum())
        return x * 2

    compiled_anew(f)(torch.ones(3))
    assert "sum 3.0" in capsys.readouterr().out


def test_in_place_operators_are_refused():
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(lambda x: [x.exp() + x.add_(1)], tracing_mode="fake")(torch.ones(3))
    with pytest.raises(UnsupportedOperator, match="add_"):
        xla_dynamo.compile_graph(gm, [torch.ones(3)])
