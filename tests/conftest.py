"""Every test starts cold: no graph that Dynamo compiled for another test is left."""

import gc
import os
import pathlib
import sys
import warnings

import pytest
import torch

import bench  # noqa: F401  (before transformers: see xla_dynamo/torchvision_operators.py)
from tests import drawing, lean_torch  # noqa: F401
from tests.older_releases import fault_of
from xla_dynamo.calls.frozen_inputs import FrozenProgram
from xla_dynamo.dynamo import dynamo_trace
from xla_dynamo.execution import split_graph
from xla_dynamo.process_state import replaced
from xla_dynamo.runtime import metrics, xla_options
from xla_dynamo.variants import background

# The CPU appears as eight devices, over which some tests partition programs; the others use the
# first.
os.environ.setdefault("CPU_NUM_DEVICES", "8")

# No test finds what another has left on the disk, nor does a process that a test starts: those of
# the disk cache name a folder of their own.
os.environ["XLA_DYNAMO_CACHE_DIR"] = ""

# An invalid module is the fault of the pass that left it, and not of XLA's parser.
os.environ.setdefault("XLA_DYNAMO_PASSES", "verify")

# The suite runs in two processes on two cores; XLA brings a pool of threads of its own.
torch.set_num_threads(1)


LAZY = pathlib.Path(__file__).parent / "lazy"


def pytest_addoption(parser):
    parser.addoption("--draw", metavar="SEED", help="which cases of sweeps run (the commit)")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its own option
def pytest_configure(config):
    if config.option.draw is None:
        config.option.draw = drawing.seed_of_commit()
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(drawing.number(config.option.draw))


def pytest_report_header(config):
    return f"cases of sweeps drawn by --draw {config.option.draw}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    drawing.mark_slow(items, config.option.draw)
    for item in items:
        if fault := fault_of(item.nodeid.removeprefix("tests/")):
            reason = f"{fault.library} {fault.until} and older: {fault.reason}"
            item.add_marker(pytest.mark.skip(reason=reason))
    # What takes minutes begins first: at the end the other process would wait for it.
    items.sort(key=lambda item: item.path.name != "test_lazy_device.py")


def pytest_collection_finish(session):
    """Modules and tests stay: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def drawn(request):
    """A number that differs from test to test and from commit to commit, for random programs."""
    return drawing.number(request.config.option.draw, request.node.nodeid)


@pytest.fixture(autouse=True)
def cold():
    torch._dynamo.reset()
    torch.manual_seed(0)
    # So no tensor is marked, nor was one ever: graphs would be compiled at their first call.
    with replaced():
        yield
        torch._dynamo.reset()
        background.wait()  # for what would count in the next test
    dynamo_trace._TRACE.removeHandler(dynamo_trace._LOG)  # there since the test had the log on


@pytest.fixture(autouse=True)
def no_lazy_device(request):
    """No test claims torch's place for further devices, but those of the lazy device."""
    yield
    if LAZY not in request.path.parents:
        assert not hasattr(torch, "xla"), "the lazy device was claimed: move the test to tests/lazy"


@pytest.fixture(autouse=True)
def code_generation(request, monkeypatch):
    """LLVM's optimizations are half of the time of a compilation: not every file has them."""
    if not drawing.is_optimized(request.path, request.config.option.draw):
        monkeypatch.setitem(xla_options.OF_PLATFORM["cpu"], "xla_backend_optimization_level", 0)


@pytest.fixture
def split_graphs(monkeypatch):
    """The graphs of the test that were cut, since something in them runs in eager torch."""
    made = []

    class Watched(split_graph.SplitGraph):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("xla_dynamo.execution.compile_graph.SplitGraph", Watched)
    return made


@pytest.fixture
def frozen_runs(monkeypatch):
    """The frozen programs that computed values from parameters, one entry for each time."""
    runs, keep = [], FrozenProgram._keep

    def counted(self, *args):
        runs.append(self)
        keep(self, *args)

    monkeypatch.setattr(FrozenProgram, "_keep", counted)
    return runs


@pytest.fixture
def executables():
    """A function that says how many executables were built since the test began."""
    before = metrics.counter_value("UncachedCompile")
    return lambda: metrics.counter_value("UncachedCompile") - before


@pytest.fixture
def traces():
    """A function that says how many graphs Dynamo has traced since the test began."""
    counters = torch._dynamo.utils.counters
    before = counters["stats"]["unique_graphs"]
    return lambda: counters["stats"]["unique_graphs"] - before


@pytest.fixture
def others_may_warn():
    """Warnings are errors only if the code that raises them is ours.

    A filter cannot tell, as it sees the module that a warning is attributed to: with `stacklevel`,
    a library's warning about itself is attributed to the test that calls the library.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = _raise_ours
        yield


_OURS = tuple(
    str(pathlib.Path(__file__).parent.parent / folder)
    for folder in ("bench", "docs", "lowerings", "runtime", "tests", "xla_dynamo")
)


def _raise_ours(message, category, filename, lineno, file=None, line=None):
    """Runs inside `warnings.warn`, whose caller is two frames up, above one of `warnings`."""
    if sys._getframe(2).f_code.co_filename.startswith(_OURS):
        raise message
