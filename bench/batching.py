"""Continuous batching by transformers' `generate_batch`: eight prompts of mixed length.

`python -m bench.batching` measures each backend in a process of its own: the first run, compilation
included, the second, and the median of later ones. In each process eager generates first, and the
tokens must be its own. `forward` is the time in the model alone; a run also makes the paged cache,
schedules requests, and collects garbage twice, which takes longer the more modules are loaded.
"""

import argparse
import os
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.timing import in_fresh_process, positive, set_threads

BACKENDS = ("inductor", "openxla")
LENGTHS = (7, 12, 19, 23, 31, 40, 44, 60)
COLUMNS = ("eager, s", "first run, s", "second run, s", "later, s", "forward, s", "of eager, s")


class Batching:
    """A Llama of 4 layers of 512, and the requests to it.

    Attributes:
        forward: seconds that the last run spent in the model.
    """

    def __init__(self, tokens: int) -> None:
        """Take how many tokens each request gets."""
        import transformers
        from transformers.generation import ContinuousBatchingConfig

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=4,
            num_attention_heads=8,
            vocab_size=8000,
            max_position_embeddings=512,
        )
        config._attn_implementation = "sdpa"
        self.model = transformers.LlamaForCausalLM(config).eval()
        self._prompts = [torch.randint(5, 8000, (n,)).tolist() for n in LENGTHS]
        self._wanted = transformers.GenerationConfig(
            max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        self._settings = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=256)
        self.forward = 0.0
        self.model.register_forward_pre_hook(self._begin)
        self.model.register_forward_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._start = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.forward += time.perf_counter() - self._start

    def run(self) -> tuple[float, list[Any]]:
        """The seconds of a run, and the tokens by prompt."""
        self.forward = 0.0
        start = time.perf_counter()
        found = self.model.generate_batch(
            self._prompts,
            generation_config=self._wanted,
            continuous_batching_config=self._settings,
            progress_bar=False,
        )
        seconds = time.perf_counter() - start
        return seconds, sorted((out.prompt_ids, out.generated_tokens) for out in found.values())


def measured(backend: str, tokens: int, rounds: int) -> list[float]:
    """The seconds of `COLUMNS`.

    Raises:
        AssertionError: the tokens are not eager's.
    """
    batching = Batching(tokens)
    _, expected = batching.run()
    eager, eager_forward = _later(batching, rounds)
    batching.model.compile(backend=backend)
    runs = [batching.run() for _ in range(2)]
    assert all(found == expected for _, found in runs), f"{backend}: other tokens than eager's"
    later, forward = _later(batching, rounds)
    return [eager, runs[0][0], runs[1][0], later, forward, eager_forward]


def _later(batching: Batching, rounds: int) -> tuple[float, float]:
    found = [(batching.run()[0], batching.forward) for _ in range(rounds)]
    return statistics.median(s for s, _ in found), statistics.median(f for _, f in found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, help="measure this one here")
    parser.add_argument("--tokens", type=positive, default=24)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=positive, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.backend:
        print(*measured(options.backend, options.tokens, options.rounds))
        return
    table = Table(title=f"generate_batch, {options.threads} torch threads")
    for column in ("", *COLUMNS, "later / eager"):
        table.add_column(column, justify="right" if column else "left")
    for backend in BACKENDS:
        given = (f"--{k}={getattr(options, k)}" for k in ("tokens", "threads", "rounds"))
        seconds = in_fresh_process("bench.batching", "--backend", backend, *given)
        ratio = f"{seconds[3] / seconds[0]:.2f}"
        table.add_row(backend, *(f"{s:.2f}" for s in seconds), ratio)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
