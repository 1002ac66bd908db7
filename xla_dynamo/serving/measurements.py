"""What Prometheus is told, under the names that vLLM has for the same."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

_LABELS = ("model_name", "engine")
# vLLM's own, in seconds.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
          10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_NEXT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
         10.0, 20.0, 40.0, 80.0)  # fmt: skip
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
          120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
REASONS = ("stop", "length", "abort", "error")


class Measurements:
    """The metrics of a server of one model.

    Attributes:
        registry: what Prometheus collects.
    """

    def __init__(self, model: str) -> None:
        """Take the name of the model, which labels all of them."""
        self.registry = CollectorRegistry()
        disable_created_metrics()  # when each of them began, which vLLM does not tell either
        self._model = model
        counter, histogram = self._counter, self._histogram
        self._prompt_tokens = counter("vllm:prompt_tokens", "Tokens of prompts.")
        self._answer_tokens = counter("vllm:generation_tokens", "Tokens that were generated.")
        self._queries = counter("vllm:prefix_cache_queries", "Tokens looked up in the cache.")
        self._hits = counter("vllm:prefix_cache_hits", "Tokens found in the cache.")
        self._preemptions = counter("vllm:num_preemptions", "Requests computed anew, for memory.")
        self._first = histogram(
            "vllm:time_to_first_token_seconds", "From a request to its first token.", _FIRST
        )
        self._next = histogram(
            "vllm:inter_token_latency_seconds", "From a token to the next one.", _NEXT
        )
        self._whole = histogram(
            "vllm:e2e_request_latency_seconds", "From a request to its last token.", _WHOLE
        )
        finished = Counter(
            "vllm:request_success",
            "Requests that have ended.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {reason: finished.labels(model, "0", reason) for reason in REASONS}
        refused = Counter(
            "xla_dynamo:requests_refused",
            "Requests that were not taken, by status.",
            (*_LABELS, "status"),
            registry=self.registry,
        )
        self._refused = lambda status: refused.labels(model, "0", status)

    def _counter(self, name: str, text: str) -> Any:
        return Counter(name, text, _LABELS, registry=self.registry).labels(self._model, "0")

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Any:
        made = Histogram(name, text, _LABELS, registry=self.registry, buckets=buckets)
        return made.labels(self._model, "0")

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a number that is read when Prometheus asks."""
        gauge = Gauge(name, text, _LABELS, registry=self.registry)
        gauge.labels(self._model, "0").set_function(read)

    def tokens_came(self, states: Sequence[Any]) -> None:
        """Count the next token of each of some requests of transformers.

        A request that was computed anew, since there was no memory, has had its first token.
        """
        now = time.perf_counter()
        self._answer_tokens.inc(len(states))
        for state in states:
            times = state.timestamps
            if times:
                self._next.observe(now - times[-1])
            elif state._true_initial_tokens:
                self._preemptions.inc()
            else:
                self._first.observe(now - state.created_time)
                self._prompt_tokens.inc(len(state.initial_tokens))

    def looked_up(self, tokens: int, found: int) -> None:
        """Count the tokens of a prompt, and those of them that were in the cache."""
        self._queries.inc(tokens)
        self._hits.inc(found)

    def ended(self, reason: str, seconds: float) -> None:
        """Count a request that has ended, by one of `REASONS`, after so many seconds."""
        self._finished[reason].inc()
        self._whole.observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that was answered by an error of HTTP."""
        self._refused(str(status)).inc()
