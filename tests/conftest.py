"""Every test starts cold: no graph that Dynamo compiled for another test is left."""

import collections

import pytest
import torch

# The suite runs in two processes on two cores; XLA brings a pool of threads of its own.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked `every(n)`, the cases between every n-th and the next are slow ones."""
    seen: collections.Counter = collections.Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark and not item.get_closest_marker("slow"):
            group = (item.nodeid.partition("[")[0], mark.args)
            if seen[group] % mark.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[group] += 1


@pytest.fixture(autouse=True)
def cold():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
