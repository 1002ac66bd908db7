"""Inputs and outputs that have broken a backend before: lazy bits, offsets, no memory, forks."""

import multiprocessing
import subprocess
import sys

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

from tests.compiling import compiled, compiled_anew
from xla_dynamo import errors


@pytest.mark.parametrize("lazy", [torch.conj, lambda t: t.conj().mT.mT, torch.resolve_conj])
def test_conjugated_tangent(lazy):
    value = torch.randn(3, 3, dtype=torch.complex64)
    tangent = torch.randn(3, 3, dtype=torch.complex64)
    grads = []
    for f in (lambda x: x * x, compiled(lambda x: x * x)):
        x = value.clone().requires_grad_()
        y = f(x)
        for _ in range(3):  # the same memory, with and without the bit
            (grad,) = torch.autograd.grad(y, x, tangent, retain_graph=True)
            (lazily,) = torch.autograd.grad(y, x, lazy(tangent), retain_graph=True)
        grads.append((grad, lazily))
    torch.testing.assert_close(grads[1], grads[0])


def test_negated_tangent():
    value, source = torch.randn(3), torch.randn(3, dtype=torch.complex64)
    tangent = source.conj().imag
    assert tangent.is_neg()
    x = value.clone().requires_grad_()
    compiled(lambda x: x * x)(x).backward(tangent)
    torch.testing.assert_close(x.grad, 2 * value * tangent)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: ((y := x * 1.5).conj(), y),
        lambda x: ((y := x * 1.5).mH, y.mT),
        lambda x: ((y := x * 1.5).conj(), y.conj()[0]),
        lambda x: ((y := torch.view_as_real(x) * 1.5), torch.view_as_complex(y).conj().imag),
        lambda x: ((y := x * 1.5), torch.view_as_real(y), y.real, y.imag),
    ],
)
def test_outputs_that_share_memory_under_another_meaning(f):
    x = torch.randn(4, 2, dtype=torch.complex64)
    for expected, actual in zip(f(x), compiled(f)(x), strict=True):
        torch.testing.assert_close(actual.resolve_conj().resolve_neg(), expected.resolve_conj())


def test_as_strided_from_the_start_of_the_storage():
    """Dynamo does not guard storage offsets: right, or an error, but never another's memory."""
    base = torch.arange(12.0)
    f = compiled(lambda x: x.as_strided((2,), (1,), 4) + 1)
    assert f(base[4:8]).tolist() == [5, 6]
    assert f(base[2:6].clone()[:4].new_tensor(range(6))[2:]).tolist() == [5, 6]
    with pytest.raises(errors.UnsupportedOperator, match="reaches memory"):
        f(base[:8][:4])


def test_forward_mode_tangent_is_refused():
    f = compiled(lambda x: x.sin())
    f(torch.ones(3))
    with (
        forward_ad.dual_level(),
        pytest.raises(errors.ExecutionError, match="forward-mode"),
    ):
        f(forward_ad.make_dual(torch.ones(3), torch.ones(3)))


@pytest.mark.filterwarnings("ignore:.*data pointer of FakeTensor:UserWarning")
def test_tensors_without_memory():
    f = compiled(lambda x: x.sin() * x)
    x = torch.ones(3)
    f(x)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        with pytest.raises(errors.UnsupportedTensor, match="no memory"):
            f(fake)
    x.untyped_storage().resize_(0)
    with pytest.raises(errors.UnsupportedTensor, match="no memory"):
        f(x)


@pytest.mark.parametrize("settings", [{}, {"dynamic": True}], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_memory_that_was_freed_before_the_first_call(needs_gradient, settings):
    """Torch reads it where a tensor is padded, or copied for gradients of gradients."""
    f = torch.compile(lambda x: x.sin() * x, backend="openxla", **settings)
    x = torch.ones(3, requires_grad=needs_gradient)
    x.detach().untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(errors.UnsupportedTensor, match="no memory"):
            f(x)


def test_zero_tensors():
    zero = torch._efficientzerotensor((3,))
    torch.testing.assert_close(compiled(lambda x: x.cos())(zero), torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    compiled(lambda x: x * 2)(x).backward(zero)
    torch.testing.assert_close(x.grad, torch.zeros(3))


def test_random_graph_under_another_default_device():
    f, x = compiled(lambda x: torch.rand_like(x)), torch.zeros(4)
    f(x)
    with torch.device("meta"):
        assert f(x).device.type == "cpu"


def _call_in_child(f, x, queue):
    try:
        f(x)
    except Exception as error:
        queue.put((type(error).__name__, str(error)))


# jax, Python 3.12 and torch all warn of what is tested here.
@pytest.mark.filterwarnings("ignore")
def test_forked_child_gets_an_error_and_does_not_hang():
    f, x = compiled(lambda x: (x @ x).sin()), torch.randn(200, 200)
    f(x)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_call_in_child, args=(f, x, queue))
    child.start()
    name, message = queue.get(timeout=60)
    child.join(60)
    assert name == "ExecutionError"
    assert "spawn" in message


def test_forked_child_ends_as_others_do():
    program = """if True:
        import os, sys, torch
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        with torch.no_grad():
            torch.compile(net, backend="openxla")(torch.randn(2, 3, 9, 9))
        child = os.fork()
        if not child:
            sys.exit(7)
        assert os.waitpid(child, 0)[1] == 7 << 8
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


@pytest.mark.filterwarnings("ignore")
def test_compiled_optimizer_step():
    layer = torch.nn.Linear(3, 2)
    twin = torch.nn.Linear(3, 2)
    twin.load_state_dict(layer.state_dict())
    for module, compile_ in ((layer, compiled), (twin, lambda f, **_: f)):
        optimizer = torch.optim.AdamW(module.parameters())
        step = compile_(lambda optimizer=optimizer: optimizer.step(), fullgraph=False)
        for _ in range(3):
            module(torch.ones(1, 3)).square().sum().backward()
            step()
    torch.testing.assert_close(layer.weight, twin.weight)


@pytest.mark.parametrize(
    "f",
    [
        torch.max,
        torch.min,
        lambda x: x.max(0),
        lambda x: x.min(0),
        lambda x: x.median(0),
        lambda x: x.nanmedian(-2),
        lambda x: x.mode(0),
    ],
)
def test_nothing_has_no_extremum(f):
    x = torch.empty(0, 3)
    with pytest.raises((IndexError, RuntimeError), match=r"non-zero size|to be specified"):
        f(x)
    with pytest.raises(Exception, match=r"non-zero size|to be specified"):
        compiled(f)(x)


def test_empty_results_with_any_strides():
    x = torch.empty_strided((0, 0, 2), (8, 8, 2))
    actual = compiled_anew(lambda x: x.expand(2, *x.shape))(x)
    assert actual.shape == (2, 0, 0, 2)


def tail(x):
    return x[x.shape[0] // 2 :]


def changed_tail(x):
    y = x[x.shape[0] // 2 :]
    y.mul_(2)
    return y


@pytest.mark.parametrize("fn", [lambda x: x.chunk(2)[1], tail, changed_tail, lambda x: tail(x).t()])
def test_views_of_inputs_at_symbolic_places(fn):
    run = compiled_anew(fn, dynamic=True)
    for n in (8, 6):
        x, y = torch.arange(float(n)), torch.arange(float(n))
        actual, expected = run(x), fn(y)
        torch.testing.assert_close(actual, expected)
        assert actual.storage_offset() == expected.storage_offset()
        actual.add_(1)
        expected.add_(1)
        torch.testing.assert_close(x, y)


def test_operators_on_nothing():
    """What has no elements is known by its type: eager too looks no further."""
    nothing = torch.empty(0, 1, dtype=torch.complex64)
    result = compiled(lambda x: x.atan().amax(-1))(nothing)
    assert result.shape == (0,)
    assert result.dtype is torch.complex64


@pytest.mark.parametrize("f", [lambda mask: mask - True, lambda mask: True - mask])
def test_a_mask_and_a_number_are_not_subtracted(f):
    mask = torch.tensor([True, False])
    with pytest.raises(RuntimeError, match="xor"):
        f(mask)
    with pytest.raises(BackendCompilerFailed, match=r"(?s:xor.*)test_hard_inputs\.py") as raised:
        compiled(f)(mask)
    assert isinstance(raised.value.inner_exception, errors.UnsupportedOperator)
