"""The requests in work: transformers' manager, with what a server must know of each request."""

import contextlib
import dataclasses
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers.cli.serving.utils import CBWorkerDeadError
from transformers.generation.continuous_batching.continuous_api import BackgroundThreadStatus

from xla_dynamo.serving.measurements import Measurements
from xla_dynamo.serving.prepare import Prepared
from xla_dynamo.serving.sampling import Choosing


@dataclasses.dataclass
class _Work:
    answer: int
    began: float
    choosing: Choosing | None


class Engine:
    """What transformers' handlers take for a manager of continuous batching.

    It counts requests, gives each its own way to choose, and forgets those that nobody waits for.

    Attributes:
        asked: by the id of a request of HTTP, how its tokens are to be chosen, until it is
            cancelled, which each is when its answer is sent.
    """

    def __init__(self, prepared: Prepared, measurements: Measurements) -> None:
        """Take a model that is ready, and where to count."""
        self._prepared, self._measurements = prepared, measurements
        self._manager = prepared.manager
        self._work: dict[str, _Work] = {}
        self._held: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, Choosing] = {}
        self._choices: dict[str, list[str]] = {}
        self._manager.runner.watchers.append(measurements.tokens_came)
        self._watch_lookups()
        watch = measurements.watch
        watch("vllm:num_requests_running", "Requests in the batches.", self.running)
        watch("vllm:num_requests_waiting", "Requests that wait for a batch.", self.waiting)
        watch("vllm:kv_cache_usage_perc", "Part of the cache that is in use.", self.cache_usage)
        watch(
            "xla_dynamo:compilations_since_warm_up",
            "Graphs and programs compiled since the server was ready.",
            prepared.compilations,
        )

    def _watch_lookups(self) -> None:
        cache = self._manager.runner.cache
        search = cache.search_prefix_match

        def search_and_count(request_id: str, prompt: list[int]) -> int:
            found = search(request_id, prompt)
            self._measurements.looked_up(len(prompt), found)
            return found

        cache.search_prefix_match = search_and_count

    def running(self) -> int:
        """How many requests are in the batches."""
        return len(self._scheduler().active_requests)

    def waiting(self) -> int:
        """How many requests wait for a batch."""
        return self._manager.input_queue.qsize() + len(self._scheduler().waiting_requests)

    def cache_usage(self) -> float:
        """The part of the cache that requests hold, from 0 to 1."""
        cache = self._manager.runner.cache
        held = {page for ca in cache.cache_allocators.values() for page in _pages(ca)}
        total = sum(ca.num_blocks for ca in cache.cache_allocators.values())
        return len(held) / total

    def _scheduler(self) -> Any:
        return self._manager.batch_processor.scheduler

    @property
    def background_thread_status(self) -> BackgroundThreadStatus:
        """That of the manager."""
        return self._manager.background_thread_status

    def is_alive(self) -> bool:
        """Whether requests are worked on."""
        is_well = self.background_thread_status.can_accept_new_requests() is None
        return is_well and self._manager.is_running()

    def begin_choices(self, request_id: str, names: Sequence[str]) -> None:
        """Say which requests here are one of HTTP, so that they are cancelled with it."""
        self._choices[request_id] = list(names)

    def add_request(
        self,
        input_ids: list[int],
        *,
        request_id: str,
        choosing: Choosing | None = None,
        **kwargs: Any,
    ) -> str:
        """Begin a request, with the arguments of transformers' `add_request`.

        `choosing` says how its tokens are chosen; without it, the likeliest ones. A request whose
        tokens are streamed is held until somebody takes its results: transformers says who only
        behind this call, and meanwhile the first ones could be lost.

        Raises:
            CBWorkerDeadError: nobody works on requests any more.
        """
        answer = kwargs["max_new_tokens"]
        self._work[request_id] = _Work(answer, time.perf_counter(), choosing)
        self._held[request_id] = {"input_ids": input_ids, **kwargs}
        if not kwargs["streaming"]:
            self._begin(request_id)
        return request_id

    def _begin(self, request_id: str) -> None:
        held = self._held.pop(request_id)
        if (choosing := self._work[request_id].choosing) is not None:
            self._manager.runner.choosing[request_id] = choosing
        taken = self._manager.add_request(request_id=request_id, record_timestamps=True, **held)
        if taken is None:
            self._end(request_id, "error")
            raise CBWorkerDeadError("the server does not work on requests any more")

    def register_result_handler(self, request_id: str, callback: Callable[[Any], None]) -> None:
        """Let a function of the running event loop have the results of a request."""

        def counted(output: Any) -> None:
            if output.is_finished() and (work := self._work.get(request_id)):
                self._end(request_id, _reason(output, work))
            callback(output)

        self._manager.register_result_handler(request_id, counted)
        if request_id in self._held:
            self._begin(request_id)

    def cancel_request(self, request_id: str) -> None:
        """Stop the work on a request that has not ended; nobody gets its results."""
        for name in self._choices.pop(request_id, ()):
            if name != request_id:
                self.cancel_request(name)
        self.asked.pop(request_id, None)
        router = self._manager.output_router
        with router._lock:
            router.result_handlers.pop(request_id, None)
        if request_id in self._work:
            self._manager.cancel_request(request_id)
            self._end(request_id, "abort")
        # Where the results go of requests that were in a batch when they were cancelled.
        with contextlib.suppress(queue.Empty):
            while True:
                router.output_queue.get_nowait()

    def _end(self, request_id: str, reason: str) -> None:
        work = self._work.pop(request_id)
        self._manager.runner.choosing.pop(request_id, None)
        self._measurements.ended(reason, time.perf_counter() - work.began)

    def unfinished(self) -> int:
        """How many requests have begun and not ended."""
        return len(self._work)

    def start(self) -> None:
        """Begin to work on requests, in a thread."""
        self._manager.start()

    def stop(self) -> None:
        """End the thread; what is unfinished fails."""
        self._manager.stop(block=True, timeout=30, hard_stop=True)


def _reason(output: Any, work: _Work) -> str:
    """Why a request has ended: one of `measurements.REASONS`."""
    choosing = work.choosing or Choosing()
    if output.error or choosing.error:
        return "error"
    is_full = len(output.generated_tokens) >= work.answer
    return "length" if is_full and not choosing.is_over else "stop"


def _pages(allocator: Any) -> list[tuple[int, int]]:
    """The pages of a cache that requests hold, each with the number of its allocator."""
    tables = list(allocator.block_table.values())
    return [(allocator.index, page) for pages in tables for page in list(pages)]
