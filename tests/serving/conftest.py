"""A server in a process of its own, and the same tiny model in this one, to compare with."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported


@pytest.fixture(autouse=True)
def libraries_may_warn(others_may_warn):
    """What a library says about itself is no error of ours; our own warnings are errors."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The folder of the disk cache for the servers of all tests, of all processes of the suite."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "serving-cache"


@pytest.fixture(scope="session")
def served(cache, tmp_path_factory):
    """A server that is ready, for all tests of a process of the suite."""
    from tests.serving.running import Running

    with Running(cache, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """The tiny model without a server."""
    from tests.serving.running import Alone

    return Alone(tmp_path_factory.mktemp("model"))
