"""The lazy 'xla' device: importing this package makes `device="xla"` known to torch."""

from xla_dynamo.lazy import device
from xla_dynamo.lazy.execution import compute as sync

__all__ = ["device", "sync"]
