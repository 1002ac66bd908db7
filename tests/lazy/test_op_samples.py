"""Some operators of torch's own database on the lazy device: values and gradients.

`python -m tests.op_sweep --road device` runs all of them.
"""

import pytest
import torch

from tests.op_database import full_name, operators
from tests.op_sweep import check

CASES = [
    pytest.param(op, dtype, form, id=f"{full_name(op)}-{dtype}-{form}")
    for form, dtype, step in (
        ("values", torch.float32, 60),
        ("values", torch.int64, 60),
        ("gradients", torch.float32, 60),
    )
    for op in operators(dtype, form)[7::step]
]


@pytest.mark.parametrize(("op", "dtype", "form"), CASES)
def test_a_sample_is_as_on_the_cpu(op, dtype, form):
    outcome = check(op, dtype, 1, form=form, road="device")
    assert outcome.status in ("pass", "refused"), outcome.detail
