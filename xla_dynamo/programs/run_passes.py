"""Run the passes over a module, and count their times among the metrics."""

from collections.abc import Callable

from jax.extend.mlir import ir

from xla_dynamo.lowerings.passes import manager
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.target import Target
from xla_dynamo.runtime import metrics


def run_passes(
    module: ir.Module, target: Target, observe: Callable[[str, ir.Module], None] | None = None
) -> Notes:
    """Run every pass that is for the target; returns what they note.

    `observe` is given the module as it was lowered, and behind each pass with the pass's name.

    Raises:
        LoweringError, OptionError, ShardingError: see `manager.run`.
    """
    rewritten = manager.run(module, target, observe)
    for name, seconds in rewritten.seconds.items():
        metrics.add_time(f"PassTime.{name}", seconds)
    return rewritten.notes
