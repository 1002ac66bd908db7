"""Calls of exported programs: what goes in and comes out, and errors; every one starts cold."""

import collections
import concurrent.futures

import numpy as np
import pytest
import torch
from torch.nn import functional

import xla_dynamo
from tests.stablehlo.exporting import Function, exported
from xla_dynamo.stablehlo import (
    NumpyGraphModule,
    StableHLOExportOptions,
    StableHLOGraphModule,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


def _reloaded(module, tmp_path):
    module.save(tmp_path / "program")
    return StableHLOGraphModule.load(tmp_path / "program")


class Tied(torch.nn.Module):
    """Tied weights, buffers of several dtypes, and a constant that is no buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("wide", torch.randn(8, dtype=torch.complex128))
        self.register_buffer("narrow", torch.randn(8).bfloat16())
        self.register_buffer("small", torch.randn(8).to(torch.float8_e4m3fn), persistent=False)
        self.table = torch.randn(100)

    def forward(self, x):
        x = self.second(self.first(x)) * self.narrow + self.table[:8]
        return x * self.wide.real + self.small.float()


def test_weights(tmp_path):
    model, x = Tied(), torch.randn(3, 8)
    module = exported(model, x)
    weights = [n for n in module.weights if n.endswith(".weight")]
    assert len(weights) == 1, "the tied weight is stored once"
    torch.testing.assert_close(module(x), model(x))
    torch.testing.assert_close(_reloaded(module, tmp_path)(x), model(x))
    others = NumpyGraphModule.load(tmp_path / "program")
    torch.testing.assert_close(torch.from_numpy(others(x.numpy())), model(x))


@pytest.mark.slow
def test_dtypes(tmp_path):
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    given = [torch.ones(3).to(dtype) for dtype in (*dtypes, torch.complex64)]
    module = _reloaded(exported(Function(lambda *xs: [x + x for x in xs]), *given), tmp_path)
    expected = [x + x for x in given]
    torch.testing.assert_close(module(*given), expected)
    arrays = [
        x.view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.numpy() for x in given
    ]
    arrays[2] = arrays[2].view("bfloat16")
    made = NumpyGraphModule.load(tmp_path / "program")(*arrays)
    for array, tensor in zip(made, expected, strict=True):
        assert str(array.dtype) == str(tensor.dtype).removeprefix("torch.")
        assert (array.astype(complex) == tensor.to(torch.complex128).numpy()).all()


Pair = collections.namedtuple("Pair", "left right")


def test_nested(tmp_path):
    def f(pair, *, named):
        both = pair.left + named["a"][0]
        return {"sum": both, 3: [pair.right, None, 7]}, Pair(both.sum(), "text")

    given = (Pair(torch.randn(3), torch.randn(2)),), {"named": {"a": (torch.randn(3),)}}
    module = _reloaded(exported(Function(f), *given[0], kwargs=given[1]), tmp_path)
    made, wanted = module(*given[0], **given[1]), f(*given[0], **given[1])
    torch.testing.assert_close(made[0]["sum"], wanted[0]["sum"])
    assert torch.equal(made[0][3][0], wanted[0][3][0])
    assert made[0][3][1:] == [None, 7]
    assert made[1]._fields == ("left", "right")
    assert made[1].right == "text"


@pytest.mark.slow
def test_inputs_that_change(tmp_path):
    def f(x, y):
        x.add_(y)
        return x * 2

    module = _reloaded(exported(Function(f), torch.randn(3), torch.randn(3)), tmp_path)
    others = NumpyGraphModule.load(tmp_path / "program")
    x, y = torch.randn(3), torch.randn(3)
    arrays = x.numpy().copy(), y.numpy()
    before = x.clone()
    torch.testing.assert_close(module(x, y), (before + y) * 2)
    torch.testing.assert_close(x, before + y)
    np.testing.assert_allclose(others(*arrays), x.numpy() * 2, rtol=1e-6)
    np.testing.assert_allclose(arrays[0], x.numpy(), rtol=1e-6)


def test_changed_weights_are_the_modules_own(tmp_path):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    model = Counter()
    module = exported(model, torch.zeros(2))
    assert [module(torch.zeros(2))[0].item() for _ in range(3)] == [1, 2, 3]
    assert model.count.item() == 0
    module = _reloaded(module, tmp_path)
    assert module(torch.zeros(2))[0].item() == 4
    assert module.weights["count"].item() == 4
    others = NumpyGraphModule.load(tmp_path / "program")
    assert [others(np.zeros(2, np.float32))[0] for _ in range(2)] == [4, 5]


@pytest.mark.slow
def test_random_numbers(tmp_path):
    module = exported(Function(lambda x: functional.dropout(x, 0.5)), torch.ones(64))
    x = torch.ones(64)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    torch.manual_seed(1)
    assert torch.equal(module(x), first)
    assert not torch.equal(first, second)
    module.save(tmp_path / "program")
    others = NumpyGraphModule.load(tmp_path / "program")
    others.manual_seed(1)
    first, second = others(x.numpy()), others(x.numpy())
    others.manual_seed(1)
    assert (others(x.numpy()) == first).all()
    assert (first != second).any()


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    module = exported(
        Function(lambda x, n, *, flag, bias: (x * n + bias) if flag else x),
        torch.randn(2, 3),
        3,
        kwargs={"flag": True, "bias": torch.randn(3)},
    )
    folder = tmp_path_factory.mktemp("scaled") / "program"
    module.save(folder)
    return module, NumpyGraphModule.load(folder)


_X, _B = np.ones((2, 3), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((_X, 4), {"flag": True, "bias": _B}, ValueError, r"args\[1\] is 4, and .*for 3"),
        ((_X, True), {"flag": True, "bias": _B}, ValueError, r"args\[1\] is True"),
        ((_X, 3), {"flag": False, "bias": _B}, ValueError, r"kwargs\['flag'\] is False"),
        ((_X,), {"flag": True, "bias": _B}, TypeError, "args must be a tuple of 2"),
        ((_X, 3), {"flag": True}, TypeError, r"kwargs must be a dict with the keys"),
        ((_X, 3), {"flag": True, "bias": _B, "c": 1}, TypeError, "with the keys"),
        ((_X[:1], 3), {"flag": True, "bias": _B}, ValueError, r"shape \[1, 3\].*float32\[2, 3\]"),
        ((_X.astype(float), 3), {"flag": True, "bias": _B}, TypeError, "of dtype float64"),
        (([1.0], 3), {"flag": True, "bias": _B}, TypeError, r"args\[0\] is list"),
    ],
)
def test_wrong_calls(args, kwargs, error, message, scaled):
    module, others = scaled

    def tensors(value):
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    with pytest.raises(error, match=message):
        others(*args, **kwargs)
    with pytest.raises(error, match=message):
        module(*map(tensors, args), **{k: tensors(v) for k, v in kwargs.items()})


def test_keywords_in_another_order(scaled):
    module, others = scaled
    x, bias = torch.from_numpy(_X), torch.from_numpy(_B)
    torch.testing.assert_close(module(x, 3, bias=bias, flag=True), x * 3 + bias)
    assert (others(_X, 3, bias=_B, flag=True) == _X * 3 + _B).all()


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: x.nonzero(), "aten.nonzero.*cannot be exported: the size .* depends on values"),
        (lambda x: x * x.sum().item(), "_local_scalar_dense.*depends on values"),
    ],
)
@pytest.mark.slow
def test_what_only_torch_runs_is_refused(f, message):
    with pytest.raises(xla_dynamo.UnsupportedOperator, match=message):
        exported(Function(f), torch.randn(3))


def test_unknown_platform():
    options = StableHLOExportOptions(platform="abacus")
    with pytest.raises(xla_dynamo.OptionError, match="platform must be one of"):
        exported(Function(lambda x: x + 1), torch.randn(3), options=options)


def test_options_may_be_set():
    options = StableHLOExportOptions()
    options.custom_ops_allowed_in_graph.add("mylib")
    options.platform = "cpu"
    assert StableHLOExportOptions().custom_ops_allowed_in_graph == set()
    with pytest.raises(AttributeError, match="no option 'platfrom', but platform, custom_ops"):
        options.platfrom = "cpu"


class Conjugates(torch.nn.Module):
    """Buffers whose elements are not those in their memory, beside those in it; and a number."""

    def __init__(self):
        super().__init__()
        base = torch.randn(3, dtype=torch.complex128)
        self.register_buffer("plain", base)
        self.register_buffer("conjugate", base.conj())
        self.register_buffer("imaginary", base.imag)
        self.register_buffer("negative", base.conj().imag)
        self.register_buffer("number", torch.tensor(1 + 2j, dtype=torch.complex128))

    def forward(self, x):
        parts = [self.plain, self.conjugate, self.imaginary, self.negative, self.number]
        return tuple(part * x for part in parts)


def test_conjugated_and_negated_tensors(tmp_path):
    model, x = Conjugates(), torch.randn(3, dtype=torch.complex128)
    module = exported(model, x)
    module.save(tmp_path / "program")
    expected = model(x)
    for found in (module(x), StableHLOGraphModule.load(tmp_path / "program")(x)):
        torch.testing.assert_close(found, expected)
    others = NumpyGraphModule.load(tmp_path / "program")(x.numpy())
    for array, tensor in zip(others, expected, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-6)
    torch.testing.assert_close(module(x.conj()), model(x.conj()))
    changing = exported(Function(lambda x: x.mul_(2j).sum()), x.clone())
    y = x.clone()
    torch.testing.assert_close(changing(y.conj()), (x.conj() * 2j).sum())
    torch.testing.assert_close(y, (x.conj() * 2j).conj())


def test_constants_are_compared_as_they_are():
    x = torch.ones(2)
    module = exported(Function(lambda x, a, b: torch.full((2,), a) + x * 0), x, 0.0, float("nan"))
    torch.testing.assert_close(module(x, 0.0, float("nan")), torch.zeros(2))
    with pytest.raises(ValueError, match=r"is -0\.0, and the program was exported for 0\.0"):
        module(x, -0.0, float("nan"))


def test_arrays_that_cannot_be_changed(tmp_path):
    """Nothing has changed when the error is raised."""
    module = exported(Function(lambda x, y: (x.add_(1), y.add_(1))[0].sum()), torch.ones(2),
                      torch.ones(()))  # fmt: skip
    module.save(tmp_path / "program")
    loaded = NumpyGraphModule.load(tmp_path / "program")
    x, fixed = np.ones(2, np.float32), np.ones((), np.float32)
    fixed.flags.writeable = False
    for y in (fixed, np.float32(1)):
        with pytest.raises(ValueError, match=r"args\[1\] cannot be written into"):
            loaded(x, y)
    np.testing.assert_array_equal(x, np.ones(2))


def test_threads_change_buffers_one_after_another():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x + self.count

    module = exported(Counter(), torch.ones(2))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: module(torch.ones(2)), range(100)))
    assert module.weights["count"] == 100
