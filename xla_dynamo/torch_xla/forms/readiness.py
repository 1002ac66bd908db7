"""Names of `torch_xla.experimental.callback`: be told when a tensor is computed."""

import threading
from collections.abc import Callable
from typing import Any

import torch

import xla_dynamo
from xla_dynamo.lazy.contents import cell_of
from xla_dynamo.lazy.execution import compute


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], Any]) -> None:
    """Call a function with a tensor, in another thread, when the tensor is computed.

    Its program is started here, if it has not been.

    Args:
        tensor: a tensor of the device.
        callback: what it raises, Python prints.
    """
    call_when_ready(tensor, lambda: callback(tensor))


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set when a tensor is computed; its program is started here."""
    event = threading.Event()
    call_when_ready(tensor, event.set)
    return event


def call_when_ready(tensor: torch.Tensor, callback: Callable[[], Any]) -> None:
    """Call a function in another thread, when a tensor of the device is computed.

    Raises:
        XlaDynamoError: XLA cannot compile or run the tensor's program; see `xla_dynamo.errors`.
    """
    value = cell_of(tensor).value
    if value.record is not None:
        compute([value], "on_ready_callback")

    def wait() -> None:
        xla_dynamo.unlazy([tensor])
        callback()

    threading.Thread(target=wait, name="xla_dynamo readiness", daemon=True).start()
