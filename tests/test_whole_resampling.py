"""Resampling reaches the table as one operator, and torch has its own kernels again afterwards."""

import threading

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.decompositions.refused_calls import early_calls_are_refused
from xla_dynamo.decompositions.whole_resampling import _OPERATORS, resampling_is_whole

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


def test_torch_has_its_kernels_again(cold):
    ops = [op for name in _OPERATORS for op in overloads(name)]
    before = kernels(ops)
    compiled(lambda x: F.interpolate(x, size=(7, 7), mode="bilinear"))(image(2))
    assert kernels(ops) == before
    with resampling_is_whole():
        assert kernels(ops) != before
        with resampling_is_whole():
            pass
        assert kernels(ops) != before
    assert kernels(ops) == before


def test_torch_has_its_kernels_again_after_an_error():
    ops = [op for name in _OPERATORS for op in overloads(name)]
    before = kernels(ops)
    with pytest.raises(KeyError), resampling_is_whole():
        raise KeyError
    assert kernels(ops) == before


def test_torch_has_its_kernels_again_when_blocks_of_threads_overlap():
    """The first to begin is the first to end: it must not put back what the second then leaves."""
    ops = [op for name in _OPERATORS for op in overloads(name)]
    before = kernels(ops)
    first, second = resampling_is_whole(), resampling_is_whole()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert kernels(ops) != before
    second.__exit__(None, None, None)
    assert kernels(ops) == before


def test_torch_has_its_kernels_again_when_threads_trace_often():
    ops = [op for name in _OPERATORS for op in overloads(name)]
    before = kernels(ops)
    failures = []

    def often():
        for _ in range(200):
            try:
                with resampling_is_whole(), early_calls_are_refused():
                    pass
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert kernels(ops) == before


def kernels(ops):
    return [dict(op.py_kernels) for op in ops]


def overloads(name):
    packet = getattr(aten, name)
    return packet.default, packet.vec, getattr(aten, f"{name}_backward").default


def test_torch_decomposes_these_by_its_python_dispatcher():
    """If not, `whole_resampling` has nothing to do any more."""
    key = torch._C.DispatchKey.Autograd
    assert all(key in getattr(aten, name).vec.py_kernels for name in _OPERATORS)
