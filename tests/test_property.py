"""Random small programs give what eager gives: values, dtypes, shapes, strides, gradients."""

import pytest

from tests.random_programs import MODES, explore

modes = pytest.mark.parametrize("mode", MODES)


@modes
def test_random_programs(mode, drawn):
    tally = explore(mode, 15, first=drawn)
    assert tally.run >= 15
    assert tally.refused <= 0.4 * tally.run, "what aot_eager cannot compile either says nothing"


@modes
@pytest.mark.slow
def test_many_random_programs(mode):
    explore(mode, 2000, first=1)
