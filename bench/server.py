"""A server of one BERT or GPT-2, and the clients that send it requests, in a process of its own.

A request is a batch of 1 to 16 texts of 16 to 256 tokens, both drawn with a bias to the small. The
server calls the model, one call at a time, with sizes as they come: openxla has executables for
buckets of them. Where the server is to pad, it pads texts to the next multiple of 16 tokens (a mask
hides the padding) and cuts batches into 16, 8, 4, 2 and 1, each of which is an executable.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

import xla_dynamo
from bench.models import build
from bench.processes import answer_requests
from bench.timing import set_threads
from xla_dynamo.graphs.buckets import bucket_of

LENGTHS = range(16, 257, 16)
BATCHES = (1, 2, 4, 8, 16)
# A batch is filled up rather than cut where no more tokens than this are wasted.
WASTE = 64


def request(draw: random.Random, longest: int) -> tuple[int, int]:
    """The batch and the length of a request; half of them are below 4 and 64."""
    return round(16 ** draw.random()), min(round(16 * 16 ** draw.random()), longest)


def built(name: str, size: str) -> torch.nn.Module:
    """A model of the benchmark; "small" is 4 layers of width 256."""
    if size != "small":
        return build(name, size)
    torch.manual_seed(0)
    config: Any
    if name == "bert":
        config = transformers.BertConfig(
            vocab_size=8192,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
        )
        return transformers.BertForMaskedLM(config).eval()
    config = transformers.GPT2Config(
        vocab_size=8192,
        n_embd=256,
        n_layer=4,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def sizes(longest: int) -> tuple[list[int], list[int]]:
    """Batches and lengths of requests, of which each bucket of openxla has one.

    The least length comes besides, so that lengths are seen to vary where they have one bucket.
    """
    limit = min(LENGTHS[-1], longest)
    batches = _bounds(range(2, BATCHES[-1] + 1), is_batch=True)
    lengths = _bounds(range(LENGTHS[0], limit + 1), is_batch=False)
    return [1, *batches], sorted({LENGTHS[0], *lengths})


def _bounds(numbers: Sequence[int], *, is_batch: bool) -> list[int]:
    buckets = [bucket_of(n, "auto", (2, 1 << 24), is_batch=is_batch) for n in numbers]
    return sorted({min(b.high, numbers[-1]) for b in buckets if b is not None})


class Server:
    """Answers requests, one call of the model at a time."""

    def __init__(self, model: Callable[..., Any], longest: int, pads: bool) -> None:
        self.model, self.pads = model, pads
        self.lengths = [n for n in LENGTHS if n <= longest]
        self.turn = threading.Lock()

    def answer(self, ids: torch.Tensor) -> torch.Tensor:
        """The model's output for the texts `ids`, [batch, length]."""
        with self.turn, torch.no_grad():
            if not self.pads:
                return self._call(ids, torch.ones_like(ids))
            answers = [self._padded(piece) for piece in ids.split(pieces(*ids.shape))]
            return torch.cat(answers) if len(answers) > 1 else answers[0]

    def _padded(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        rows = next(b for b in BATCHES if b >= batch)
        columns = next(n for n in self.lengths if n >= length)
        padded, mask = torch.zeros(2, rows, columns, dtype=torch.long)
        padded[:batch, :length] = ids
        mask[:, :length] = 1
        return self._call(padded, mask)[:batch, :length]

    def _call(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).logits


def pieces(batch: int, length: int) -> list[int]:
    """How a batch is cut into sizes that are compiled, the last one filled up."""
    cut: list[int] = []
    while batch:
        above = next(b for b in BATCHES if b >= batch)
        below = max(b for b in BATCHES if b <= batch)
        cut.append(batch if (above - batch) * length <= WASTE else below)
        batch -= cut[-1]
    return cut


class Loop:
    """The server with one backend, and the clients of one turn after another."""

    def __init__(
        self, backend: str, model: str, size: str, clients: int, threads: int, pads: bool
    ) -> None:
        """Build the model."""
        set_threads(threads)
        self.eager, self.clients = built(model, size), clients
        run = self.eager
        if backend != "eager":
            options = None
            if backend == "openxla":
                options = {"max_executables": 128, "buckets": "exact" if pads else "auto"}
            run = torch.compile(run, backend=backend, dynamic=True, options=options)
        self.server = Server(run, self.eager.config.max_position_embeddings, pads)
        self.compiles_ahead = backend == "openxla"
        self.compiled = self.memory = 0

    def warm_up(self) -> dict[str, Any]:
        """Answer one request of each size that is compiled, and one that must be right."""
        start = time.perf_counter()
        longest = self.server.lengths[-1]
        rows, columns = (BATCHES, self.server.lengths) if self.server.pads else sizes(longest)
        shapes = [((r, c), torch.long) for r in rows for c in columns]
        if self.compiles_ahead:
            names = ("input_ids", "attention_mask")
            with torch.no_grad():
                xla_dynamo.precompile(
                    self.server.model, shapes=[dict.fromkeys(names, shape) for shape in shapes]
                )
        for shape, dtype in shapes:
            self.server.answer(torch.ones(shape, dtype=dtype))
        seconds = time.perf_counter() - start
        ids = torch.randint(0, 99, (3, longest - 9))
        with torch.no_grad():
            expected = self.eager(input_ids=ids).logits
        torch.testing.assert_close(self.server.answer(ids), expected, rtol=1e-3, atol=1e-3)
        self.compiled, self.memory = compilations(), resident()
        return {"seconds": seconds}

    def take_turn(self, number: int, seconds: float) -> dict[str, Any]:
        """Serve so long, and then what is waiting; a turn of a number has the same requests."""
        latencies: list[float] = []
        failures: list[Exception] = []
        start = time.perf_counter()

        def client(name: int) -> None:
            draw = random.Random(f"turn {number}, client {name}")
            try:
                while time.perf_counter() < start + seconds:
                    ids = torch.randint(0, 99, request(draw, self.server.lengths[-1]))
                    asked = time.perf_counter()
                    self.server.answer(ids)
                    latencies.append(time.perf_counter() - asked)
            except Exception as failure:
                failures.append(failure)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return {"latencies": latencies, "seconds": time.perf_counter() - start}

    def facts(self) -> dict[str, Any]:
        """What was compiled since the warm-up, and the memory that came to be held, in bytes."""
        return {"compiles": compilations() - self.compiled, "growth": resident() - self.memory}


def compilations() -> int:
    """How often this process compiled: graphs of Dynamo, and executables of openxla."""
    from torch._dynamo.utils import counters

    from xla_dynamo.runtime import metrics

    return counters["stats"]["unique_graphs"] + metrics.counter_value("UncachedCompile")


def resident() -> int:
    """The memory that this process has now, in bytes."""
    import psutil

    return psutil.Process().memory_info().rss


if __name__ == "__main__":
    answer_requests(Loop)
