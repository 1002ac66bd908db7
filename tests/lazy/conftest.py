"""Each file of these tests runs in a process of its own when others run, too.

The lazy device takes torch's one place for further devices, which changes `torch.accelerator` and
what autograd does for as long as the process lives. So where pytest is given more than this folder,
a file here is one test: pytest on that file in another process.
"""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent


def pytest_pycollect_makemodule(module_path, parent):
    """A file as one test, unless nothing but this folder runs."""
    start = parent.config.invocation_params.dir
    given = [(start / a.partition("::")[0]).resolve() for a in parent.config.args]
    if all(p.is_relative_to(HERE) for p in given):
        return None
    return FileApart.from_parent(parent, path=module_path)


# These run a second time where buffers and tensors share no memory, as on platforms that torch has
# no device for.
RUN_WITH_COPIES = {"test_arithmetic.py", "test_compiled.py", "test_moves.py"}
COPIES = "LAZY_TESTS_COPY"


class FileApart(pytest.File):
    def collect(self):
        yield InProcess.from_parent(self, name="in_a_process_of_its_own")
        if self.path.name in RUN_WITH_COPIES:
            yield InProcess.from_parent(self, name="without_shared_memory")


class InProcess(pytest.Item):
    def runtest(self):
        environment = dict(os.environ)
        if self.name == "without_shared_memory":
            environment[COPIES] = "1"
        marks = self.config.getoption("markexpr")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
        # The process ends itself where a test hangs (pyproject.toml), before this process would.
        limit = ["-o", "faulthandler_timeout=240"]
        run = subprocess.run(
            [*command, *limit, str(self.path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=environment,
        )
        if run.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            pytest.fail(f"{run.stdout[-8000:]}\n{run.stderr[-8000:]}", pytrace=False)

    def reportinfo(self):
        return self.path, 0, f"{self.path.name} {self.name.replace('_', ' ')}"


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
