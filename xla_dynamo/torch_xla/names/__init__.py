"""What stands for each name of PyTorch/XLA 2.9, by module."""

from collections.abc import Mapping

from xla_dynamo.torch_xla.names import debug, distributed, experimental, lazy_tensors, utilities
from xla_dynamo.torch_xla.names.entries import Names

TABLES: Mapping[str, Names] = {
    **lazy_tensors.TABLES,
    **debug.TABLES,
    **distributed.TABLES,
    **experimental.TABLES,
    **utilities.TABLES,
}
