"""Tensors that wrap tensors are compiled as the tensors inside; see tests/test_jagged.py, too."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import return_and_correct_aliasing

import xla_dynamo
from tests.comparison import compare_wrappers
from tests.compiling import assert_matches_eager, compiled, leaf
from xla_dynamo.runtime import metrics

aten = torch.ops.aten
# Of wrappers of dynamic sizes torch 2.11's AOTAutograd confuses the strides, for every backend.
DYNAMIC = [False, True] if torch.__version__ >= "2.13" else [False]


class Packed(torch.Tensor):
    """A weight of 4 bits an element, two to a byte, with a scale for each row."""

    @staticmethod
    def __new__(cls, packed, scale):
        size = (packed.shape[0], packed.shape[1] * 2)
        return torch.Tensor._make_wrapper_subclass(cls, size, dtype=torch.uint4)

    def __init__(self, packed, scale):
        self.packed, self.scale = packed, scale

    def __repr__(self):
        return f"Packed({self.packed}, {self.scale})"

    def __tensor_flatten__(self):
        return ["packed", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Packed(**inner)

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 7
        fours = ((weight / scale).round() + 8).to(torch.uint8)
        return cls(fours[:, ::2] * 16 + fours[:, 1::2], scale)

    def plain(self):
        fours = torch.stack([self.packed >> 4, self.packed & 15], -1).flatten(1)
        return (fours.to(self.scale.dtype) - 8) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            return func(args[0], args[1].plain(), *args[2:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.view.default:  # of itself, by AOTAutograd of torch 2.11
            func, args = aten.alias.default, args[:1]
        if func not in (aten.detach.default, aten.alias.default, aten.clone.default):
            raise NotImplementedError(str(func))
        out = cls(func(args[0].packed), func(args[0].scale))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


def packed_linear(features, width):
    layer = nn.Linear(features, width)
    layer.weight = nn.Parameter(Packed.of(layer.weight.detach()), requires_grad=False)
    return layer


@pytest.mark.parametrize("freeze", [False, True])
def test_quantized_weights(freeze):
    """As torchao's: the wrapper's dtype, uint4, is none of XLA's, but its parts' are."""
    model = nn.Sequential(packed_linear(8, 16), nn.ReLU(), packed_linear(16, 4))
    ours = compiled(model, freeze=freeze)

    changes = [
        lambda: None,
        lambda: model[0].weight.packed.add_(1),
        lambda: model[2].weight.scale.mul_(2),
        lambda: setattr(model[0], "weight", packed_linear(8, 16).weight),
    ]
    for change in changes:
        change()
        with torch.no_grad():
            assert_matches_eager(ours, torch.randn(5, 8))
    assert_matches_eager(ours, leaf(5, 8))


def test_graphs_of_dtypes_without_a_short_name_are_explained():
    """What listens to Dynamo has torch print each graph, which would fail on uint4."""
    report = xla_dynamo.explain(packed_linear(8, 16))(torch.randn(5, 8))
    assert len(report.graphs) == 1


@pytest.mark.parametrize("offset", [0, 1])
def test_changes_of_a_wrapper_are_seen_under_freeze(offset):
    """Operators on the wrapper change the inner tensors and leave their versions as they are."""
    # With an offset, XLA gets a copy.
    parts = [torch.randn(64 * 96 + offset)[offset:].view(64, 96) for _ in range(2)]
    model = nn.Linear(96, 64, bias=False)
    model.weight = nn.Parameter(TwoTensor(*parts))
    ours, x = compiled(model, mode="max-autotune"), torch.randn(3, 96)
    changes = [
        lambda: None,
        lambda: model.weight.mul_(2),
        lambda: model.weight.copy_(TwoTensor(torch.ones(64, 96), torch.zeros(64, 96))),
        lambda: model.load_state_dict({"weight": TwoTensor(*(torch.randn(64, 96) for _ in "ab"))}),
    ]
    for change in changes:
        with torch.no_grad():
            change()
            compare_wrappers(ours(x), model(x))


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning", "ignore:.*quantize:UserWarning")
def test_inner_tensors_are_checked():
    half = torch.zeros(3, dtype=torch.complex32)
    quantized = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.quint8)
    gm = torch.fx.symbolic_trace(lambda x: x * 2)
    with pytest.raises(xla_dynamo.UnsupportedDtype, match="complex32"):
        xla_dynamo.openxla(gm, [TwoTensor(half, half)])
    with pytest.raises(xla_dynamo.UnsupportedTensor, match="dequantize"):
        xla_dynamo.openxla(gm, [TwoTensor(*[TwoTensor(quantized, quantized)] * 2)])


def two(*size, grad=False):
    a, b = (torch.randn(size, dtype=torch.float64) for _ in range(2))
    return TwoTensor(a, b).requires_grad_(grad)


def copy_of(tensor):
    a, b = (t.detach().clone() for t in (tensor.a, tensor.b))
    return TwoTensor(a, b).requires_grad_(tensor.requires_grad)


def gradients(results, inputs):
    loss = sum(t.sin().sum() for t in results if isinstance(t, torch.Tensor))
    return torch.autograd.grad(loss, inputs, allow_unused=True)


TWO = {
    "linear": lambda x, w: [(x @ w).sin()],
    "several results": lambda x, w: ((x @ w).sin(), w.t(), x.sum(), x * x.shape[0], x.shape[0]),
    "views": lambda x, w: (x[1:], x.t(), x.view(-1)),
    "a new view": lambda x, w: [(x * 2).t()[1:]],
    "itself": lambda x, w: (x, w),
    "in place": lambda x, w: [x.sin().mul_(2)],
}


@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("name", TWO)
def test_two_tensors(name, dynamic):
    """A subclass of torch's own tests that computes all twice."""
    ours = compiled(TWO[name], dynamic=dynamic)
    for rows in (3, 5, 6):
        x, w = two(rows, 4, grad=True), two(4, 4, grad=True)
        actual, expected = ours(x, w), TWO[name](x, w)
        for a, e in zip(actual, expected, strict=True):
            if isinstance(e, torch.Tensor):
                compare_wrappers(a, e)
                assert name != "views" or a._is_view() == e._is_view()
            else:
                assert a == e
        ours_, eagers = gradients(actual, [x, w]), gradients(expected, [x, w])
        for a, e in zip(ours_, eagers, strict=True):
            assert (a is None) == (e is None)
            if e is not None:
                compare_wrappers(a, e)


def test_two_tensors_that_a_graph_changes():
    def f(x):
        y = x[1:]
        y.mul_(2)
        return y, x + 1

    for dynamic in DYNAMIC:
        ours = compiled(f, dynamic=dynamic)
        for rows in (4, 5):
            x = two(rows, 3)
            z = copy_of(x)
            actual, expected = ours(x), f(z)
            compare_wrappers(x, z)
            x.add_(1)  # seen in the view that was returned
            z.add_(1)
            for a, e in zip(actual, expected, strict=True):
                compare_wrappers(a, e)


def test_a_tensor_inside_comes_to_lie_in_what_a_graph_changes():
    """The wrapper is the same object as before, and asked for its names no more."""

    def f(x, w):
        x.mul_(2)
        return x + w

    w, x = TwoTensor(torch.ones(4), torch.ones(4)), torch.arange(4.0)
    ours = compiled(f)
    for _ in range(2):
        compare_wrappers(ours(x.clone(), w), f(x.clone(), w))
    before = metrics.counter_value("EagerOverlappingInputs") or 0
    w.b = x  # read after x has changed
    y = x.clone()
    expected = f(y, TwoTensor(torch.ones(4), y))
    compare_wrappers(ours(x, w), expected)
    assert metrics.counter_value("EagerOverlappingInputs") == before + 1


def test_wrappers_in_wrappers_beside_plain_tensors():
    def f(x, y, n):
        return x.sin() + y * n, y * 2, n + 1, x

    x, y = TwoTensor(two(3, 2), two(3, 2)), torch.randn(3, 2, dtype=torch.float64)
    actual, expected = compiled(f)(x, y, 3), f(x, y, 3)
    for a, e in zip(actual[:2], expected[:2], strict=True):
        compare_wrappers(a, e)
    assert actual[2:] == (4, x)


def test_convolutions_of_wrappers():
    """What the forward saves comes in strides of our choice, of each inner tensor."""
    x, w = two(2, 16, 12, 12, grad=True), two(16, 16, 3, 3, grad=True)

    def f(x, w):
        return F.conv2d(F.conv2d(x, w, padding=1).relu(), w, padding=1)

    actual, expected = compiled(f)(x, w), f(x, w)
    compare_wrappers(actual, expected)
    for a, e in zip(gradients([actual], [x, w]), gradients([expected], [x, w]), strict=True):
        compare_wrappers(a, e)


def optimized(step_of):
    """A layer whose weight is a wrapper, after three steps."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(two(4, 4))
    step = step_of(layer, torch.optim.AdamW(layer.parameters(), lr=0.1))
    for _ in range(3):
        step(two(3, 4))
    return layer.weight


def loss_of(layer, x):
    return layer(x).sin().sum()


def loop(loss):
    def step_of(layer, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss(layer, x).backward()
            optimizer.step()

        return step

    return step_of


def test_training_of_wrappers():
    expected = optimized(loop(loss_of))
    compare_wrappers(optimized(loop(compiled(loss_of))), expected)
    whole = optimized(lambda layer, optimizer: xla_dynamo.train_step(layer, loss_of, optimizer))
    compare_wrappers(whole, expected)


@pytest.fixture(scope="module")
def mesh():
    """Of one process; one for all, since torch 2.13 mixes up what it keeps of several."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_tensor_changes_beside_a_dtensor(mesh):
    """Beside its local tensor a DTensor has its mesh, which is no tensor and shares no memory."""
    w = distribute_tensor(torch.randn(3, 4), mesh, [Replicate()])

    def f(x):
        x.mul_(2)
        return w + 1

    ours, x = compiled(f), torch.ones(5)
    for power in (2, 4):
        torch.testing.assert_close(ours(x).to_local(), w.to_local() + 1)
        torch.testing.assert_close(x, torch.full((5,), float(power)))


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
def test_dtensors(placement, mesh):
    """What one process computes of its local part."""
    w = distribute_tensor(torch.randn(4, 4), mesh, [placement]).requires_grad_()
    ours = compiled(lambda x: (x @ w).relu() * 2)
    for _ in range(2):
        x = distribute_tensor(torch.randn(3, 4), mesh, [Replicate()])
        actual, expected = ours(x), (x @ w).relu() * 2
        assert type(actual) is DTensor
        assert actual.placements == expected.placements
        torch.testing.assert_close(actual.to_local(), expected.to_local())
        grads = [torch.autograd.grad(t.sum(), w)[0].to_local() for t in (actual, expected)]
        torch.testing.assert_close(*grads)
