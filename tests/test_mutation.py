"""Mutated inputs get their new value in their own memory. Warm: nothing is cached on disk."""

import pytest
import torch

from tests.compiling import assert_matches_eager, compiled, compiled_anew
from xla_dynamo.memory import donated_inputs, overlaps
from xla_dynamo.memory.overlaps import Apartness
from xla_dynamo.runtime.buffers import donates_in_place
from xla_dynamo.runtime.clients import placement_at


@pytest.fixture
def copies(monkeypatch):
    """The values that were copied back."""
    copied = []
    monkeypatch.setattr(donated_inputs, "copy_back", lambda *args: copied.append(args))
    return copied


def test_the_platform_donates_in_place():
    assert donates_in_place(placement_at("cpu", 0).device), "jaxlib changed: see runtime/buffers.py"


def test_a_cache_is_updated_in_place(copies):
    def update(cache, new, place):
        cache[:, place : place + 1] = new
        return cache.sum()

    cache, new = torch.zeros(4, 16, 8), torch.randn(4, 1, 8)
    address, run = cache.data_ptr(), compiled_anew(update)
    for place in (3, 5):
        run(cache, new, place)
    assert not copies
    assert cache.data_ptr() == address
    assert torch.equal(cache[:, 3:4], new)
    assert torch.equal(cache[:, 5:6], new)
    assert cache.abs().sum() == pytest.approx(2 * new.abs().sum().item(), rel=1e-5)


def test_results_and_changes():
    assert_matches_eager(compiled_anew(lambda x: x.add_(1)), torch.randn(5), calls=3)
    assert_matches_eager(
        compiled_anew(lambda x, y: (x.mul_(y), y.sub_(x))[0] * 2),
        torch.randn(5),
        torch.randn(5),
        calls=3,
    )
    assert_matches_eager(
        compiled_anew(lambda x, y: x.copy_(y)), torch.randn(5, 3), torch.randn(3), calls=3
    )
    assert_matches_eager(
        compiled_anew(lambda x: (x.clone(), x.zero_(), x + 1)), torch.randn(5), calls=3
    )
    assert_matches_eager(
        compiled_anew(lambda x, n: x.add_(n)), torch.randn(5, dtype=torch.float64), 3, calls=3
    )
    assert_matches_eager(compiled_anew(lambda x: x.fill_(2)), torch.empty(0, 3), calls=3)
    assert_matches_eager(compiled_anew(lambda x: x.exp_()), torch.tensor(1.0), calls=3)


def test_values_change_places():
    def swap(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    assert_matches_eager(compiled_anew(swap), torch.randn(1000), torch.randn(1000), calls=3)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.complex64]
)
def test_dtypes(dtype, copies):
    x = torch.ones(70, dtype=dtype)
    run = compiled_anew(lambda x: x.logical_not_())
    run(x)
    assert not x.to(torch.bool).any()
    assert not copies


def test_other_orders_in_memory(copies):
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    expected = x * 2 + 1
    compiled_anew(lambda x: x.mul_(2).add_(1))(x)
    assert not copies
    torch.testing.assert_close(x, expected)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_gaps_in_memory():
    base = torch.randn(6, 8)
    expected = base.clone()
    compiled_anew(lambda x: x.mul_(2))(base[:, ::2])
    expected[:, ::2] *= 2
    torch.testing.assert_close(base, expected)


def test_misaligned_memory():
    base = torch.arange(100.0)
    run = compiled_anew(lambda x: x.mul_(2))
    for _ in range(3):
        run(base[1:50])
    assert base[:3].tolist() == [0, 8, 16]
    assert base[50] == 50


def test_lazy_conjugates():
    x = torch.randn(70, dtype=torch.complex64)
    expected = x.clone()
    run = compiled_anew(lambda x: x.mul_(2 + 1j))
    run(x.conj())
    expected.conj().mul_(2 + 1j)
    torch.testing.assert_close(x, expected)


def test_overlap_is_seen():
    def apart(donated, read):
        return Apartness(gaps_count=True).holds(donated, read)

    x = torch.zeros(100)
    assert apart([x[:50]], [x[50:]])
    assert apart([x[50:]], [x[:50], x[:50], x[10:20]])
    assert not apart([x[:50]], [x[49:]])
    assert not apart([x[10:20]], [x])
    assert not apart([x], [x[10:20]])
    assert not apart([x, x[3:5]], [])
    assert apart([x[3:3]], [x])


def test_only_what_has_moved_is_looked_at(monkeypatch):
    """Before, between, behind and inside of what is changed, as sorted by where it ends."""
    x, looked = torch.zeros(100), []
    monkeypatch.setattr(overlaps, "are_apart", lambda *_, **__: looked.append(1) or False)
    whole, apart = overlaps.are_apart, Apartness()
    monkeypatch.undo()
    changed = [x[20:40], x[60:80], x[22:30:3]]
    assert not Apartness().holds(changed, [x[:5]])  # the last one is inside of the first
    changed.pop()
    assert apart.holds(changed, [x[:5], x[5:8]])
    monkeypatch.setattr(overlaps, "are_apart", whole)
    for first in (0, 10, 15, 40, 55, 80, 95):
        assert apart.holds(changed, [x[first : first + 5], x[5:8]])
        assert apart.holds(changed, [x[first : first + 5], x[80:80]])
    assert not looked
    for first in (16, 20, 30, 39, 56, 60, 79):
        assert not apart.holds(changed, [x[first : first + 5], x[5:8]])
    assert len(looked) == 7
    assert not apart.holds([x[21:40], x[60:80]], [x[:5], x[5:8]])
    assert len(looked) == 8


def test_the_same_tensor_twice():
    def f(x, y):
        x.add_(1)
        return y * 2

    x, a = torch.randn(64), torch.randn(64)
    a.copy_(x)
    run = compiled_anew(f)
    torch.testing.assert_close(run(x, x), f(a, a))
    torch.testing.assert_close(x, a)
    b, c = torch.randn(64), torch.randn(64)
    torch.testing.assert_close(run(b, c), f(b.clone(), c))


def test_views_of_one_input():
    def f(x):
        x[0].add_(1)
        x.view(-1)[3:].mul_(2)
        return x.t()

    assert_matches_eager(compiled_anew(f), torch.randn(4, 5), calls=3)


def test_batch_norm_statistics_stay_where_they_are():
    torch.manual_seed(0)
    ours, eager = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)
    x = torch.randn(8, 4, 5, 5)
    addresses = [b.data_ptr() for b in ours.buffers()]
    run = compiled_anew(ours)
    for _ in range(4):
        assert_matches_eager(run, x, eager=eager)
    for a, b in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    assert addresses == [b.data_ptr() for b in ours.buffers()]


def test_autograd_sees_the_change():
    x = torch.randn(5)
    w = torch.randn(5, requires_grad=True)
    y = (w * x).sum()
    compiled_anew(lambda x: x.mul_(2))(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_changes_by_eager_code_are_seen():
    run = compiled_anew(lambda x: x.add_(1))
    x = torch.zeros(70)
    for _ in range(5):
        run(x)
        x.mul_(2)
    assert x[0] == 62
    x.data = torch.zeros(70)
    run(x)
    assert x[0] == 1


def test_sizes_that_change():
    run = compiled_anew(lambda x: x.add_(1), dynamic=True)
    for n in (3, 5, 64, 3):
        x = torch.zeros(n)
        run(x)
        assert x.sum() == n


def test_inference_mode():
    with torch.inference_mode():
        x = torch.zeros(70)
        compiled_anew(lambda x: x.add_(1))(x)
        assert x[0] == 1


def test_a_changed_input_that_lies_in_another():
    base = torch.tensor([-0.25, -1.25])

    def f(whole, part):
        part.clamp_(-1, 1)
        return part, whole * 2

    run, other = compiled_anew(f), base.clone()
    actual, expected = run(base, base[1:]), f(other, other[1:])
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(base, other)
    assert actual[0].data_ptr() == base[1:].data_ptr()


def test_a_part_of_the_new_value_that_is_no_view():
    def f(x):
        y = x + 1
        x.copy_(y)
        return y[2:]

    x = torch.zeros(5)
    result = compiled_anew(f)(x)
    x.zero_()
    assert result.tolist() == [1, 1, 1]


def test_a_changed_input_that_is_a_captured_tensor():
    held = torch.ones(1000)
    add = torch._dynamo.nonstrict_trace(lambda x: held.flip(0) + x)

    def f(x):
        x.copy_(add(x))
        return x.sum()

    run = compiled_anew(f)
    run(torch.ones(1000))
    held.copy_(torch.arange(1000.0))
    assert run(held) == 999_000
    assert held[-1] == 999


@pytest.mark.parametrize("n", [4, 40])
def test_captured_tensors_are_seen_to_change(n):
    held, part = torch.ones(n, n), torch.ones(n, 2 * n)[:, 1::2]
    multiply = torch._dynamo.nonstrict_trace(lambda x: x @ held.t() + x @ part)
    run = compiled_anew(lambda x: multiply(x) * 1)
    x = torch.ones(1, n)
    assert run(x)[0, 0] == 2 * n
    held.mul_(2)
    part.mul_(3)
    assert run(x)[0, 0] == 5 * n


def test_results_can_be_changed_under_autograd():
    y = compiled_anew(lambda x: x.t() * 2)(torch.ones(6, 5, requires_grad=True))
    y += 1
    y, part = compiled_anew(lambda x: (lambda y: (y.t(), y[1:]))(x.t() * 2))(
        torch.ones(6, 5, requires_grad=True)
    )
    part.mul_(2)
    y.mul_(3)
    assert y[0].tolist() == [6, 12, 12, 12, 12]
    x = torch.ones(6, 6, requires_grad=True)
    compiled_anew(lambda x: x.unsafe_chunk(3))(x)[0].mul_(2)
    y = compiled_anew(lambda x: x.t() * 2)(torch.ones(6, 5))
    y.requires_grad_()
    y.detach_()


def test_channel_shuffle_is_a_copy():
    shuffle = torch.nn.functional.channel_shuffle
    x = torch.ones(1, 4, 2, 2)
    compiled_anew(lambda x: shuffle(x, 1))(x).zero_()
    assert x.sum() == 16
    y, z = compiled_anew(lambda x: (lambda y: (y, shuffle(y, 1)))(x * 2))(x)
    z.zero_()
    assert y.sum() == 32


def test_data_replaced_within():
    def f(x, y):
        x.data = y
        return x + 1

    x = torch.zeros(8)
    assert compiled_anew(f)(x, torch.ones(8)).tolist() == [2] * 8
    assert x.tolist() == [1] * 8


def test_data_of_a_parameter_replaced_within():
    def f(p, y):
        p.data = y * 2
        return (p * y).sum()

    p, y = torch.nn.Parameter(torch.zeros(8)), torch.ones(8)
    with torch.no_grad():
        assert compiled_anew(f)(p, y) == 16
    assert p.tolist() == [2] * 8
    assert p.requires_grad


def test_data_exchanged_within():
    def f(a, b):
        kept = a.data
        a.data = b.data
        b.data = kept
        return a * 1

    a, b = (torch.nn.Parameter(torch.full((8,), x)) for x in (1.0, 2.0))
    memory = a.data_ptr(), b.data_ptr()
    assert compiled(f, fullgraph=False)(a, b).tolist() == [2] * 8
    assert (a.tolist(), b.tolist()) == ([2] * 8, [1] * 8)
    assert (b.data_ptr(), a.data_ptr()) == memory


def test_inputs_are_left_alone_when_a_check_fails():
    def f(x, a):
        b = torch.linalg.inv(a)
        x.add_(1)
        return b

    run, x = compiled_anew(f), torch.zeros(8)
    run(x, torch.eye(3))
    with pytest.raises(RuntimeError, match="singular"):
        run(x, torch.zeros(3, 3))
    assert x[0] == 1


def test_inference_tensors():
    with torch.inference_mode():
        x = torch.zeros(8)
    with pytest.raises(RuntimeError, match="inference tensor"):
        compiled_anew(lambda x: x.add_(1))(x)
