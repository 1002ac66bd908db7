"""Which passes run for a part of a program of JAX's."""

import pytest

from xla_dynamo.lowerings.passes.table import PASSES
from xla_dynamo.lowerings.target import Target


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (Target("cpu", embedded=True), ["insert_barriers", "guard_exponentials"]),
        (Target("cuda", embedded=True), ["insert_barriers", "set_matmul_precision"]),
        (
            Target("cpu", partitions=8, embedded=True),
            ["unmerge_products", "insert_barriers", "guard_exponentials"],
        ),
    ],
)
def test_passes_of_embedded_programs(target, names):
    assert [p.name for p in PASSES if p.is_for(target)] == names
