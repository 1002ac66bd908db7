"""Random operators on the lazy device: operators with odd names, generators, and cuts."""

import itertools
import keyword

import pytest
import torch

import xla_dynamo
from tests.compiling import compiled
from xla_dynamo.graphs.keyword_names import name_keywords
from xla_dynamo.torch_private import all_operator_names

XLA = xla_dynamo.device()
aten = torch.ops.aten


# --- overloads whose names are keywords of Python ------------------------------------------------


def test_overloads_named_by_keywords_have_other_names():
    """FX writes each graph down in Python, where `aten.random.from(...)` is a SyntaxError."""
    found = {n for n in all_operator_names() if keyword.iskeyword(n.rpartition(".")[2])}
    assert {"aten::random_.from", "aten::random.from"} <= found == set(name_keywords())
    for name in found:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet), overload)
        assert getattr(aten, op.__name__) is op
        assert str(op) == name.replace("::", ".")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.uint8])
def test_random_between_bounds(dtype):
    x = torch.zeros(200, dtype=dtype, device=XLA)
    y = torch.zeros(200, dtype=dtype, device=XLA)
    assert x.random_(2, 5) is x
    y.random_(100, None)
    out = torch.empty(0, dtype=dtype, device=XLA)
    keywords = {"from": 1, "to": 3}
    made = [aten.random(x, 4, 6), aten.random(x, **keywords), aten.random(x, 7, 8, out=out)]
    made.append(aten.random_(x.clone(), **keywords))
    xla_dynamo.sync()
    assert set(x.tolist()) == {2, 3, 4}
    assert min(y.tolist()) >= 100
    assert [set(m.tolist()) for m in made] == [{4, 5}, {1, 2}, {7}, {1, 2}]
    assert set(out.tolist()) == {7}


def test_out_of_operators_with_a_keyword_among_their_arguments():
    """AOTAutograd matches `out=` by the names in the schema, and cannot where one is a keyword."""
    x, out = torch.zeros(50, device=XLA), torch.zeros(2, 25, device=XLA)
    view = out.view(50)
    assert aten.uniform(x, 2.0, 3.0, out=view) is view
    assert 2 <= out.min().item() <= out.max().item() <= 3
    assert aten.random(x, 4, 5, out=view) is view
    assert set(out.flatten().tolist()) == {4}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("rng", ["xla", "torch"])
def test_random_between_bounds_compiled(dtype, rng):
    """Where a part of the graph runs in torch, FX writes it down."""

    def f(x, op):
        return op(x.clone(), 2, 5), torch.nonzero(aten.random_(x.clone(), 2, 5))

    for op in (aten.random_, getattr(aten.random_, "from"), getattr(aten.random, "from")):
        drawn, places = compiled(f, rng=rng)(torch.ones(50).to(dtype), op)
        assert set(drawn.tolist()) == {2, 3, 4}
        assert len(places) == 50


# --- cuts ----------------------------------------------------------------------------------------


def draws(device):
    """Functions that draw, each in another way."""
    x, y = torch.ones(6, device=device), torch.ones(2, 3, device=device)
    out = torch.zeros(6, device=device)
    drop = torch.nn.Dropout(0.5)
    return [
        lambda: torch.rand(6, device=device),
        lambda: x.normal_(),
        lambda: drop(y),
        lambda: torch.nn.functional.rrelu(y - 2, training=True),
        lambda: torch.bernoulli(y * 0.5),
        lambda: torch.ones(6, device=device).bernoulli_(0.5),
        lambda: torch.normal(y, 2.0),
        lambda: torch.randint(0, 1000, (6,), device=device),
        lambda: torch.randperm(9, device=device),
        lambda: torch.multinomial(y, 2),
        lambda: out.view(2, 3)[1].uniform_(2, 3),
        lambda: torch.rand(6, out=out),
        lambda: torch.nn.functional.dropout(x, 0.0),
        lambda: torch.poisson(y * 4),
        lambda: torch.zeros(6, device=device).exponential_(),
        lambda: torch.zeros(6, dtype=torch.int64, device=device).random_(3, 1000),
        lambda: torch.native_dropout(y, 0.5, True)[0],
        lambda: torch.nn.functional.scaled_dot_product_attention(
            y[None], y[None], y[None], dropout_p=0.5
        ),
    ]


def drawn(cut):
    """What all of them draw, in turn, with one seed; `cut` is called with each result."""
    torch.manual_seed(7)
    found = []
    for draw in draws(XLA):
        found.append(draw().clone())
        cut(found[-1])
    return [t.tolist() for t in found]


def test_numbers_do_not_depend_on_cuts():
    expected = drawn(lambda t: None)
    assert len({str(numbers) for numbers in expected}) > 15
    count = itertools.count()
    assert drawn(lambda t: next(count) % 4 or xla_dynamo.sync()) == expected
    assert drawn(lambda t: next(count) % 5 or t.tolist()) == expected
    assert drawn(lambda t: t.sum()) == expected


def test_what_is_dropped_counts_as_drawn():
    """An operator draws where it is called, also if nobody reads what it makes."""
    found = []
    for keep in (True, False):
        torch.manual_seed(3)
        first = torch.rand(4, device=XLA)
        if not keep:
            del first
        found.append(torch.rand(4, device=XLA).tolist())
    assert found[0] == found[1]


def test_states_are_those_between_draws():
    torch.manual_seed(11)
    torch.rand(2, device=XLA)
    state = torch.xla.get_rng_state()
    pending = torch.rand(3, device=XLA)
    torch.xla.set_rng_state(state)
    again = torch.rand(3, device=XLA)
    assert pending.tolist() == again.tolist()


def test_draws_of_one_program_differ():
    x = torch.stack([torch.rand(1000, device=XLA) for _ in range(4)])
    assert abs(torch.corrcoef(x).cpu() - torch.eye(4)).max() < 0.15
    values = x.flatten().cpu()
    assert len(values.unique()) > 3990
    assert abs(values.mean() - 0.5) < 0.02


def test_generators():
    """One of the CPU draws its own numbers; torch gives none to a device that Python makes."""
    numbers = []
    for device in ("cpu", XLA):
        generator = torch.Generator().manual_seed(3)
        x = torch.rand(3, device=device, generator=generator)
        y = torch.zeros(3, device=device).normal_(generator=generator)
        numbers.append((x.tolist(), y.tolist(), generator.get_state().tolist()))
    assert numbers[0] == numbers[1]
    with pytest.raises(NotImplementedError, match="getNewGenerator"):  # a limitation
        torch.Generator("xla")
    (default,) = torch.xla.default_generators
    default.manual_seed(5)
    first = torch.rand(3, device=XLA).tolist()
    state = default.get_state()
    second = torch.rand(3, device=XLA).tolist()
    default.set_state(state)
    assert torch.rand(3, device=XLA).tolist() == second
    torch.xla.manual_seed(5)
    assert torch.rand(3, device=XLA).tolist() == first
