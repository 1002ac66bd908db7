"""The manual region that is traced is one of a thread."""

from concurrent.futures import ThreadPoolExecutor

from tests.spmd.sharding import TALL, WIDE
from xla_dynamo.spmd import current_mesh


def test_a_region_belongs_to_a_thread():
    current_mesh.enter(WIDE)
    try:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(current_mesh.current_mesh).result() is None
            other.submit(current_mesh.enter, TALL).result()
            assert current_mesh.current_mesh() is WIDE
            other.submit(current_mesh.leave).result()
            assert current_mesh.current_mesh() is WIDE
    finally:
        current_mesh.leave()
    assert current_mesh.current_mesh() is None
