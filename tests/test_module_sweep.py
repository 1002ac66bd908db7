"""torch's database of modules: outputs, gradients and buffers are eager's, compiled whole.

Each passes or has a row in `limitations.py`. By default one sample at float32; with `-m slow` all
of them, and float64.
"""

import pytest
import torch
from torch.testing._internal.common_modules import module_db

from tests.limitations import MODULE_GRAPH_BREAKS, MODULE_LIMITATIONS
from tests.module_sweep import check

CASES = [
    pytest.param(info, training, id=f"{info.name}-{'training' if training else 'evaluation'}")
    for info in module_db
    for training in ((True, False) if info.train_and_eval_differ else (True,))
]


def sweep(info, training, dtype, limit):
    reason = MODULE_LIMITATIONS.get(info.name)
    if not reason or limit is None:  # a limitation shows in some samples of many
        status, why = check(info, dtype, limit, training=training)
    if reason:
        assert limit or status == "fail", f"passes now: remove its row ({reason})"
        status, why = check(info, dtype, limit, training=training, fallback="eager")
    expected = "breaks" if info.name in MODULE_GRAPH_BREAKS else "pass"
    assert status == expected, why


@pytest.mark.every(3)
@pytest.mark.parametrize(("info", "training"), CASES)
def test_a_sample(info, training):
    sweep(info, training, torch.float32, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("info", "training"), CASES)
def test_every_sample(info, training, dtype):
    sweep(info, training, dtype, None)


def test_rows_name_modules_of_the_database():
    names = {info.name for info in module_db}
    assert names >= MODULE_GRAPH_BREAKS | MODULE_LIMITATIONS.keys()
