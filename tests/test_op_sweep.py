"""torch's operator database through `torch.compile(fullgraph=True)`: value, dtype, shape, stride.

Each operator and dtype either passes or has a row in `limitations.py`, and a row that no longer
fails must go. By default a few samples of float32 and int64; with `-m slow`, all of them, and the
other dtypes.
"""

import pytest
import torch

from tests.limitations import DTYPES, LIMITATIONS, TORCH_STOPS
from tests.op_sweep import check, full_name, operators

PAIRS = [(op, dtype) for dtype in DTYPES for op in operators(dtype)]


def _case(op, dtype):
    slow = dtype not in (torch.float32, torch.int64)
    name = f"{full_name(op)}-{str(dtype).removeprefix('torch.')}"
    return pytest.param(op, dtype, id=name, marks=[pytest.mark.slow] if slow else [])


CASES = [_case(op, dtype) for op, dtype in PAIRS]


def limitation(op, dtype):
    rows = [row for row in LIMITATIONS if row.op == full_name(op) and dtype in row.dtypes]
    return rows[0] if rows else None


def sweep(op, dtype, limit):
    row = limitation(op, dtype)
    # A limitation may show in one sample of many.
    outcome = check(op, dtype, None if row else limit)
    if row is not None:
        assert outcome.status == "fail", f"passes now: remove its row ({row.reason})"
        return
    assert outcome.status != "fail", outcome.detail
    stops = full_name(op) in TORCH_STOPS.get(dtype, ())
    assert stops == (outcome.status == "unsupported"), "TORCH_STOPS in limitations.py is not true"


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_few_samples(op, dtype):
    sweep(op, dtype, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_every_sample(op, dtype):
    sweep(op, dtype, None)


def test_at_least_95_percent_are_compiled():
    """Of the pairs that torch itself can compile (aot_eager, fullgraph=True)."""
    stopped = sum(map(len, TORCH_STOPS.values()))
    limited = sum(limitation(op, dtype) is not None for op, dtype in PAIRS)
    assert limited <= 0.05 * (len(PAIRS) - stopped)


def test_rows_name_operators_of_the_database():
    names = {(full_name(op), dtype) for op, dtype in PAIRS}
    rows = {(row.op, dtype) for row in LIMITATIONS for dtype in row.dtypes}
    stops = {(name, dtype) for dtype, stopped in TORCH_STOPS.items() for name in stopped}
    assert not (rows | stops) - names
    assert all(row.reason for row in LIMITATIONS)
