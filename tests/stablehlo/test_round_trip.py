"""Exported programs, saved and called in processes without the model; every one starts cold."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from xla_dynamo.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo

# Of torch's own code, which copies an exported program.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

_WITHOUT_TORCH = """
import sys
from safetensors.numpy import load_file, save_file
from xla_dynamo.stablehlo import NumpyGraphModule
module = NumpyGraphModule.load(sys.argv[1] + "/program")
given = load_file(sys.argv[1] + "/inputs")
out = module(given["x"])
save_file({"out": out}, sys.argv[1] + "/outputs")
assert "torch" not in sys.modules
"""


def small_net():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 4)).eval()


def test_a_process_without_torch(tmp_path):
    model, x = small_net(), torch.randn(5, 8)
    program = exported_program_to_stablehlo(torch.export.export(model, (x,)))
    program.save(tmp_path / "program")
    save_file({"x": x}, tmp_path / "inputs")
    subprocess.run([sys.executable, "-c", _WITHOUT_TORCH, str(tmp_path)], check=True)
    torch.testing.assert_close(load_file(tmp_path / "outputs")["out"], model(x))
    torch.testing.assert_close(StableHLOGraphModule.load(tmp_path / "program")(x), model(x))
