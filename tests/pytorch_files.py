"""A pytest plugin that runs PyTorch's own device-generic tests on the 'xla' device.

`python -m pytest -c /dev/null -p tests.pytorch_files CHECKOUT/test/test_view_ops.py`, where
CHECKOUT is a checkout of PyTorch. `--outcomes FILE` writes a line of JSON for each test.
"""

import json
import os
import signal

# Read by torch's test classes when they are made.
os.environ["PYTORCH_TESTING_DEVICE_ONLY_FOR"] = "privateuse1"

import pytest
import torch

import xla_dynamo

xla_dynamo.device()
torch.set_num_threads(1)
_SECONDS = 120  # for one test


def pytest_addoption(parser):
    parser.addoption("--outcomes", help="file to add a line of JSON to for each test")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """The tests of classes that torch made for the device; the others run on the CPU."""
    ours = [item for item in items if getattr(item.cls, "device_type", None) in _NAMES]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(ours)])
    items[:] = ours


_NAMES = ("privateuse1", "xla")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    def late(*_):
        raise TimeoutError(f"{item.name} takes more than {_SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(_SECONDS)
    yield
    signal.alarm(0)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    path = item.config.getoption("--outcomes")
    if path is None or (report.when != "call" and report.passed):
        return
    error = f"{call.excinfo.typename}: {call.excinfo.value}" if call.excinfo else ""
    line = {
        "file": item.path.name,
        "test": item.name,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(call.duration, 2),
        "error": error[:2000],
        "trace": str(report.longrepr)[-3000:] if report.failed else "",
    }
    with open(path, "a") as out:
        out.write(json.dumps(line) + "\n")
