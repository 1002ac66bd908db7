"""`precompile` leaves nothing to compile for later calls, and changes nothing.

Cold: Dynamo starts anew in each test.
"""

import threading

import pytest
import torch

import xla_dynamo
from tests.comparison import compare
from tests.compiling import compiled
from tests.host_operators import host_sine
from xla_dynamo.errors import CompileError, OptionError
from xla_dynamo.execution import compiled_graph
from xla_dynamo.runtime.executables import Executable

MODEL = torch.nn.Sequential(torch.nn.Linear(11, 11), torch.nn.GELU(), torch.nn.Linear(11, 3)).eval()


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


def assert_nothing_is_compiled(run, eager, inputs, executables, traces):
    before = executables(), traces()
    for args in inputs:
        compare(eager(*args), run(*args), values=True, atol=2e-5, rtol=2e-5)
    assert (executables(), traces()) == before


def test_buckets(executables, traces):
    run = compiled(MODEL, buckets=[8, 16])
    done = xla_dynamo.precompile(run, shapes=[[(n, 11)] for n in (1, 8, 3, 16)])
    assert done.executables == executables() == 3  # 8 and 3 are of one bucket
    assert str(done) == f"3 executables in {done.seconds:.2f} s"
    assert traces() == 2  # 1 is traced by itself
    inputs = [[torch.randn(n, 11)] for n in (1, 2, 5, 7, 8, 9, 16)]
    assert_nothing_is_compiled(run, MODEL, inputs, executables, traces)
    assert xla_dynamo.precompile(run, shapes=[[(n, 11)] for n in (1, 8)]).executables == 0


@pytest.mark.parametrize(
    ("batches", "later"),
    [
        # Without the first look at all calls, the first executables would be of one batch.
        ((4, 8), ((2, 7), (3, 12), (7, 6), (8, 16))),
        # 1 has a graph of its own, so the batch never changes in the other one.
        ((1, 4), ((2, 7), (3, 12), (1, 6), (4, 16))),
    ],
)
def test_a_batch_that_changes_is_open_from_the_first_executable_on(
    batches, later, executables, traces
):
    run = compiled(lambda x: x.softmax(1).sum(2), buckets=[4, 8, 16])
    shapes = [[(b, n, 11)] for b in batches for n in (8, 16)]
    assert xla_dynamo.precompile(run, shapes=shapes).executables == 4
    inputs = [[torch.randn(b, n, 11)] for b, n in later]
    eager = run._torchdynamo_orig_callable
    assert_nothing_is_compiled(run, eager, inputs, executables, traces)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_exact_sizes(dynamic, executables, traces):
    run = compiled(MODEL, dynamic=dynamic, buckets="exact")
    sizes = (4, 5, 6)
    assert xla_dynamo.precompile(run, shapes=[[(n, 11)] for n in sizes]).executables == 3
    inputs = [[torch.randn(n, 11)] for n in sizes]
    assert_nothing_is_compiled(run, MODEL, inputs, executables, traces)


def test_one_call_of_static_sizes(executables, traces):
    run = compiled(MODEL)
    assert xla_dynamo.precompile(run, shapes=[[(4, 11)]]).executables == 1
    assert_nothing_is_compiled(run, MODEL, [[torch.randn(4, 11)]], executables, traces)


def test_executables_are_compiled_at_once(monkeypatch):
    """Dynamo's next trace does not wait for XLA either."""
    both, begun = threading.Barrier(2), []

    def compile_with_another(*args):
        begun.append(args)
        if len(begun) <= 2:
            both.wait(60)  # else this raises, and so does precompile
        return Executable(*args)

    monkeypatch.setattr(compiled_graph, "Executable", compile_with_another)
    assert xla_dynamo.precompile(compiled(MODEL), shapes=[[(1, 11)], [(4, 11)]]).executables == 2


# What arguments may be, and inputs that they stand for.
ARGUMENTS = {
    "shapes": ([(4, 11), (11,)], lambda: [torch.randn(4, 11), torch.randn(11)]),
    "a dtype": (
        [((4, 11), torch.int64), torch.Size([])],
        lambda: [torch.ones(4, 11, dtype=torch.int64), torch.randn(())],
    ),
    "examples": ([torch.ones(11, 4).T, 2.5], lambda: [torch.randn(11, 4).T, 2.5]),
    "without memory": (
        [torch.empty(11, 4, device="meta").T, None],
        lambda: [torch.randn(11, 4).T, None],
    ),
    "names": ({"y": (11,), "x": (4, 11)}, lambda: [torch.randn(4, 11), torch.randn(11)]),
    "containers": (
        [(4, 11), {"both": [torch.empty(11, device="meta"), 3]}],
        lambda: [torch.randn(4, 11), {"both": [torch.randn(11), 3]}],
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name, executables, traces):
    shapes, make = ARGUMENTS[name]

    def f(x, y):
        if isinstance(y, dict):
            y, factor = y["both"]
            return x * y * factor
        return x * 2 if y is None else x * y

    run = compiled(f)
    assert xla_dynamo.precompile(run, shapes=[shapes]).executables == 1
    args = make()
    if isinstance(shapes, dict):
        compare(f(*args), run(y=args[1], x=args[0]), values=True)
    else:
        compare(f(*args), run(*args), values=True)
    assert (executables(), traces()) == (1, 1)


def test_nothing_that_graphs_change_is_changed(executables):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(11)
            self.register_buffer("cache", torch.zeros(4, 11))

        def forward(self, x):
            self.cache.add_(x.sum(0))
            return self.norm(x) + self.cache[0]

    model = Counting()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run = compiled(model)
    for sizes in ((5,), (5, 6)):  # of a graph of static sizes, and of one of dynamic sizes
        xla_dynamo.precompile(run, shapes=[[(n, 11)] for n in sizes])
        compare(before, dict(model.state_dict()), values=True)
    count = executables()
    x = torch.randn(5, 11)
    run(x)
    assert model.norm.num_batches_tracked == 1
    compare(x.sum(0).expand(4, 11), model.cache, values=True, strides=False)
    assert executables() == count


def test_modules_that_are_compiled_in_place_or_inside(executables, traces):
    class Sine(torch.nn.Module):  # Dynamo does not begin with the forward of one of torch's
        def forward(self, x):
            return x.sin()

    inner = Sine()
    inner.compile(backend="openxla")
    for model in (inner, torch.nn.Sequential(inner, torch.nn.ReLU())):
        xla_dynamo.precompile(model, shapes=[[(4, 11)], [(5, 11)]])
        assert (executables(), traces()) == (2, 1)
    model(torch.randn(5, 11))
    assert executables() == 2


def test_graph_breaks_and_operators_of_torch(executables, traces):
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return (host_sine(y) * 2, y.flip(0))

    run = compiled(f, fullgraph=False, buckets=[8])
    done = xla_dynamo.precompile(run, shapes=[[(n, 11)] for n in (4, 5)])
    assert done.executables == executables()
    inputs = [[torch.randn(n, 11)] for n in (4, 5)]
    assert_nothing_is_compiled(run, f, inputs, executables, traces)


def test_a_forward_with_gradients(executables):
    weight = torch.randn(11, 3, requires_grad=True)
    run = compiled(lambda x: (x @ weight).tanh())
    with torch.enable_grad():
        assert xla_dynamo.precompile(run, shapes=[[(4, 11)], [(5, 11)]]).executables == 2
        x = torch.randn(5, 11)
        (gradient,) = torch.autograd.grad(run(x).sum(), weight)
        (expected,) = torch.autograd.grad((x @ weight).tanh().sum(), weight)
    compare(expected, gradient, values=True)
    assert executables() == 3  # and a backward


def test_what_compiling_raises_is_raised(monkeypatch, executables):
    run = compiled(MODEL, buckets=[8, 16])

    def fail(*args):
        raise CompileError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(compiled_graph, "Executable", fail)
        with pytest.raises(CompileError, match="no memory") as raised:
            xla_dynamo.precompile(run, shapes=[[(3, 11)], [(9, 11)]])
        assert raised.value.__notes__ == ["1 more executables could not be compiled"]
    x = torch.randn(3, 11)
    compare(MODEL(x), run(x), values=True)


def test_results_are_zeros_of_the_right_sizes(monkeypatch):
    seen = []

    def f(x):
        y = torch.cat([x, x]).T + 1
        torch._dynamo.graph_break()
        seen.append((y.shape, y.stride(), y.abs().sum().item()))
        return y

    run = compiled(f, fullgraph=False)
    xla_dynamo.precompile(run, shapes=[[(4, 11)], [(5, 11)]])
    assert seen == [((11, n), (1, 11), 0.0) for n in (8, 10, 8, 10)]


@pytest.mark.parametrize("shapes", [[(4, 11)], [4], ["ab"], [None]])
def test_arguments_that_are_none_are_errors(shapes):
    with pytest.raises(OptionError, match=r"shapes\[0\] must be the arguments of a call"):
        xla_dynamo.precompile(compiled(MODEL), shapes=shapes)


def test_a_module_that_is_not_compiled_is_an_error():
    with pytest.raises(OptionError, match="nothing in Sequential is"):
        xla_dynamo.precompile(MODEL, shapes=[[(4, 11)]])
