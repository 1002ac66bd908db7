"""The code of `docs/jax.md` runs, from top to bottom."""

import re

import jax
import pytest

from tests.test_structure import ROOT


@pytest.mark.slow
def test_the_code_of_the_page():
    page = (ROOT / "docs" / "jax.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/jax.md", "exec"), names)
    assert names["gradients"]["0.weight"].sharding.num_devices == len(jax.devices())
    assert names["weights"].grad is not None
    assert names["y"].shape == (8, 4)
