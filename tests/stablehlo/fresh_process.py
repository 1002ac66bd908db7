"""Calls saved programs as its own process: first without torch, then with it, without the models.

`python fresh_process.py FOLDER ...` reads FOLDER/program and the inputs of each call in
FOLDER/inputs.0, inputs.1 and so on; writes the outputs' leaves and the weights after the last call.
"""

import pathlib
import sys

import safetensors.numpy


def call_all(module, folder, kind, load_file, save_file):
    """Run all calls; write what they return."""
    signature = module.signature
    for number in range(len(list(folder.glob("inputs.*")))):
        given = load_file(folder / f"inputs.{number}")
        leaves = [
            given[str(i)] if leaf.spec is not None else leaf.value
            for i, leaf in enumerate(signature.inputs)
        ]
        args, kwargs = signature.input_tree.unflatten(leaves)
        made = signature.output_tree.flatten(module(*args, **kwargs), "the output")
        tensors = {str(i): x for i, x in enumerate(made) if hasattr(x, "dtype")}
        for i, leaf in enumerate(signature.outputs):
            assert leaf.kind != "constant" or made[i] == leaf.value
        copies = {k: x.copy() if kind == "numpy" else x.clone() for k, x in tensors.items()}
        save_file(copies, folder / f"{kind}.{number}")
    save_file(dict(module.weights), folder / f"{kind}.weights")


folders = [pathlib.Path(name) for name in sys.argv[1:]]
from xla_dynamo.stablehlo import NumpyGraphModule  # noqa: E402

for folder in folders:
    module = NumpyGraphModule.load(folder / "program")
    call_all(module, folder, "numpy", safetensors.numpy.load_file, safetensors.numpy.save_file)
assert "torch" not in sys.modules, "the NumPy module has imported torch"

import safetensors.torch  # noqa: E402

from xla_dynamo.stablehlo import StableHLOGraphModule  # noqa: E402

for folder in folders:
    module = StableHLOGraphModule.load(folder / "program")
    call_all(module, folder, "torch", safetensors.torch.load_file, safetensors.torch.save_file)
assert not {"transformers", "tests"} & set(sys.modules), "the process has the model's code"
