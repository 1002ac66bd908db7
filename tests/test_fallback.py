"""What XLA cannot run runs eagerly between compiled parts. Warm: nothing is cached on disk."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import xla_dynamo
from xla_dynamo import ExecutionError, UnsupportedOperator
from xla_dynamo.execution import split_graph
from xla_dynamo.runtime import metrics


@torch.library.custom_op("xla_dynamo_tests::host_sine", mutates_args=())
def host_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@host_sine.register_fake
def _(x):
    return torch.empty_like(x)


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos()


host_sine.register_autograd(
    _backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@torch.library.custom_op("xla_dynamo_tests::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()  # other strides than the fake function promises


@transposed.register_fake
def _(x):
    return torch.empty_like(x)


transposed.register_autograd(lambda ctx, grad: grad)


@torch.library.custom_op("xla_dynamo_tests::liar", mutates_args=())
def liar(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone()


@liar.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("xla_dynamo_tests::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


@pytest.fixture
def graphs(monkeypatch):
    """The partitioned graphs made during a test."""
    made = []

    class Watched(split_graph.PartitionedGraph):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("xla_dynamo.execution.compiled_graph.PartitionedGraph", Watched)
    return made


def compiled(fn, **options):
    torch._dynamo.reset()
    return torch.compile(fn, backend="openxla", fullgraph=True, options=options)


def check_equal(fn, *args, runs=2):
    run = compiled(fn)
    for _ in range(runs):
        expected = fn(*[a.clone() if isinstance(a, torch.Tensor) else a for a in args])
        torch.testing.assert_close(run(*args), expected)
    return run


def layers(number):
    blocks = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()) for _ in range(number)]
    return torch.nn.Sequential(*blocks)


class TwoStacks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = layers(3), layers(3)

    def forward(self, x):
        return self.after(host_sine(self.before(x)))


def test_an_operator_between_two_stacks_of_layers(graphs, monkeypatch):
    model, x = TwoStacks(), torch.randn(4, 8)
    metrics.clear_all()
    split_graph._logged.clear()
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    monkeypatch.setattr(split_graph.log, "handlers", [handler])
    with torch.no_grad():
        check_equal(model, x)
    (graph,) = graphs
    assert len(graph.parts) == 2
    assert [str(n.target) for n in graph.eager] == ["xla_dynamo_tests.host_sine.default"]
    assert metrics.counter_value("xla_dynamo_tests::host_sine") == 2
    (line,) = lines
    assert "host_sine.default runs eagerly: no lowering" in line
    assert "test_partition.py" in line


def test_training_across_the_cut(graphs):
    model, x = TwoStacks(), torch.randn(4, 8)
    run = compiled(model)
    actual = torch.autograd.grad(run(x).square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    torch.testing.assert_close(actual, expected)
    assert graphs


def test_parameters_are_seen_on_both_sides():
    model, x = TwoStacks(), torch.randn(4, 8)
    run = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x))
            for parameter in model.parameters():
                parameter.add_(0.1)


def test_as_few_parts_as_the_chain_is_long(graphs):
    def f(x, y):
        a, b = host_sine(x * 2), host_sine(y * 3)  # independent: one cut
        c = host_sine(x)  # of an input: before any part
        return a + b, host_sine(a * b) + c, x.exp()

    with torch.no_grad():
        check_equal(f, torch.randn(5), torch.randn(5))
    assert len(graphs[0].parts) == 3


def test_what_inputs_decide_waits_for_the_part_that_needs_it(graphs):
    def f(x, w):
        w = w.t() * 2
        return host_sine(x) @ w

    with torch.no_grad():
        check_equal(f, torch.randn(5, 5), torch.randn(5, 5))
    assert len(graphs[0].parts) == 1


def test_fallback_error():
    with pytest.raises(Exception, match=r"no lowering for .*host_sine.*\n  at .*test_partition.py"):
        compiled(TwoStacks(), fallback="error")(torch.randn(4, 8))


def test_sizes_that_depend_on_values():
    def f(x):
        y = torch.relu(x) * 2
        places = y.nonzero()
        return y[places[:, 0]].sum(0) * y.sum().item(), y[y > 1] + 1, places

    run = compiled(f)
    for x in (torch.randn(6, 4), torch.randn(6, 4), -torch.ones(6, 4), torch.ones(6, 4)):
        torch.testing.assert_close(run(x), f(x))


def test_an_assertion_about_a_size():
    def f(x):
        n = (x > 0).sum().item()
        torch._check(n > 2, lambda: "too few")
        return x[:n] * 2

    run = compiled(f)
    x = torch.tensor([1.0, 2.0, 3.0, -1.0])
    torch.testing.assert_close(run(x), f(x))
    with pytest.raises(RuntimeError, match=r"too few|u0"):
        run(-x)


def test_a_number_read_from_a_tensor():
    def f(x, n):
        return x * n.item() + x.shape[0], x.narrow(0, n.item(), 2)

    run = compiled(f)
    for n in (0, 2, 1):
        args = torch.arange(4.0), torch.tensor(n)
        torch.testing.assert_close(run(*args), f(*args))


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
        torch.testing.assert_close(compiled(f)(x, y), f(a, b))
        torch.testing.assert_close((x, y), (a, b))


def test_mutation_by_an_eager_operator():
    def f(x):
        y = x + 1
        double_(y)
        double_(x)
        return y * 2 + x

    x = torch.randn(6)
    a = x.clone()
    torch.testing.assert_close(compiled(f)(x), f(a))
    torch.testing.assert_close(x, a)


def test_views_of_one_memory_across_the_cut():
    def f(x):
        y = x * 2
        z = host_sine(y)
        return y, y.view(-1), z, z.t()

    with torch.no_grad():
        y, flat, z, t = compiled(f)(torch.randn(3, 4))
    assert y.data_ptr() == flat.data_ptr()
    assert z.data_ptr() == t.data_ptr()


def test_strides_other_than_promised():
    x = torch.randn(4, 4)
    check_equal(lambda x: transposed(x * 2) + torch.arange(16.0).view(4, 4), x)


def test_a_shape_other_than_promised():
    with pytest.raises(ExecutionError, match=r"liar.*promised .*\(4,\)\n  at .*test_partition"):
        compiled(lambda x: liar(x * 2) + 1)(torch.randn(4))


def test_control_flow_runs_in_torch():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x * 2,)) + 1

    run = compiled(f)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), f(x))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_a_dtype_without_a_type():
    def f(x):
        return x.to(torch.complex32).to(torch.complex64) * 2

    check_equal(f, torch.randn(4, dtype=torch.complex64))
    with pytest.raises(Exception, match="complex32"):
        compiled(f, fallback="error")(torch.randn(4, dtype=torch.complex64))


def test_symbolic_sizes():
    torch._dynamo.reset()
    model = TwoStacks()
    run = torch.compile(model, backend="openxla", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for n in (2, 3, 5, 3):
            x = torch.randn(n, 8)
            torch.testing.assert_close(run(x), model(x))


def test_threads():
    def f(x):
        return x[x > 0].sum() * 2, host_sine(x + 1)

    run = compiled(f)
    inputs = [torch.randn(20) for _ in range(8)]
    run(inputs[0])

    def work(x):
        for _ in range(20):
            torch.testing.assert_close(run(x), f(x))

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


def test_a_mask_used_twice():
    check_equal(lambda x, m: (x[m], (x * 2)[m]), torch.randn(8), torch.randn(8) > 0)
    check_equal(lambda x, m: (x * 2)[m] + (x + 1)[m], torch.randn(8), torch.randn(8) > 0)
    check_equal(lambda x, m: (m.nonzero(), x[m]), torch.randn(8), torch.randn(8) > 0)


def test_a_masked_loss():
    layer, x, target = torch.nn.Linear(8, 5), torch.randn(10, 8), torch.randint(0, 5, (10,))

    def loss(x, mask):
        return torch.nn.functional.cross_entropy(layer(x)[mask], target[mask])

    mask = torch.arange(10) % 3 > 0
    actual = torch.autograd.grad(compiled(loss)(x, mask), list(layer.parameters()))
    expected = torch.autograd.grad(loss(x, mask), list(layer.parameters()))
    torch.testing.assert_close(actual, expected)


def memories(tensors):
    """Which of some tensors share memory, as the number of the first that each one is with."""
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    return [storages.index(s) for s in storages]


@torch.library.custom_op("xla_dynamo_tests::two", mutates_args=())
def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


@two.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


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
        actual, expected = compiled(fn)(x), fn(x)
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
            check_equal(fn, torch.arange(8.0))


def test_saved_strides_other_than_promised():
    w, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)

    def f(x):
        return host_sine(transposed(w * x)) * torch.arange(16.0).view(4, 4)

    (actual,) = torch.autograd.grad(compiled(f)(x).sum(), w)
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

    run = compiled(lambda x: sometimes_int(x * 1) + 1)
    assert run(torch.tensor([1.0, 1, -1])).tolist() == [2, 2]
    with pytest.raises(ExecutionError, match=r"torch.int32"):
        run(torch.tensor([3.0, 3, -1]))


def test_numbers_that_are_equal_and_not_the_same():
    run = compiled(lambda n: 1 / torch.full((2,), n.item()))
    for n in (0.0, -0.0, float("nan"), 2.0):
        expected = 1 / torch.full((2,), n)
        torch.testing.assert_close(run(torch.tensor(n)), expected, equal_nan=True)


def test_what_a_rule_refuses():
    mask, x = torch.tensor([True, True, True]), torch.randn(3, 3)
    check_equal(lambda x: x.index_put((torch.tensor([0, 1, 2]), mask), torch.tensor(3.0)), x)


def test_sparse_gradients():
    embedding, layer = torch.nn.Embedding(10, 4, sparse=True), torch.nn.Linear(4, 4)
    run = compiled(lambda t: layer(embedding(t)) + layer(embedding(t + 1)))
    run(torch.tensor([1, 2, 2])).sum().backward()
    assert embedding.weight.grad.is_sparse
    assert embedding.weight.grad.to_dense().abs().sum(1).count_nonzero() == 3


def test_an_effect_with_results(capsys):
    def f(x):
        torch._higher_order_ops.print("sum {}", x.sum())
        return x * 2

    compiled(f)(torch.ones(3))
    assert "sum 3.0" in capsys.readouterr().out


def test_in_place_operators_are_refused():
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(lambda x: [x.exp() + x.add_(1)], tracing_mode="fake")(torch.ones(3))
    with pytest.raises(UnsupportedOperator, match="add_"):
        xla_dynamo.compile_graph(gm, [torch.ones(3)])


def test_out_of_memory_after_a_cut():
    run = compiled(lambda x: (lambda y: (y[:, None] * y).cumsum(0).exp().sum())(x[x > 0]))
    run(torch.randn(8))
    with pytest.raises(ExecutionError, match=r"(?s)[Mm]emory.*test_partition"):
        run(torch.ones(900_000))
