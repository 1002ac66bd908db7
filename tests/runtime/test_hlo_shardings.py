"""XLA's texts of shardings are read as XLA reads them, and written as XLA does."""

import numpy as np
import pytest
from jaxlib import xla_client

from tests.spmd.sharding import WIDE
from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.hlo_shardings import read_sharding, sharding_text, tile_assignment
from xla_dynamo.runtime.mesh import Mesh, Sharding

TEXTS = [
    "{devices=[2,4]0,1,2,3,4,5,6,7}",
    "{devices=[2,4]<=[8]}",
    "{devices=[2,4]<=[4,2]T(1,0)}",
    "{devices=[4,1,2]<=[2,2,2]T(2,0,1) last_tile_dim_replicate}",
    "{devices=[2,1,2]1,3,0,2 last_tile_dim_replicate}",
    "{devices=[2,1,2,2]<=[8] last_tile_dims={replicated, replicated}}",
    "{devices=[1000]<=[1000]}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_as_xla_reads_it(text):
    xla = xla_client.HloSharding.from_string(text)
    behind = len(xla.subgroup_types()) + xla.replicate_on_last_tile_dim()
    counts = xla.tile_assignment_dimensions()
    places = np.array(xla.tile_assignment_devices()).reshape(counts)
    own = tuple(counts[: len(counts) - behind])
    assignment = read_sharding(text, range(1000))
    assert assignment.counts == own
    for shard in np.ndindex(*own):
        assert assignment.devices[shard] == tuple(sorted(places[shard].flatten()))


@pytest.mark.parametrize(
    "axes", [(("data",), ("model",)), (("model", "data"), ()), ((), ("data",)), ((), ())]
)
@pytest.mark.parametrize("mesh", [WIDE, Mesh([7, 5, 3, 1, 0, 2, 4, 6], (2, 4), ("data", "model"))])
def test_what_is_written_is_read(mesh, axes):
    sharding = Sharding(mesh, axes)
    text = sharding_text(sharding)
    again = read_sharding(text, mesh.device_ids)
    assert str(xla_client.HloSharding.from_string(text)) == text
    if text == "{replicated}":
        assert again.devices == {(): mesh.device_ids}
    else:
        assert again == tile_assignment(sharding)


def test_on_one_device():
    assert read_sharding("{maximal device=3}", range(8)).devices == {(): (3,)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{manual}",
        "{unknown}",
        "[2,4]",
        "{devices=[2,4]}",
        "{devices=[2,4]0,1,2,3}",  # XLA reads zeros for the rest
        "{devices=[2]0,0}",
        "{devices=[0]}",
        "{devices=[2,4]<=[4]}",
        "{devices=[2,4]<=[4,2]T(0,0)}",
        "{devices=[2,4]<=[4,2]T(1)}",
        "{devices=[2] 0,1 last_tile_dim_replicate}",
        "{devices=[2]0,1 last_tile_dim_replicate}",
        "{devices=[2,1,2]<=[4] last_tile_dims={manual}}",
        "{{replicated}, {replicated}}",
        "{devices=[0,2]<=[0]}",
    ],
)
def test_what_is_no_sharding(text):
    with pytest.raises(ShardingError):
        read_sharding(text, range(8))
