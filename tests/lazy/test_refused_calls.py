"""Calls that eager refuses are refused at the call; errors of a later step name their lines."""

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.compiling import compiled
from tests.limitations import UNCHECKED_ON_THE_DEVICE
from xla_dynamo.lazy import execution

XLA = xla_dynamo.device()
I64 = torch.int64


def zeros(device, *size, dtype=torch.float32):
    return torch.zeros(size or 4, dtype=dtype, device=device)


def of(device, *numbers):
    return torch.tensor(numbers, device=device)


# Torch's fake kernels let all of these through.
WRONG_NUMBERS = {
    "uniform_ backwards": lambda d: zeros(d).uniform_(5.0, 2.0),
    "uniform_ of a large tensor": lambda d: zeros(d, 700, 700).uniform_(5.0, 2.0),
    "uniform_ of whole numbers": lambda d: zeros(d, dtype=I64).uniform_(),
    "rand of whole numbers": lambda d: torch.rand(2000, 2000, dtype=I64, device=d),
    "random_(0)": lambda d: zeros(d).random_(0),
    "random_ backwards": lambda d: zeros(d).random_(5, 2),
    "random_ beyond the dtype": lambda d: zeros(d, dtype=torch.uint8).random_(0, 1000),
    "bernoulli_(2.)": lambda d: zeros(d).bernoulli_(2.0),
    "bernoulli(2.)": lambda d: torch.bernoulli(zeros(d), 2.0),
    "multinomial of -1": lambda d: torch.multinomial(zeros(d) + 1, -1),
    "multinomial of too many": lambda d: torch.multinomial(zeros(d) + 1, 10),
    "randint_like of none": lambda d: torch.randint_like(zeros(d), 5, 5),
    "native_dropout": lambda d: torch.native_dropout(zeros(d), 2.0, True),
    "powers of whole numbers": lambda d: zeros(d, dtype=I64) ** -1,
    "smooth_l1_loss": lambda d: F.smooth_l1_loss(zeros(d), zeros(d), beta=-1.0),
    "celu": lambda d: F.celu(zeros(d), 0.0),
}
WRONG_SIZES = {
    "max of nothing": lambda d: zeros(d, 0, 3).max(),
    "max of an empty dimension": lambda d: torch.max(zeros(d, 0, 3), 0),
    "median of an empty dimension": lambda d: zeros(d, 0, 3).median(0),
    "mode of an empty dimension": lambda d: zeros(d, 0, 3).mode(0),
    "bucketize": lambda d: torch.bucketize(zeros(d), zeros(d, 2, 2)),
    "index_add": lambda d: zeros(d, 3, 3).index_add(0, zeros(d, 2, dtype=I64), zeros(d, 2, 4)),
    "as_strided": lambda d: zeros(d).as_strided((9,), (9,)) + 1,
}
WRONG_DTYPES = {
    "bits of floats": lambda d: zeros(d) & zeros(d),
    "product of two dtypes": lambda d: zeros(d, 2, 2) @ zeros(d, 2, 2, dtype=torch.float64),
    "max of complex numbers": lambda d: zeros(d, dtype=torch.complex64).max(),
    "a mask of bytes": lambda d: zeros(d).masked_scatter(zeros(d, dtype=torch.uint8), zeros(d)),
    "nextafter of whole numbers": lambda d: zeros(d, dtype=I64).nextafter(zeros(d, dtype=I64)),
    "aminmax into another dtype": lambda d: torch.aminmax(
        zeros(d), dim=0, out=(zeros(d, 1, dtype=torch.float64), zeros(d, 1, dtype=torch.float64))
    ),
}
REFUSED = WRONG_NUMBERS | WRONG_SIZES | WRONG_DTYPES


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_the_call(name, capfd):
    with pytest.raises(Exception) as eagers:
        REFUSED[name]("cpu")
    for _ in range(2):  # the first call must not be taken for right by the second
        with pytest.raises(type(eagers.value)) as raised:
            REFUSED[name](XLA)
        assert str(raised.value) == str(eagers.value)
    assert "failed while attempting to run meta" not in capfd.readouterr().err


def test_what_some_values_make_wrong_is_recorded():
    """The elements that a call is tried with must not be the wrong ones."""
    matrix = torch.eye(3, device=XLA) * 4
    index = of(XLA, 0, 0, 1)
    for result in (
        torch.linalg.cholesky_ex(matrix)[0],
        torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix), matrix),
        torch.ones(3, dtype=I64, device=XLA) // of(XLA, 1, 1, 2),
        torch.multinomial(torch.ones(3, device=XLA), 3),
        torch.repeat_interleave(index, index + 1, output_size=4),
        torch.segment_reduce(matrix, "max", lengths=of(XLA, 1, 2)),
        F.embedding_bag(index, matrix, of(XLA, 0, 2)),
        torch.bernoulli(torch.rand(3, device=XLA)),
    ):
        assert result.isfinite().all()


def test_a_trial_draws_nothing():
    state = torch.get_rng_state()
    zeros(XLA, 17).normal_()
    torch.native_dropout(zeros(XLA, 17), 0.25, True)
    torch.multinomial(zeros(XLA, 17) + 1, 2)
    assert torch.equal(torch.get_rng_state(), state)


ONE_OF_EACH = (
    lambda d: zeros(d).gather(0, of(d, 7)),
    lambda d: F.embedding(of(d, 7), zeros(d, 3, 3)),
    lambda d: F.one_hot(of(d, 5), 3),
    lambda d: torch.multinomial(zeros(d) - 1, 1),
    lambda d: zeros(d).masked_scatter(zeros(d) == 0, zeros(d, 2)),
)


@pytest.mark.parametrize(
    "call", ONE_OF_EACH, ids=[row.partition(" (")[0] for row in UNCHECKED_ON_THE_DEVICE]
)
def test_what_only_values_tell_is_not_refused(call):
    """Limitations: a row that is no longer true must go."""
    with pytest.raises((RuntimeError, IndexError)):
        call("cpu")
    call(XLA).cpu()


# --- errors of a later sync ----------------------------------------------------------------------


def notes_of(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def test_an_error_of_a_step_names_what_was_recorded(monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("no place is told here")

    x = torch.ones(13, device=XLA)
    xla_dynamo.sync()
    with monkeypatch.context() as patched:
        patched.setattr(execution, "compile_torch_graph", fail)
        y = x.sin() * 1.75
        z = y.cumsum(0)
        with pytest.raises(ValueError, match="no place is told") as raised:
            xla_dynamo.sync()
    told = notes_of(raised.value)
    line = fail.__code__.co_firstlineno
    assert f"aten.sin.default at {__file__}:{line + 7} in test_an_error" in told
    assert f"aten.cumsum.default at {__file__}:{line + 8} in test_an_error" in told
    assert z[0].item() == y[0].item()  # computed now


def test_an_error_of_an_operator_that_torch_runs_names_its_line():
    """Operators without a rule run in torch, between compiled parts."""

    def f(x):
        return torch.bincount(x - 2)

    counted = compiled(f)
    assert counted(torch.tensor([2, 3])).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="non-negative") as raised:
        counted(torch.tensor([1, 3]))
    line = f.__code__.co_firstlineno + 1
    assert f"raised by aten.bincount.default\n  at {__file__}:{line} in f" in notes_of(raised.value)
