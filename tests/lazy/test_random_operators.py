"""Random operators on the lazy device: operators with odd names, generators, and cuts."""

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
