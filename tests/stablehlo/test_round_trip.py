"""Ten models, saved and called in processes without their code; every one starts cold."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.stablehlo.models import CASES
from xla_dynamo.stablehlo import exported_program_to_stablehlo
from xla_dynamo.torch_private import pytree

# Of torch's own code, which copies an exported program, and of its recurrent layers.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning", "ignore:The tensor attributes:UserWarning"
)
_PROCESS = pathlib.Path(__file__).with_name("fresh_process.py")
_ROOT = _PROCESS.parent.parent.parent
_FAST = ("nested", "residual_dynamic_batch", "residual_training")


def _named(leaves):
    return {str(i): x.clone().contiguous() for i, x in enumerate(leaves) if torch.is_tensor(x)}


def _save(name, folder):
    """Save a case and its calls' inputs; returns the signature, eager's outputs and its model."""
    case = CASES[name]
    program = exported_program_to_stablehlo(case.export(case.model()))
    program.save(folder / "program")
    eager, expected = case.model(), []
    for number, sizes in enumerate(case.sizes):
        args, kwargs = case.calls(*sizes)
        save_file(_named(pytree.tree_leaves((args, kwargs))), folder / f"inputs.{number}")
        with torch.no_grad():
            expected.append(pytree.tree_leaves(eager(*args, **kwargs)))
    return program.signature, expected, eager


def _compare(name, folder, signature, expected, eager):
    trains = CASES[name].trains
    assert bool(signature.changes) == trains
    for kind in ("numpy", "torch"):
        for number, leaves in enumerate(expected):
            made = load_file(folder / f"{kind}.{number}")
            torch.testing.assert_close(made, _named(leaves), rtol=1e-4, atol=1e-5)
        weights = load_file(folder / f"{kind}.weights")
        buffers = {n: b for n, b in eager.named_buffers() if n in weights}
        torch.testing.assert_close({n: weights[n] for n in buffers}, buffers)
        assert not trains or any("running_mean" in n for n in buffers)


@pytest.mark.parametrize(
    "names", [_FAST, *(pytest.param((n,), marks=pytest.mark.slow) for n in CASES if n not in _FAST)]
)
def test_ten_models(names, tmp_path):
    """In a fresh process, with NumPy and with torch, each call gives what eager gives."""
    saved = {}
    for name in names:
        (tmp_path / name).mkdir()
        saved[name] = _save(name, tmp_path / name)
    folders = [tmp_path / name for name in names]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    subprocess.run([sys.executable, _PROCESS, *folders], check=True, cwd=_ROOT, env=environment)
    for name in names:
        _compare(name, tmp_path / name, *saved[name])


def test_the_ten_are_what_they_should_be():
    assert len(CASES) == 10
    assert sum(case.dynamic_shapes is not None for case in CASES.values()) >= 2
    assert sum(case.trains for case in CASES.values()) == 1
    assert sum(bool(case.calls(*case.sizes[0])[1]) for case in CASES.values()) >= 2
