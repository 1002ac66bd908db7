"""PyTorch/XLA's modules and names over this package, for scripts that say `import torch_xla`.

`python -m xla_dynamo.torch_xla script.py` runs a script, and `install()` lets a program import
`torch_xla`. What stands for each name, the tables in `names` say.
"""

from xla_dynamo.torch_xla.modules import install

__all__ = ["install"]
