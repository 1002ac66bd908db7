"""Products that eager rounds before a sum: differences that are 0 there are 0 here."""

import pytest
import torch
import torch.nn.functional as F

CASES = {
    "top one": lambda a: ((p := a * 0.1) - p.amax(-1, keepdim=True) == 0).sum(-1),
    "root": lambda a: ((p := a * 0.1).amax(-1, keepdim=True) - p).sqrt(),
    "squares": lambda a: ((p := a * a).amax(-1, keepdim=True) - p).sqrt(),
    "from the least": lambda a: ((x := a * 3.3) - x.amin(-1, keepdim=True)).sqrt(),
    "sorted": lambda a: ((x := a * 3.3).sort()[0][:, :1] - x).relu().count_nonzero(),
    "expanded": lambda a: (p := a.square() * 0.3)[None] - p[:, None],
    "two inputs": lambda a: torch.sqrt(a * a - (b := a.clone()) * b),
    "two sums": lambda a: (a * a + a, a * a - a * 0.7),
    "negated": lambda a: -(a * 0.7) + (a * 0.7),
    "normalized": lambda a: ((p := F.layer_norm(a, (100,))).amax() - p).sqrt(),
    "outer": lambda a: ((p := a[:, :, None] @ a[:, None, :]).amax() - p).sqrt(),
    "linear": lambda a: ((p := F.linear(a[:, :1], a[:5, :1])).amax() - p).sqrt(),
    "gathered": lambda a: (a * 0.7)[:, [3, 3, 5]] - a[:, [3, 3, 5]] * 0.7,
    "gathered by a tensor": lambda a: (a * 0.7)[i := a[:, 0].long().abs()] - a[i] * 0.7,
    "chosen": lambda a: torch.where(a > 0, a * 0.7, 0.0) - a.relu() * 0.7,
    "of two": lambda a: torch.cat([a[:3] * 3.3, a[3:]]) - a[:, torch.arange(99, -1, -1)],
    "joined": lambda a: torch.cat([a * 0.7, a]) - torch.cat([a * 0.7, a]) * a.new_ones(100),
    "padded": lambda a: F.pad(a * 0.7, (0, 1)) - F.pad(a, (0, 1)) * 0.7,
    "a part": lambda a: (a * 0.7)[2:].flip(0) - a[2:].flip(0) * 0.7,
    "turned": lambda a: (a * 0.7).t() - (a.t() * 0.7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_differences_of_products_are_those_of_eager(name, dtype):
    torch.manual_seed(0)
    a = torch.randn(64, 100, dtype=dtype)
    torch.testing.assert_close(
        torch.compile(CASES[name], backend="openxla")(a), CASES[name](a), rtol=1e-6, atol=0
    )


def test_in_a_branch_and_in_a_loop():
    def below_top(a):
        return (p := a * 0.1).amax() - p

    def branch(a):
        return torch.cond(a.sum() > 1e9, torch.clone, below_top, (a,))

    def loop(a):
        first = (torch.tensor(0), a)
        return torch.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, below_top(a)), first)[1]

    a = torch.randn(64, 100)
    for f in (branch, loop):
        torch.testing.assert_close(torch.compile(f, backend="openxla")(a), f(a), rtol=0, atol=0)


@pytest.mark.parametrize("freeze", [False, True])
def test_with_parameters(freeze):
    linear = torch.nn.Linear(100, 100)

    def f(x):
        p = linear.weight * 0.1
        return (p.amax() - p).sqrt() + (q := x * 0.3).amax() - q

    x = torch.randn(100, 100)
    with torch.no_grad():
        result = torch.compile(f, backend="openxla", options={"freeze": freeze})(x)
        torch.testing.assert_close(result, f(x), rtol=1e-6, atol=0)
