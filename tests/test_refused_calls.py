"""What eager refuses is refused compiled, with the user's line: torch's error inputs and dtypes.

By default some operators; with `-m slow`, all. `python -m tests.refusal_sweep` counts.
"""

import pytest
import torch
from torch.nn import functional as F

import xla_dynamo
from tests.limitations import DTYPES_NOT_REFUSED, INPUTS_NOT_REFUSED
from tests.op_database import full_name
from tests.refusal_sweep import (
    OPERATORS,
    refusal,
    refused_dtypes,
    refused_inputs,
    with_error_inputs,
)
from xla_dynamo import errors
from xla_dynamo.decompositions import eager_calls, refused_calls

aten = torch.ops.aten


@pytest.mark.every(10)
@pytest.mark.parametrize("op", with_error_inputs(), ids=full_name)
def test_error_inputs(op):
    rows, _ = INPUTS_NOT_REFUSED.get(full_name(op), ((), ""))
    computed = [number for number, sample in refused_inputs(op) if not refusal(op, sample)]
    assert computed == list(rows)


@pytest.mark.every(25)
@pytest.mark.parametrize("op", OPERATORS, ids=full_name)
def test_dtypes(op):
    rows, _ = DTYPES_NOT_REFUSED.get(full_name(op), ((), ""))
    computed = [dtype for dtype, sample in refused_dtypes(op) if not refusal(op, sample)]
    assert computed == list(rows)


def test_at_least_98_percent_of_the_error_inputs_are_refused():
    """By the rows, which `test_error_inputs` keeps true."""
    refused = sum(len(list(refused_inputs(op))) for op in with_error_inputs())
    computed = sum(len(rows) for rows, _ in INPUTS_NOT_REFUSED.values())
    assert computed <= 0.02 * refused


@pytest.mark.parametrize("rows", [INPUTS_NOT_REFUSED, DTYPES_NOT_REFUSED])
def test_rows_name_operators_of_the_database(rows):
    assert rows.keys() <= set(map(full_name, OPERATORS))
    assert all(reason for _, reason in rows.values())


def refused(program, *args, **options):
    """The error, less Dynamo's wrapper, when eager and compiled code refuse a call."""
    with pytest.raises(RuntimeError):
        program(*args)
    with pytest.raises(RuntimeError) as caught:
        torch.compile(program, backend="openxla", fullgraph=True, **options)(*args)
    return getattr(caught.value, "inner_exception", caught.value)


def test_the_error_names_the_line_and_says_what_eager_says():
    layer = torch.nn.Linear(3, 4)

    def model(x):
        return layer(x).relu()  # the line to name

    error = refused(model, torch.randn(2, 3, dtype=torch.float16))
    assert isinstance(error, errors.RefusedByEager)
    assert "aten.addmm.default(f32[4], f16[2,3], f32[3,4])" in str(error)
    assert "# the line to name" in str(error)
    assert "test_refused_calls.py" in str(error)
    assert "same dtype" in str(error)


BYTES, NUMBERS = torch.arange(4, dtype=torch.uint8), torch.ones(2, 3)
IMAGE = torch.ones(2, 3, 2, 3, dtype=torch.uint8)
HALVES, WHOLE = torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3, dtype=torch.int64)
CALLS = {
    "products of two dtypes": lambda: NUMBERS @ HALVES.T,
    "batched products": lambda: torch.bmm(NUMBERS[None], HALVES.T[None]),
    "convolution": lambda: F.conv1d(NUMBERS[None], HALVES[None]),
    "normalization": lambda: F.layer_norm(WHOLE, (3,)),
    "attention": lambda: F.scaled_dot_product_attention(NUMBERS, HALVES, NUMBERS),
    "a bound beyond the dtype": lambda: BYTES.clamp(0, 300),
    "a number beyond the dtype": lambda: torch.full((2,), 300, dtype=torch.uint8),
    "an activation of integers": lambda: F.silu(WHOLE),
    "a remainder of complex numbers": lambda: NUMBERS.cfloat().fmod(2.0),  # XLA's compiler crashes
    "taken apart by the dispatcher": lambda: F.hardshrink(WHOLE),
    "within a decomposition's operands": lambda: F.huber_loss(WHOLE, WHOLE),
    "uniform": lambda: NUMBERS.clone().uniform_(5.0, 2.0),
    "bernoulli": lambda: NUMBERS.clone().bernoulli_(2.0),
    "normal": lambda: NUMBERS.clone().normal_(0.0, -1.0),
    "no samples": lambda: NUMBERS.multinomial(0),
    "fewer samples than none": lambda: NUMBERS.multinomial(-1),
    "random": lambda: NUMBERS.clone().random_(0),
    "out": lambda: torch.complex(NUMBERS, NUMBERS, out=torch.empty(2, 3, dtype=torch.complex128)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls(call):
    """Some by the trace, which checks them too."""
    assert "test_refused_calls.py" in str(refused(lambda _: call(), NUMBERS))


def test_a_training_step_refuses_too():
    layer = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(layer.parameters())
    step = xla_dynamo.train_step(layer, lambda model, x: model(x).sum(), optimizer)
    with pytest.raises(RuntimeError, match="same dtype"):
        step(HALVES)


def test_dynamic_sizes():
    error = refused(lambda x: x @ HALVES.T, torch.randn(5, 3), dynamic=True)
    assert isinstance(error, errors.RefusedByEager)


@pytest.mark.parametrize("options", [{}, {"rng": "torch"}], ids=["xla", "torch"])
def test_what_eager_draws_from_is_checked_by_value(options):
    draws = {
        "multinomial": (lambda x: x.multinomial(1), torch.tensor([0.5, -0.5])),
        "sum": (lambda x: x.multinomial(1), torch.zeros(2)),
        "bernoulli": (lambda x: x.bernoulli(), torch.tensor([0.5, 1.5])),
        "of another": (lambda x: torch.ones(2).bernoulli_(x), torch.tensor([0.5, float("nan")])),
        "normal": (lambda x: torch.normal(0.0, x), torch.tensor([0.5, -1.0])),
        "poisson": (lambda x: torch.poisson(x), torch.tensor([0.5, -1.0])),
    }
    for draw, bad in draws.values():
        with pytest.raises(RuntimeError) as eager:
            draw(bad)
        compiled = torch.compile(draw, backend="openxla", fullgraph=True, options=options)
        compiled(torch.full((2,), 0.5))
        with pytest.raises(RuntimeError) as caught:
            compiled(bad)
        assert str(caught.value).startswith(str(eager.value).splitlines()[0][:30])
        if not options:
            assert "test_refused_calls.py" in str(caught.value)


def test_autocast_casts_before_anything_is_refused():
    layer = torch.nn.Linear(3, 4)

    def model(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    assert torch.compile(model, backend="openxla")(HALVES).dtype is torch.bfloat16


def test_a_backward_that_may_never_run_is_not_asked_about(monkeypatch):
    asked = []
    monkeypatch.setattr(refused_calls, "refusal", lambda op, *_: asked.append(op))
    x = torch.ones(3, requires_grad=True)
    torch.compile(torch.exp, backend="openxla")(x).sum().backward()
    assert asked == [aten.exp.default]


def test_the_generator_stays_where_it_is():
    state = torch.get_rng_state()
    assert eager_calls.refusal(aten.bernoulli.p, (torch.ones(3), 0.25), {}) is None
    assert eager_calls.refusal(aten.bernoulli.p, (torch.ones(3), 2.5), {}) is not None
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.floor_divide.default, (WHOLE, WHOLE)),  # zeros divide no integers
        (aten.native_layer_norm.default, (torch.ones(9, 768), [768], None, None, 1e-5)),
        (aten.arange.start_step, (0, 1 << 40, 1)),
        (aten.full.default, ([1 << 20, 1 << 20], 1.0)),
        (getattr(aten.random, "from"), (WHOLE, 100, 200)),  # neither is a size
        # torch has a kernel of its own for bytes, which asserts something of such sizes
        (aten.upsample_bilinear2d.default, (IMAGE, [1, 1], True, 0.6, 0.6)),
        (aten.mm.default, (torch.ones(7, 9).to_sparse(), torch.ones(9, 2))),
        (aten.add.Tensor, (torch.ones(2, device="meta"), HALVES)),
    ],
    ids=lambda x: str(x) if isinstance(x, torch._ops.OpOverload) else "with",
)
def test_small_tensors_tell_nothing(op, args):
    """Of sizes, of values, of tensors of other kinds and devices, and at no cost in memory."""
    assert eager_calls.can_be_asked(op)
    assert eager_calls.refusal(op, args, {}) is None
