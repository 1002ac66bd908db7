"""Scripts inside compiled programs: from many threads, with errors, and in saved executables."""

import os
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.compiling import watched
from tests.packing import always, convolution, needs_onednn
from xla_dynamo.kernels import convolution_parts
from xla_dynamo.kernels.libraries import can_execute_packed
from xla_dynamo.runtime.cpu.script_layout import TARGET

__all__ = ["always"]  # a fixture
pytestmark = needs_onednn


def test_eight_threads_call_the_handler_a_hundred_thousand_times(monkeypatch):
    """Each of four parts; and they have the same numbers each time, to the last bit.

    Half of them bring NaN, so that second scripts run beside first ones.
    """
    monkeypatch.setenv("NPROC", "4")
    monkeypatch.setattr(convolution_parts, "FEWEST_DIVIDED", 0)
    layers = [torch.nn.Sequential(convolution(padding=1), torch.nn.ReLU()) for _ in range(25)]
    model = torch.nn.Sequential(*layers).eval()
    # Not fullgraph: torch counts the frames of all threads in one number then.
    run, built = watched(model, freeze=True)
    inputs = [torch.randn(2, 8, 4, 4) for _ in range(8)]
    for x in inputs[::2]:
        x[0, 0, 0, 0] = float("nan")
    with torch.no_grad():
        expected = [run(x) for x in inputs]
        for x, y in zip(inputs, expected, strict=True):
            torch.testing.assert_close(y, model(x), equal_nan=True)
    assert str(built[0].program.module).count(f"@{TARGET}(") == len(layers)
    wrong = []

    def call(x, y):
        with torch.no_grad():
            bits = y.view(torch.int32)
            wrong.extend(1 for _ in range(500) if not torch.equal(run(x).view(torch.int32), bits))

    pairs = zip(inputs, expected, strict=True)
    threads = [threading.Thread(target=call, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(threads) * 500 * len(layers) == 100_000


def test_xla_raises_the_handlers_errors():
    assert can_execute_packed()
    result = jax.ShapeDtypeStruct((4,), jnp.float32)
    call = jax.ffi.ffi_call(TARGET, result)
    given = [jnp.zeros(4, jnp.float32)] * 12
    with pytest.raises(jax.errors.JaxRuntimeError, match="more than 12 operands and results"):
        jax.jit(lambda *x: call(*x, script=np.zeros(1, np.int64)))(*given).block_until_ready()


SAVED = """
import sys
import torch
import xla_dynamo
from xla_dynamo import metrics
from xla_dynamo.kernels import onednn_convolution
onednn_convolution.FEWEST_IN_CONVOLUTION = 0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()).eval()
x = torch.randn(2, 8, 6, 6)
with torch.no_grad():
    run = torch.compile(model, backend="openxla", options={"freeze": True})
    for scale in (1, 2):
        model[0].weight.mul_(scale)
        torch.testing.assert_close(run(x), model(x))
print("hits", metrics.counter_value("PersistentCacheHit"))
"""


@pytest.mark.slow
def test_executables_are_saved_and_read_by_another_process(tmp_path):
    def hits():
        environment = {**os.environ, "XLA_DYNAMO_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", SAVED], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return int(re.search(r"hits (\d+)", done.stdout)[1])

    assert hits() == 0
    assert hits() == 2  # the program, and the one that computes the frozen values
