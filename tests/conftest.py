"""Every test starts cold: no graph that Dynamo compiled for another test is left."""

import pytest
import torch

# The suite runs in two processes on two cores; XLA brings a pool of threads of its own.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cold():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
