"""Outlined functions: weights that are converted as rows, updates in place."""

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.lowerings.passes import outline
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.programs import targets

has_onednn = pytest.mark.skipif(
    "onednn_bfloat16" not in libraries_of("cpu"), reason="convolutions are XLA's own here"
)


@pytest.fixture(autouse=True)
def large(cold, monkeypatch):
    """However few elements there are, they are enough."""
    monkeypatch.setattr(outline, "FEWEST", 1)


def convolutions(x, first, second):
    with torch.autocast("cpu", torch.bfloat16):
        return F.conv2d(F.conv2d(x, first, padding=1), second, groups=2)


def inputs():
    return (
        torch.randn(2, 16, 30, 30),
        torch.randn(32, 16, 3, 3) / 12,
        torch.randn(24, 16, 1, 1) / 4,
    )


def as_rows(f, *args):
    """The sizes of the arrays that are converted as rows."""
    (built,) = xla_dynamo.explain(f)(*args).executables
    lines = [line for line in built.stablehlo.splitlines() if "call @convert" in line]
    assert all("inlineable" in line for line in lines)
    return [line.split("-> tensor<")[1].split("xbf16")[0] for line in lines]


@has_onednn
def test_weights_are_converted_as_rows(monkeypatch):
    """Where they are no weights of plans, which take them as they are."""
    known = libraries_of("cpu") - {ONEDNN_PLANS}
    monkeypatch.setattr(targets, "libraries_of", lambda name: known)
    given = inputs()
    assert as_rows(convolutions, *given) == ["32x144", "24x16"]
    with torch.no_grad():
        result = compiled(convolutions)(*given)
    expected = convolutions(*(t.double() for t in given))
    torch.testing.assert_close(result.double(), expected.double(), rtol=2e-2, atol=2e-2)


def test_what_others_use_is_left_alone():
    x, first, second = inputs()

    def f(x, first, second):
        return first.bfloat16() * 2, second.bfloat16()

    assert not as_rows(f, x, first, second)


@has_onednn
def test_gradients():
    given = [t.requires_grad_() for t in inputs()]
    run = compiled(convolutions)
    ours = torch.autograd.grad(run(*given).float().square().sum(), given)
    exact = torch.autograd.grad(convolutions(*given).float().square().sum(), given)
    for a, e in zip(ours, exact, strict=True):
        assert (a - e).norm() < 0.03 * e.norm()


@has_onednn
def test_frozen_weights_may_change():
    model = torch.nn.Conv2d(16, 32, 3).eval()
    x = torch.randn(2, 16, 30, 30)
    run = compiled(model, freeze=True)
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert_matches_eager(run, x, rtol=2e-2, atol=2e-2)
            model.weight.mul_(2)


def attend(keys, position, query, new):
    keys.index_copy_(2, position, new)
    return F.scaled_dot_product_attention(query, keys, keys)


def cache():
    return (
        torch.randn(1, 4, 128, 64),
        torch.tensor([3]),
        torch.randn(1, 4, 1, 64),
        torch.randn(1, 4, 1, 64),
    )


def test_a_cache_is_updated_once_and_in_place():
    with torch.no_grad():
        (built,) = xla_dynamo.explain(attend)(*cache()).executables
    assert built.stablehlo.count("stablehlo.dynamic_update_slice") == 1
    assert built.stablehlo.count("call @dynamic_update_slice") == 1
    whole = "f32[1,4,128,64]"
    copies = [line for line in built.hlo.splitlines() if f"{whole}{{3,2,1,0}} copy(" in line]
    assert not copies


def test_a_cache_has_eagers_numbers():
    keys, place, *new = cache()
    run, address = compiled(attend), keys.data_ptr()
    with torch.no_grad():
        for position in (3, 4, 127, 0, 3):
            assert_matches_eager(run, keys, place.fill_(position), *new)
    assert keys.data_ptr() == address


def test_an_update_that_the_caller_keeps_apart():
    """Neither argument is donated: the first is read afterwards, the second is the update."""

    def f(x, part):
        y = x.clone()
        y[:, 2:3] = part
        return y.sum(), y, x * 2

    x, part = torch.randn(64, 9, 70), torch.randn(64, 1, 70)
    assert_matches_eager(compiled(f), x, part)


WRITES = {
    "rows before": lambda w: (slice(1, None), w[:-1].clone()),
    "rows before, computed": lambda w: (slice(1, None), w[:-1] + 1),
    "sums of rows": lambda w: (slice(1, None), w[:-1].cumsum(0)),
    "another part": lambda w: ((slice(1, None), slice(1, None)), w[:-1, :-1].clone()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("of_computed", [False, True])
def test_parts_that_are_computed_from_what_they_overwrite(write, of_computed):
    """XLA:CPU would read elements of a reshape that it has overwritten."""

    def f(x):
        whole = (x.view(6, 4) * 2).sin() if of_computed else x.view(6, 4).clone()
        place, part = write(whole)
        whole[place] = part
        return whole

    assert_matches_eager(compiled(f), torch.randn(24))
