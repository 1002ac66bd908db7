"""One model with one backend in a process of its own, which does as `bench.processes` asks it."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bench.accuracy import rms_error
from bench.backends import BACKENDS, counting
from bench.models import MODELS, build, build_double
from bench.processes import answer_requests
from bench.timing import peak_memory
from bench.training_step import changes, make_step, without_dropout

GOLDEN = "golden"  # eager in float64, what results are compared with


@dataclasses.dataclass(frozen=True)
class Task:
    """What to measure: see `python -m bench run --help` for the choices."""

    model: str
    mode: str = "inference"
    size: str = "full"
    batch: int = 1
    dtype: str = "float32"
    threads: int = 1
    seed: int = 1  # of the inputs


class Subject:
    """A model, its inputs, and how one backend calls it."""

    def __init__(self, task: Task, backend: str, weights: str = "") -> None:
        """Build it; with the weights in a file, if one is named (see `save_weights`)."""
        torch.set_num_threads(task.threads)
        self.task = task
        self.golden = backend == GOLDEN
        self.name = "eager" if self.golden else backend
        self.backend = BACKENDS[self.name]
        model = (build_double if self.golden else build)(task.model, task.size)
        if weights:
            _copy_weights(weights, model)
        torch.manual_seed(task.seed)
        inputs = MODELS[task.model].inputs(task.size, task.batch)
        device = self.backend.device()
        self.model = model.to(device)
        self.inputs = pytree.tree_map_only(torch.Tensor, lambda t: self._input(t, device), inputs)
        self.result: Any = None
        self.times_a_round = 1
        self.has_dropout = False
        self.step = self._training() if task.mode == "training" else self._inference()

    def _input(self, tensor: torch.Tensor, device: Any) -> torch.Tensor:
        wide = self.golden and tensor.is_floating_point()
        return (tensor.double() if wide else tensor).to(device)

    def _inference(self) -> Callable[[], Any]:
        compiled = self.backend.compile(self.model)

        def call() -> Any:
            with torch.no_grad(), self.autocast():
                return compiled(**self.inputs)

        return call

    def _training(self) -> Callable[[], Any]:
        loss = MODELS[self.task.model].loss
        return make_step(self.model, self.inputs, loss, self.name, self.autocast)

    def autocast(self) -> Any:
        """The context that calls of this dtype are made in."""
        if self.task.dtype == "bfloat16" and not self.golden:
            return torch.autocast("cpu", torch.bfloat16)
        return contextlib.nullcontext()

    def first(self) -> dict[str, Any]:
        """Call once, cold: seconds, and what was compiled.

        In training, twice, and without dropout: losses and changes of parameters are the result.
        """
        with counting() as counts, without_dropout(self.model) as self.has_dropout:
            seconds = self._round(1)
            if self.task.mode == "training":
                self.result = changes(self.model, self.step)
        return {"seconds": seconds, **counts}

    def save(self, path: str) -> dict[str, Any]:
        """Write the result of the first call where the other workers find it."""
        torch.save(_tensors(self.result), path)
        return {}

    def save_weights(self, path: str) -> dict[str, Any]:
        """Write them for workers of other environments: torch 2.9 draws other ones of some kinds.

        Nothing is lost in float64: they were drawn in the model's own dtype.
        """
        torch.save(_weights(self.model), path)
        return {}

    def compare(self, path: str) -> dict[str, Any]:
        """How far the result is from the saved one; the worst of its tensors."""
        return {"error": rms_error(torch.load(path), _tensors(self.result))}

    def time(self, seconds: float, fresh: bool = False) -> dict[str, Any]:
        """Seconds a call, over a round of about this length; `fresh` finds out how many calls."""
        if fresh:
            self.result = None
            if self.task.mode == "training" and self.has_dropout:  # compiled without, so far
                torch._dynamo.reset()
                self.step = self._training()
            self._round(1)
            self.times_a_round = max(1, min(2000, round(seconds / self._round(1))))
        return {"seconds": self._round(self.times_a_round)}

    def _round(self, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            self.result = self.backend.finish(self.step())
        return (time.perf_counter() - start) / times

    def facts(self) -> dict[str, Any]:
        """The most memory that this process has had, and the number of parameters."""
        peak = peak_memory() * 1e3
        return {"peak_mb": peak, "parameters": sum(p.numel() for p in self.model.parameters())}


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _copy_weights(path: str, model: torch.nn.Module) -> None:
    saved = torch.load(path)
    with torch.no_grad():
        for name, tensor in _weights(model).items():
            tensor.copy_(saved[name])


def _tensors(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [t.detach().cpu() for t in leaves if isinstance(t, torch.Tensor)]


def _prepare(task: dict[str, Any], **settings: str) -> Subject:
    return Subject(Task(**task), **settings)


if __name__ == "__main__":
    answer_requests(_prepare)
