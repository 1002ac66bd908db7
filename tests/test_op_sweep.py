"""torch's operator database through `torch.compile(fullgraph=True)`: value, dtype, shape, stride.

Each operator and dtype either passes or has a row in `limitations.py`, and a row that no longer
fails must go. By default a few samples of each; with `-m slow`, all of them.
"""

import pytest
import torch

from tests.limitations import LIMITATIONS, TORCH_STOPS
from tests.op_sweep import check, full_name, operators

PAIRS = [
    pytest.param(op, dtype, id=f"{full_name(op)}-{str(dtype).removeprefix('torch.')}")
    for dtype in (torch.float32, torch.int64)
    for op in operators(dtype)
]


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


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_a_few_samples(op, dtype):
    sweep(op, dtype, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_every_sample(op, dtype):
    sweep(op, dtype, None)


def test_at_least_85_percent_pass():
    """Of the pairs that torch itself can compile (aot_eager, fullgraph=True)."""
    stopped = sum(map(len, TORCH_STOPS.values()))
    limited = sum(limitation(*pair.values) is not None for pair in PAIRS)
    assert limited <= 0.15 * (len(PAIRS) - stopped)


def test_rows_name_operators_of_the_database():
    names = {full_name(op) for dtype in (torch.float32, torch.int64) for op in operators(dtype)}
    unknown = {row.op for row in LIMITATIONS} - names
    assert not unknown
    assert all(row.reason for row in LIMITATIONS)
