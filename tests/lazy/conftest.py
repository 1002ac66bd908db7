"""The lazy device takes torch's one place for further devices.

That changes `torch.accelerator` and what autograd does for as long as the process lives, so these
tests come last in their process (tests/conftest.py). With LAZY_TESTS_COPY set, buffers and tensors
share no memory, as on platforms that torch has no device for.
"""

import os

import pytest

COPIES = "LAZY_TESTS_COPY"


def pytest_configure(config):
    if os.environ.get(COPIES):
        from xla_dynamo.runtime.clients import ClientConfiguration, configure

        configure(ClientConfiguration(shares_memory=False))


@pytest.fixture(autouse=True)
def nothing_pending():
    """What a test leaves alive can be computed."""
    import xla_dynamo
    from xla_dynamo.lazy import contents

    xla_dynamo.device()
    yield
    xla_dynamo.sync()
    assert all(cell.value.record is None for cell in contents.live_cells())
