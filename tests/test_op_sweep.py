"""torch's operator database through `torch.compile(fullgraph=True)`: value, dtype, shape, stride.

Each operator and dtype either passes or has a row in `limitations.py`, and a row that no longer
fails must go. By default a few samples of float32 and int64; with `-m slow`, all of them, and the
other dtypes. Gradients: `test_op_gradients.py`.
"""

import pytest
import torch

from tests.limitations import DTYPES, GRAPH_BREAKS, LIMITATIONS, NOT_ON_CPU, limitation
from tests.op_sweep import check, full_name, operators

PAIRS = [(op, dtype) for dtype in DTYPES for op in operators(dtype)]


def _case(op, dtype):
    slow = dtype not in (torch.float32, torch.int64)
    name = f"{full_name(op)}-{str(dtype).removeprefix('torch.')}"
    return pytest.param(op, dtype, id=name, marks=[pytest.mark.slow] if slow else [])


CASES = [_case(op, dtype) for op, dtype in PAIRS]
LIMITED = [_case(op, dtype) for op, dtype in PAIRS if limitation(full_name(op), dtype)]


def sweep(op, dtype, limit):
    row = limitation(full_name(op), dtype)
    # A limitation may show in one sample of many.
    outcome = check(op, dtype, None if row else limit)
    if row is not None:
        assert outcome.status == "fail", f"passes now: remove its row ({row.reason})"
        return
    expected = "breaks" if full_name(op) in GRAPH_BREAKS[dtype] else "pass"
    expected = "unsupported" if full_name(op) in NOT_ON_CPU else expected
    assert outcome.status == expected, outcome.detail or "limitations.py is not true"


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_few_samples(op, dtype):
    sweep(op, dtype, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_every_sample(op, dtype):
    sweep(op, dtype, None)


@pytest.mark.parametrize(("op", "dtype"), LIMITED)
def test_limited_operators_run_eagerly(op, dtype):
    outcome = check(op, dtype, 4, fallback="eager")
    assert outcome.status == "pass", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), LIMITED)
def test_limited_operators_run_eagerly_on_every_sample(op, dtype):
    outcome = check(op, dtype, None, fallback="eager")
    assert outcome.status == "pass", outcome.detail


def test_at_least_95_percent_are_compiled_whole():
    """Of the pairs that pass, all of them: in pieces, or with operators in eager torch."""
    run = [(full_name(op), dtype) for op, dtype in PAIRS if full_name(op) not in NOT_ON_CPU]
    whole = [pair for pair in run if not limitation(*pair) and pair[0] not in GRAPH_BREAKS[pair[1]]]
    assert len(whole) >= 0.95 * len(run)


def test_rows_name_operators_of_the_database():
    names = {(full_name(op), dtype) for op, dtype in PAIRS}
    rows = {(row.op, dtype) for row in LIMITATIONS for dtype in row.dtypes}
    breaks = {(name, dtype) for dtype, those in GRAPH_BREAKS.items() for name in those}
    assert not (rows | breaks) - names
    assert all(row.reason for row in LIMITATIONS)
