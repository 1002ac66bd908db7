"""The tests of the lazy device run in processes of their own: see tests/test_lazy_device.py.

The device takes torch's one place for further devices, before autograd runs for the first time.
That changes `torch.accelerator`, and what autograd does, for as long as the process lives. So where
pytest is given more than this folder, it leaves the folder to `tests/test_lazy_device.py`. With
LAZY_TESTS_COPY set, buffers and tensors share no memory, as on platforms unknown to torch.
"""

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent
COPIES = "LAZY_TESTS_COPY"


def pytest_ignore_collect(collection_path, config):
    """Whether a file here is left out, since other tests run in this process."""
    start = config.invocation_params.dir
    given = [(start / a.partition("::")[0]).resolve() for a in config.args]
    return None if all(p.is_relative_to(HERE) for p in given) else True


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


@pytest.fixture
def torch_xla_installed():
    """For a test: afterwards nothing in the process is called torch_xla."""
    from xla_dynamo.torch_xla import install

    install()
    yield
    for name in [n for n in sys.modules if n.split(".")[0] == "torch_xla"]:
        del sys.modules[name]
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != install.__module__]
