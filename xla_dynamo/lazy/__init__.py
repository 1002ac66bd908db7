"""The lazy 'xla' device: importing this package makes `device="xla"` known to torch."""

from xla_dynamo.lazy.execution import sync
from xla_dynamo.lazy.registration import device

__all__ = ["device", "sync"]
