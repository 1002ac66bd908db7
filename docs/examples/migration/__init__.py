"""PyTorch/XLA's examples as they are written for this package, on ordinary tensors.

Each runs on a CPU in seconds with `--steps 2` or so, and is a script of PyTorch/XLA's by one other
road: `python -m xla_dynamo.torch_xla` runs that script with no line changed.
"""
