"""Scripts of PyTorch/XLA, run over this package by `python -m xla_dynamo.torch_xla`."""
