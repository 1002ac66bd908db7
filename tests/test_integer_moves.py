"""Elements of bfloat16 that are only moved, moved as integers. All cold."""

import pytest
import torch
import torch.nn.functional as F

from tests.compiling import EXACT, compiled, compiled_anew, watched
from xla_dynamo.programs.program import Donated

SPECIAL = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3.4e38, 1.0, -2.5]


def halves(*shape):
    """Numbers of bfloat16, and among them those that a conversion could change."""
    x = torch.randn(shape).bfloat16()
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL[: x.numel()]).bfloat16()
    return x


def bits(x):
    return x.view(torch.int16) if x.dtype is torch.bfloat16 else x


def check(f, *args):
    """Eager's results, and the same bits as eager's in what is changed in place."""
    given = [[a.clone() for a in args] for _ in range(2)]
    run, built = watched(f, fullgraph=True)
    with torch.no_grad():
        expected, actual = f(*given[0]), run(*given[1])
    for e, a in zip(given[0], given[1], strict=True):
        torch.testing.assert_close(bits(a), bits(e), **EXACT)
    # A NaN that is computed has other bits, and what is denormal is 0.
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-37, equal_nan=True)
    assert actual.stride() == expected.stride()
    return str(built[0].program.module), built[0].program


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_concatenations(dim):
    x, y = halves(4, 5, 6), halves(4, 5, 6)
    text, _ = check(lambda x, y: torch.cat([x, y, x], dim), x, y)
    assert "xi16>" in text


def test_a_concatenation_of_a_concatenation_stays_integers():
    x = halves(3, 16)
    text, _ = check(lambda x: torch.cat([torch.cat([x, x]), x.flip(0)[:2]]), x)
    assert text.count("bitcast_convert") <= 5


def test_nested_in_regions():
    x = torch.randn(2, 16).bfloat16()

    def f(x):
        return torch.cond(
            x.sum() > 0, lambda x: torch.cat([x, x]), lambda x: torch.cat([x, -x]), (x,)
        )

    with torch.no_grad():
        for each in (x, -x):
            torch.testing.assert_close(compiled_anew(f)(each), f(each), **EXACT)


UPDATES = {
    "index_copy": lambda c, i, new: c.index_copy_(1, i, new),
    "index_put": lambda c, i, new: c.__setitem__((slice(None), i), new),
    "a slice": lambda c, i, new: c[:, 2:4].copy_(new),
    "an element": lambda c, i, new: c[:, 3].copy_(new[:, 0]),
    "scatter": lambda c, i, new: c.scatter_(1, i[None, :, None].expand_as(new), new),
}


@pytest.mark.parametrize("case", UPDATES)
@pytest.mark.parametrize("read", [False, True])
def test_caches_are_updated_in_place(case, read):
    cache, new = halves(3, 8, 16), halves(3, 2, 16)

    def f(cache, i, new):
        UPDATES[case](cache, i, new)
        return cache.transpose(0, 1) * 2 if read else new + 1

    address = cache.data_ptr()
    _, program = check(f, cache, torch.tensor([5, 1]), new)
    (slot,) = program.of(Donated)
    assert slot.as_bits
    run = compiled(f)
    expected = cache.clone()
    f(expected, torch.tensor([0, 7]), new)
    with torch.no_grad():
        run(cache, torch.tensor([0, 7]), new)
    assert cache.data_ptr() == address
    torch.testing.assert_close(bits(cache), bits(expected), **EXACT)


@pytest.mark.parametrize("layout", ["transposed", "misaligned", "with gaps", "float32"])
def test_caches_of_other_layouts(layout):
    memory = torch.zeros(3 * 8 * 16 * 2 + 8, dtype=torch.bfloat16)
    cache = {
        "transposed": halves(8, 3, 16).transpose(0, 1),
        "misaligned": memory[1 : 1 + 384].view(3, 8, 16),
        "with gaps": memory[: 384 * 2].view(3, 8, 32)[..., ::2],
        "float32": torch.randn(3, 8, 16),
    }[layout]
    new, i = halves(3, 2, 16).to(cache.dtype), torch.tensor([5, 1])

    def f(cache, i, new):
        cache.index_copy_(1, i, new)
        return new + 1

    expected = cache.clone()
    f(expected, i, new)
    with torch.no_grad():
        for _ in range(2):
            compiled(f)(cache, i, new)
    torch.testing.assert_close(bits(cache), bits(expected), **EXACT)


def test_a_cache_that_comes_twice_or_in_part():
    """Inputs in one memory: the call gives eager's numbers, whatever road it takes."""

    def f(cache, other, i, new):
        cache.index_copy_(1, i, new)
        return other * 2

    for part in (lambda c: c, lambda c: c[:, 2:]):
        ours, eagers = (torch.randn(3, 8, 16).bfloat16() for _ in range(2))
        eagers.copy_(ours)
        new, i = torch.randn(3, 2, 16).bfloat16(), torch.tensor([5, 1])
        with torch.no_grad():
            actual, expected = (
                compiled_anew(f)(ours, part(ours), i, new),
                f(eagers, part(eagers), i, new),
            )
        torch.testing.assert_close(actual, expected, **EXACT)
        torch.testing.assert_close(bits(ours), bits(eagers), **EXACT)


def test_attention_reads_a_cache_of_bits():
    """A static cache in bfloat16, as transformers has it, token by token."""
    ours, eagers = (torch.zeros(1, 4, 64, 32, dtype=torch.bfloat16) for _ in range(2))

    def step(cache, query, key, i):
        cache.index_copy_(2, i, key)
        mask = torch.arange(64) <= i
        return F.scaled_dot_product_attention(query, cache, cache, attn_mask=mask[None, None])

    run = compiled(step)
    with torch.no_grad():
        for i in range(6):
            query, key = (torch.randn(1, 4, 1, 32).bfloat16() for _ in range(2))
            actual = run(ours, query, key, torch.tensor([i]))
            expected = step(eagers, query, key, torch.tensor([i]))
            torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(bits(ours), bits(eagers), **EXACT)


def test_inference_tensors_and_parameters():
    with torch.inference_mode():
        cache, new = halves(3, 8, 16), halves(3, 2, 16)
        expected = cache.clone()
        UPDATES["index_copy"](expected, torch.tensor([5, 1]), new)
        compiled(UPDATES["index_copy"])(cache, torch.tensor([5, 1]), new)
        torch.testing.assert_close(bits(cache), bits(expected), **EXACT)
    parameter = torch.nn.Parameter(halves(3, 8, 16))
    expected = parameter.detach().clone()
    UPDATES["index_copy"](expected, torch.tensor([5, 1]), new.clone())
    with torch.no_grad():
        compiled_anew(UPDATES["index_copy"])(parameter, torch.tensor([5, 1]), new.clone())
    torch.testing.assert_close(bits(parameter.detach()), bits(expected), **EXACT)
