"""The machine code that runs scripts: its listing, and what it does with scripts."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from xla_dynamo.runtime.cpu import machine_code
from xla_dynamo.runtime.libraries import libraries_of

runs = pytest.mark.skipif(
    "onednn_packed" not in libraries_of("cpu"), reason="no library of oneDNN's own is here"
)


@pytest.mark.skipif(shutil.which("as") is None, reason="no assembler")
@pytest.mark.skipif(not machine_code.can_run(), reason="for x86-64")
def test_the_bytes_are_what_the_assembler_makes_of_the_instructions(tmp_path):
    text = "\n".join(line[26:] for line in machine_code.LISTING.splitlines())
    for name, mark in machine_code._ADDRESSES.items():
        text = text.replace(f"${name}", f"$0x{mark.hex()}")
    source, made = tmp_path / "code.s", tmp_path / "code.o"
    source.write_text(text + "\n")
    subprocess.run(["as", "-o", made, source], check=True)
    assert machine_code.code() in made.read_bytes()


SAVED = """
import sys
import torch
import xla_dynamo
from xla_dynamo import metrics
from xla_dynamo.lowerings.cpu import onednn
onednn.FEWEST_IN_CONVOLUTION = 0
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


@runs
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
