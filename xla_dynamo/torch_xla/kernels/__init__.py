"""PyTorch/XLA's kernels and custom operators, which run on every platform.

On TPU they are JAX's kernels in Pallas. Elsewhere they are operators of torch, whose lowerings call
fast kernels, or functions of JAX. The operators have PyTorch/XLA's names in `torch.ops.xla`.
"""
