"""Names of `torch_xla.test`, and of spawned processes."""

import functools
import multiprocessing
import time
import unittest
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import xla_dynamo
from xla_dynamo.torch_xla.forms.metrics_comparison import parse_metrics_report


def now(format: str = "%H:%M:%S") -> str:
    """The time of day, as `time.strftime` writes it."""
    return time.strftime(format)


def mp_test(func: Callable[..., Any]) -> Callable[..., int | None]:
    """Run a test, as a method of a `unittest.TestCase`, in a process that is forked for it.

    Nothing may have been computed before, since a forked process cannot compute then.

    Returns:
        The test, which fails if the process does, and returns the process's exit code.
    """

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=func, args=args, kwargs=kwargs)
        process.start()
        process.join()
        if process.exitcode and args and isinstance(args[0], unittest.TestCase):
            raise AssertionError(f"the process of the test ended with the code {process.exitcode}")
        return process.exitcode

    return run


def print_training_update(
    device: Any,
    step: int,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Print how far a training is, and how fast."""
    parts = [
        "Training",
        f"Device={_device_spec(device)}",
        *([] if epoch is None else [f"Epoch={epoch}"]),
        f"Step={step}",
        f"Loss={float(loss):.5f}",
        f"Rate={rate:.2f}",
        f"GlobalRate={global_rate:.2f}",
        f"Time={now()}",
    ]
    print("|", *parts, flush=True)
    rates = {"examples/sec": rate, "average_examples/sec": global_rate}
    write_to_summary(summary_writer, dict_to_write=rates)


def _device_spec(device: Any) -> str:
    """A device, and which process has it."""
    return f"{device}/{xla_dynamo.get_ordinal()}"


def print_test_update(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Print how good a model is."""
    rounded = None if accuracy is None else f"{accuracy:.2f}"
    told = {"Step": step, "Epoch": epoch, "Accuracy": rounded, "Time": now()}
    parts = [f"{name}={value}" for name, value in told.items() if value is not None]
    print(f"| Test Device={_device_spec(device)}", *parts, flush=True)


def get_summary_writer(logdir: str | None) -> Any:
    """TensorBoard's writer in the first process; None elsewhere, and without a folder."""
    if not logdir or not xla_dynamo.is_master_ordinal():
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(log_dir=logdir)


def add_scalar_to_summary(
    summary_writer: Any, metric_name: str, metric_value: float, global_step: int
) -> None:
    """Write a number, if there is a writer."""
    if summary_writer is not None:
        summary_writer.add_scalar(metric_name, metric_value, global_step)


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: dict[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write numbers, if there is a writer.

    Args:
        summary_writer: the writer, as TensorBoard's, or None.
        global_step: the step that they belong to.
        dict_to_write: the numbers by their names.
        write_xla_metrics: whether to write those of the report of metrics, too, and how often
            torch ran an operator, as "aten_ops_sum".
    """
    if summary_writer is None:
        return
    told = dict(dict_to_write or {})
    if write_xla_metrics:
        counted = parse_metrics_report(xla_dynamo.metrics.metrics_report())
        told |= counted
        told["aten_ops_sum"] = sum(n for name, n in counted.items() if name.startswith("aten::"))
    for name, value in told.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Close a writer, if there is one."""
    if summary_writer is not None:
        summary_writer.close()


class MpModelWrapper:
    """A model that the processes of a job share until they move it to their device."""

    def __init__(self, model: nn.Module) -> None:
        """Take the model."""
        self._model = model

    def to(self, device: torch.device | str) -> nn.Module:
        """The model on a device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in one process of a job after the other."""

    def run(self, fn: Callable[[], Any]) -> Any:
        """What the function returns in this process; the others wait until it is done."""
        found = None
        for number in range(xla_dynamo.xrt_world_size()):
            if number == xla_dynamo.get_ordinal():
                found = fn()
            xla_dynamo.rendezvous(f"MpSerialExecutor {number}")
        return found
