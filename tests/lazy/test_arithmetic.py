"""Factories, arithmetic, random numbers and dtypes on the lazy device, as on the CPU."""

import pytest
import torch
from torch.utils import _pytree as pytree

import xla_dynamo
from tests.comparison import compare
from xla_dynamo.runtime.metrics import counter_value

XLA = xla_dynamo.device()


def assert_same_as_on_cpu(fn, *tensors):
    """Run a function of tensors on the CPU and on the device, and compare."""
    expected = fn(*tensors)
    actual = fn(*(t.to(XLA) for t in tensors))
    actual = pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), actual)
    compare(expected, actual, values=True, strides=False)


def test_the_device():
    assert xla_dynamo.device() == torch.device("xla", 0) == torch.device("xla:0")
    assert torch.zeros(2, device="xla").device == xla_dynamo.device()
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        xla_dynamo.device(1)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.zeros(2, 3, device=device),
        lambda device: torch.ones(2, dtype=torch.int64, device=device),
        lambda device: torch.full((2, 2), 7.5, device=device),
        lambda device: torch.arange(0, 10, 3, device=device),
        lambda device: torch.linspace(0, 1, 5, device=device),
        lambda device: torch.eye(3, dtype=torch.bool, device=device),
        lambda device: torch.tensor([[1.5, 2], [3, 4]], device=device),
        lambda device: torch.tensor(True, device=device),
        lambda device: torch.empty(0, 3, device=device),
        lambda device: torch.scalar_tensor(3, dtype=torch.bfloat16, device=device),
        lambda device: torch.tril(torch.ones(3, 3, device=device)),
    ],
)
def test_factories(make):
    made = make(XLA)
    assert made.device == XLA
    compare(make("cpu"), made.cpu(), values=True)


def test_like_and_new():
    x = torch.arange(6.0, device=XLA).view(2, 3).t()
    for made in (torch.zeros_like(x), x.new_ones(3, 2), torch.full_like(x, 2), x.new_tensor([1])):
        assert made.device == XLA
    assert torch.zeros_like(x).stride() == torch.zeros_like(x.cpu()).stride() == (1, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_arithmetic(dtype):
    x, y = torch.arange(12).reshape(3, 4).to(dtype), torch.arange(1, 5).to(dtype)
    assert_same_as_on_cpu(
        lambda x, y: (x + y, x - 3, 2 * x, x / y, x // y, x % y, -x, x**2, x > y), x, y
    )
    assert_same_as_on_cpu(
        lambda x, y: (x.sum(0), x.max(1), x.t() @ x, x.argmin(), torch.cat([x, x]), x[1]), x, y
    )


def test_type_promotion_with_numbers():
    i, h = torch.arange(4), torch.ones(4, dtype=torch.bfloat16)
    assert_same_as_on_cpu(lambda h: h.float().polygamma_(1), h)
    assert_same_as_on_cpu(
        lambda i, h: (i + 1.5, i / 3, h + 1, h * i, i + True, h + torch.tensor(2.0)), i, h
    )


def test_numbers_that_change_compile_nothing_new():
    x = torch.linspace(0, 1, 8, device=XLA)
    xla_dynamo.sync()
    found = []
    for rate in (0.3, 0.25, 0.125, 1e-5):
        torch.testing.assert_close((x * rate + rate).cpu(), x.cpu() * rate + rate)
        found.append(counter_value("UncachedCompile"))
    assert len(set(found)) == 1


def test_an_operator_without_a_functional_form():
    assert_same_as_on_cpu(lambda x: x.clone().polygamma_(1), torch.tensor([0.5, 2.0]))


def test_complex_numbers():
    z = torch.view_as_complex(torch.arange(8.0).reshape(4, 2))
    assert_same_as_on_cpu(lambda z: (z * z.conj(), z.abs(), z.conj().imag, z.real + 1), z)


def test_results_whose_sizes_depend_on_values():
    x = torch.tensor([0.0, 1.0, 0.0, 2.0])
    assert_same_as_on_cpu(
        lambda x: (x.nonzero(), x[x > 0], torch.unique(x), x.repeat_interleave(2)), x
    )


def test_results_that_share_no_memory_with_operands():
    x = torch.tensor([3.0, 1.0, 2.0], device=XLA)
    y = torch.unique(x)
    y += 1
    x += 10
    assert (x.tolist(), y.tolist()) == ([13.0, 11.0, 12.0], [2.0, 3.0, 4.0])


def test_out_arguments_are_written_and_resized():
    x = torch.arange(4.0)

    def fn(x):
        whole, empty = torch.zeros_like(x), x.new_empty(0)
        torch.add(x, 1, out=whole)
        torch.mul(x, 2, out=empty)
        return whole, empty

    assert_same_as_on_cpu(fn, x)


def test_wrong_arguments_raise_what_torch_raises():
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError) as expected:
        x @ x
    with pytest.raises(RuntimeError) as actual:
        x.to(XLA) @ x.to(XLA)
    assert str(actual.value) == str(expected.value)


def test_mixed_devices_are_an_error_in_torchs_words():
    x = torch.ones(2, device=XLA)
    words = "Expected all tensors to be on the same device, but found at least two devices, xla:0"
    with pytest.raises(RuntimeError, match=words):
        x + torch.ones(2)
    assert (x + torch.tensor(2.0)).tolist() == [3.0, 3.0]  # a number of the host may mix


def test_manual_seed_repeats():
    def draw():
        return torch.randn(4, device=XLA), torch.rand(3, device=XLA), torch.randperm(5, device=XLA)

    torch.manual_seed(3)
    first = [t.cpu() for t in draw()]
    second = [t.cpu() for t in draw()]
    torch.manual_seed(3)
    again = [t.cpu() for t in draw()]
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], second[0])


def test_random_state_is_kept_and_put_back():
    state = torch.xla.get_rng_state()
    first = torch.randn(4, device=XLA).tolist()
    torch.xla.set_rng_state(state)
    assert torch.randn(4, device=XLA).tolist() == first


def test_a_generator_draws_its_own_numbers():
    def draw(device):
        generator = torch.Generator().manual_seed(5)
        made = torch.randn(4, generator=generator, device=device)
        return made, torch.zeros(3, device=device).uniform_(generator=generator)

    compare(draw("cpu"), tuple(t.cpu() for t in draw(XLA)), values=True)


def test_dropout_scales_what_it_keeps():
    x = torch.ones(1000, device=XLA)
    kept = torch.nn.functional.dropout(x, 0.25, training=True).cpu()
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert 0.65 < (kept > 0).float().mean() < 0.85
    assert torch.equal(torch.nn.functional.dropout(x, 0.25, training=False).cpu(), x.cpu())


def test_the_default_dtype_is_that_of_the_call():
    half = torch.arange(3, device="xla") / 2
    torch.set_default_dtype(torch.float64)
    try:
        wide = torch.arange(3, device="xla") / 2
        ones = torch.ones(2, device="xla")
        assert wide.dtype is ones.dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    narrow = torch.arange(3, device="xla") / 2
    assert half.dtype is narrow.dtype is torch.float32
    assert half.tolist() == wide.tolist() == narrow.tolist() == [0, 0.5, 1]
    assert (wide * 2.5).cpu().dtype is torch.float64
