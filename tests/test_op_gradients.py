"""The gradients of torch's operator database through `torch.compile(fullgraph=True)`.

As in `test_op_sweep.py`: each operator passes or has a row in `limitations.py`.
"""

import pytest
import torch

from tests.limitations import (
    GRADIENT_DTYPES,
    GRADIENT_GRAPH_BREAKS,
    GRADIENT_LIMITATIONS,
    limitation,
)
from tests.op_sweep import check, differentiable, full_name

PAIRS = [(op, dtype) for dtype in GRADIENT_DTYPES for op in differentiable(dtype)]


def _case(op, dtype):
    name = f"{full_name(op)}-{str(dtype).removeprefix('torch.')}"
    slow = dtype is not torch.float32
    return pytest.param(op, dtype, id=name, marks=[pytest.mark.slow] if slow else [])


CASES = [_case(op, dtype) for op, dtype in PAIRS]
LIMITED = [
    _case(op, dtype) for op, dtype in PAIRS if limitation(full_name(op), dtype, gradients=True)
]


def sweep(op, dtype, limit):
    row = limitation(full_name(op), dtype, gradients=True)
    outcome = check(op, dtype, None if row else limit, gradients=True)
    if row is not None:
        assert outcome.status == "fail", f"passes now: remove its row ({row.reason})"
        return
    expected = "breaks" if full_name(op) in GRADIENT_GRAPH_BREAKS[dtype] else "pass"
    assert outcome.status == expected, outcome.detail or "limitations.py is not true"


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_sample(op, dtype):
    sweep(op, dtype, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_every_sample(op, dtype):
    sweep(op, dtype, None)


@pytest.mark.parametrize(("op", "dtype"), LIMITED)
def test_limited_operators_run_eagerly(op, dtype):
    outcome = check(op, dtype, 4, fallback="eager", gradients=True)
    assert outcome.status == "pass", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), LIMITED)
def test_limited_operators_run_eagerly_on_every_sample(op, dtype):
    outcome = check(op, dtype, None, fallback="eager", gradients=True)
    assert outcome.status == "pass", outcome.detail


def test_rows_name_operators_of_the_database():
    names = {(full_name(op), dtype) for op, dtype in PAIRS}
    rows = {(r.op, d) for r in GRADIENT_LIMITATIONS for d in r.dtypes if d in GRADIENT_DTYPES}
    breaks = {(name, dtype) for dtype, those in GRADIENT_GRAPH_BREAKS.items() for name in those}
    assert not (rows | breaks) - names
