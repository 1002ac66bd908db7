"""The gradients of torch's operator database through `torch.compile(fullgraph=True)`.

As in `test_op_sweep.py`: each operator passes or has a row in `limitations.py`.
"""

import pytest
import torch

from tests.limitations import GRADIENT_LIMITATIONS, GRADIENT_TORCH_STOPS
from tests.op_sweep import check, differentiable, full_name

OPERATORS = [pytest.param(op, id=full_name(op)) for op in differentiable(torch.float32)]


def sweep(op, limit):
    rows = [row for row in GRADIENT_LIMITATIONS if row.op == full_name(op)]
    outcome = check(op, torch.float32, None if rows else limit, gradients=True)
    if rows:
        assert outcome.status == "fail", f"passes now: remove its row ({rows[0].reason})"
        return
    assert outcome.status != "fail", outcome.detail
    stops = full_name(op) in GRADIENT_TORCH_STOPS
    assert stops == (outcome.status == "unsupported"), "GRADIENT_TORCH_STOPS is not true"


@pytest.mark.parametrize("op", OPERATORS)
def test_a_sample(op):
    sweep(op, 1)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_every_sample(op):
    sweep(op, None)


def test_at_least_90_percent_pass():
    """Of the operators whose gradients torch itself can compile (aot_eager, fullgraph=True)."""
    possible = len(OPERATORS) - len(GRADIENT_TORCH_STOPS)
    assert len(GRADIENT_LIMITATIONS) <= 0.1 * possible
