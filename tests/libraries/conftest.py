"""Libraries may warn about themselves, and must not reach for the network."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported


@pytest.fixture(autouse=True)
def libraries_may_warn(others_may_warn):
    """What a library says about itself is no error of ours; our own warnings are errors."""
