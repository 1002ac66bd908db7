"""Compile a causal model of transformers for continuous batching, before the first request."""

import copy
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import torch

from xla_dynamo.execution.precompile import precompile
from xla_dynamo.runtime import metrics
from xla_dynamo.serving.batching import PaddedManager
from xla_dynamo.serving.sizes import Sizes
from xla_dynamo.torch_private import dynamo_counters


@dataclasses.dataclass
class Prepared:
    """A model that is compiled for all batches to come.

    Attributes:
        manager: takes requests after `manager.start()`; `manager.stop()` ends its thread.
        sizes: what it was compiled for.
        executables: how many there are.
        seconds: how long it took to compile them, or to load them from the disk cache.
    """

    manager: PaddedManager
    sizes: Sizes
    executables: int
    seconds: float
    _compiled: int = 0

    def compilations(self) -> int:
        """How often this process has compiled since: graphs of Dynamo, and programs of XLA."""
        return compilations() - self._compiled


def prepare(
    model: Any, sizes: Sizes | None = None, *, options: Mapping[str, Any] | None = None
) -> Prepared:
    """Compile a model for continuous batching, so that no request waits for a compilation.

        prepared = xla_dynamo.serving.prepare(model)
        prepared.manager.start()
        name = prepared.manager.add_request(tokens, max_new_tokens=20)
        answer = prepared.manager.get_result(name).generated_tokens

    Batches are padded to a few sizes: `sizes.token_bounds()` by `sizes.read_bounds()`. Each has an
    executable, which the disk cache keeps for later processes.

    Args:
        model: a causal language model of transformers on the CPU, in inference; its weights may be
            quantized. It is compiled in place, as by `model.compile()`, and attends by sdpa.
        sizes: how much to hold and to compute at a time; None for `Sizes.of(model.config)`.
        options: of the backend, as for `torch.compile(..., options=...)`.

    Raises:
        OptionError: the sizes do not go together, or an option is unknown.
        CompileError, LoweringError, UnsupportedOperator: the model cannot be compiled.
    """
    start = time.perf_counter()
    model.eval()
    manager = PaddedManager(model, sizes or Sizes.of(model.config.get_text_config()))
    runner = manager.runner
    wanted = runner.all_sizes()
    # Not dynamic=True, which makes numbers of the model dynamic and then traces all once more:
    # `precompile` marks the sizes that differ.
    model.compile(
        backend="openxla",
        options={"buckets": "exact", "max_executables": len(wanted) + 1, **(options or {})},
    )
    with torch.no_grad():
        # Copied, since examples share their memory; the cache is what each of them has.
        examples = [_copied(runner.example(model, *pair)) for pair in wanted]
        precompile(model, shapes=examples)
        # Once for each size as in a batch, in case something is left for the first true call.
        for example in examples:
            model(**example)
    manager.batch_processor.cache.reset()
    manager.batch_processor.inputs_and_outputs.reset()
    seconds = time.perf_counter() - start
    return Prepared(manager, manager.sizes, len(wanted), seconds, compilations())


def _copied(batch: Mapping[str, Any]) -> dict[str, Any]:
    shared = {"cache": batch["cache"]}
    return {**copy.deepcopy({k: v for k, v in batch.items() if k not in shared}), **shared}


def compilations() -> int:
    """How often this process has compiled: graphs of Dynamo, and programs of XLA."""
    return dynamo_counters["stats"]["unique_graphs"] + (
        metrics.counter_value("UncachedCompile") or 0
    )
