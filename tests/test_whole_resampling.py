"""Resampling reaches the table as one operator, and other traces take it apart as ever."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.decompositions.refused_calls import early_calls_are_refused
from xla_dynamo.decompositions.whole_resampling import _OPERATORS, resampling_is_whole
from xla_dynamo.torch_private import FakeTensorMode, enable_python_dispatcher

aten = torch.ops.aten
MODES = {
    "nearest": ("upsample_nearest", (1, 2, 3)),
    "nearest-exact": ("_upsample_nearest_exact", (1, 2, 3)),
    "linear": ("upsample_linear", (1,)),
    "bilinear": ("upsample_bilinear", (2,)),
    "trilinear": ("upsample_trilinear", (3,)),
    "bicubic": ("upsample_bicubic", (2,)),
}
CASES = [(mode, rank) for mode, (_, ranks) in MODES.items() for rank in ranks]


def image(rank, size=5, **options):
    torch.manual_seed(0)
    return torch.randn(2, 3, *range(size, size + rank), **options)


@pytest.mark.every(3)
@pytest.mark.parametrize("sizes", [{"scale_factor": 1.7}, {"size": 7}], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("mode", "rank"), CASES)
def test_one_operator_and_one_for_its_gradient(cold, mode, rank, dynamic, sizes):
    def resize(x):
        return F.interpolate(x, mode=mode, **sizes)

    explained = xla_dynamo.explain(resize, dynamic=dynamic)
    for size in (5, 8):
        x = image(rank, size, requires_grad=True)
        expected = resize(x)
        weights = torch.randn_like(expected)
        (gradient,) = torch.autograd.grad((expected * weights).sum(), x)
        actual = explained(x).result
        torch.testing.assert_close(actual, expected)
        (actual,) = torch.autograd.grad((actual * weights).sum(), x)
        torch.testing.assert_close(actual, gradient)
        forward, backward = (
            [o.name for o in graph.operators if o.name.startswith("aten.")]
            for graph in explained.report.graphs[:2]
        )
        name = f"aten.{MODES[mode][0]}{rank}d"
        assert forward == [f"{name}.default"]
        assert backward == [f"{name}_backward.default"]
    if dynamic:
        assert len(explained.report.graphs) == 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_channels_stay_last_in_memory(cold, mode, dynamic):
    x = image(2).contiguous(memory_format=torch.channels_last).requires_grad_()
    run = compiled(lambda x: F.interpolate(x, scale_factor=2.0, mode=mode), dynamic=dynamic)
    assert_matches_eager(run, x, gradient_strides=True)


@pytest.mark.every(5)
@pytest.mark.parametrize("sizes", [{"scale_factor": 1.7}, {"scale_factor": 0.6}, {"size": (1, 12)}])
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_eagers(cold, mode, align_corners, channels, sizes):
    def resize(x):
        return F.interpolate(x, mode=mode, align_corners=align_corners, **sizes)

    torch.manual_seed(0)
    x = torch.randint(0, 256, (2, channels, 6, 7), dtype=torch.uint8)
    run = compiled(resize)
    for image in (x, x.contiguous(memory_format=torch.channels_last), x[:, :, ::5, ::6]):
        assert_matches_eager(run, image, rtol=0, atol=0)


def test_direct_calls_under_autograd(cold):
    def resize(x):
        return aten.upsample_bicubic2d.default(x, [6, 9], True) + aten.upsample_nearest2d.vec(
            x, None, [6 / 5, 9 / 6]
        )

    x = image(2, requires_grad=True)
    run = compiled(resize)
    assert_matches_eager(run, x)


def test_torchs_tables_stay_as_they_are(cold):
    """Our kernels are there once for all, and call those of torch in other threads."""
    x = image(2)
    with resampling_is_whole(), early_calls_are_refused():
        pass
    ops = [op for name in _OPERATORS for op in overloads(name)]
    before = kernels(ops)
    compiled(lambda x: F.interpolate(x, size=(7, 7), mode="bilinear"))(x)
    with resampling_is_whole():
        assert kernels(ops) == before
    assert kernels(ops) == before


def operators_of(fn, *args):
    """The operators of a trace by torch's Python dispatcher, as other backends trace."""
    with FakeTensorMode() as mode, enable_python_dispatcher():
        gm = make_fx(fn)(*map(mode.from_tensor, args))
    return {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}


def test_other_traces_take_them_apart():
    def resize(x):
        return F.interpolate(x, size=(7, 7), mode="bicubic")

    x = image(2, requires_grad=True)
    plain = operators_of(resize, x)
    assert not any("upsample" in name for name in plain)
    with resampling_is_whole():
        assert operators_of(resize, x) == {"aten.upsample_bicubic2d.default"}
        with pytest.raises(KeyError), resampling_is_whole():
            raise KeyError
        assert operators_of(resize, x) == {"aten.upsample_bicubic2d.default"}
        with ThreadPoolExecutor(1) as other:
            assert other.submit(operators_of, resize, x).result() == plain
    assert operators_of(resize, x) == plain


def test_tables_that_somebody_puts_back():
    """As torch's exports do, which save them: ours come again with the next trace."""
    op = aten.upsample_bilinear2d.vec
    with resampling_is_whole():
        ours = dict(op.py_kernels)
    try:
        op.py_kernels.update({key: kernel.__wrapped__ for key, kernel in ours.items()
                              if hasattr(kernel, "switch")})  # fmt: skip
        op._dispatch_cache.clear()
        with resampling_is_whole():
            names = operators_of(lambda x: F.interpolate(x, size=(7, 7), mode="bilinear"), image(2))
    finally:
        op.py_kernels.update(ours)
        op._dispatch_cache.clear()
    assert names == {"aten.upsample_bilinear2d.default"}


def test_gradients_of_dynamic_sizes_have_a_shape():
    grad, sizes = torch.empty(2, 3, 7, 7, device="meta"), ([7, 7], [2, 3, 5, 5])
    backward = aten.upsample_bilinear2d_backward.default
    with enable_python_dispatcher():
        assert backward(grad, *sizes, False).shape == (2, 3, 5, 5)
        with resampling_is_whole():
            assert backward(grad, *sizes, False).shape == (2, 3, 5, 5)


def kernels(ops):
    return [dict(op.py_kernels) for op in ops]


def overloads(name):
    packet = getattr(aten, name)
    return packet.default, packet.vec, getattr(aten, f"{name}_backward").default


def test_torch_decomposes_these_by_its_python_dispatcher():
    """If not, `whole_resampling` has nothing to do any more."""
    key = torch._C.DispatchKey.Autograd
    assert all(key in getattr(aten, name).vec.py_kernels for name in _OPERATORS)
