"""A process that starts with one model and one backend, and prints how long each stage took.

`python -m bench.started bert inductor full 2 /tmp/exported`, which `bench.start` runs. The backend
"exported" is a folder that `xla_dynamo.stablehlo` wrote: nothing of the model's code is imported to
run it. Where it is not there, it is written.
"""

import contextlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

# The stages, in their order.
STAGES = ("import torch", "the model", "import backend", "Dynamo", "backend", "run")


class Clock:
    """The wall time of each stage; the first has begun with the process."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._last = psutil.Process(os.getpid()).create_time()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage: from the end of the last one on."""
        yield
        now = time.time()
        self.seconds[name] += now - self._last
        self._last = now


def main(model: str, backend: str, size: str, threads: str, folder: str) -> None:
    """Go through the stages; the last line that is printed has the seconds of each, as JSON."""
    clock = Clock()
    with clock.stage("import torch"):
        import torch

        torch.set_num_threads(int(threads))
    start = _exported if backend == "exported" else _compiled
    call, inputs = start(clock, model, backend, size, pathlib.Path(folder))
    with clock.stage("run"), torch.no_grad():
        call(**inputs)
    _take_apart(clock.seconds)
    print(json.dumps(clock.seconds))


def _model(name: str, size: str) -> tuple[Any, dict[str, Any]]:
    from bench.models import MODELS, build

    return build(name, size), MODELS[name].inputs(size, 1)


def _compiled(
    clock: Clock, model: str, backend: str, size: str, folder: pathlib.Path
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The model compiled by a backend of the benchmark, and its inputs."""
    with clock.stage("the model"):
        module, inputs = _model(model, size)
    with clock.stage("import backend"):
        import torch._dynamo

        if backend == "inductor":
            import torch._inductor.compile_fx  # noqa: F401
        elif backend.startswith("openxla"):
            import xla_dynamo.backend  # noqa: F401
        from bench.backends import BACKENDS

        return BACKENDS[backend].compile(module), inputs


def _exported(
    clock: Clock, model: str, backend: str, size: str, folder: pathlib.Path
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What was exported of the model, and inputs that were saved beside it."""
    import torch

    if not folder.exists():
        with clock.stage("the model"):
            module, inputs = _model(model, size)
        with clock.stage("import backend"):
            from xla_dynamo.stablehlo import exported_program_to_stablehlo
        with clock.stage("Dynamo"), torch.no_grad():
            program = torch.export.export(module, (), inputs, strict=False)
        with clock.stage("backend"):
            graph = exported_program_to_stablehlo(program)
            graph.save(folder)
            torch.save(inputs, folder / "inputs.pt")
        return graph, inputs
    with clock.stage("import backend"):
        from xla_dynamo.stablehlo import StableHLOGraphModule
    with clock.stage("the model"):
        inputs = torch.load(folder / "inputs.pt")
        return StableHLOGraphModule.load(folder), inputs


def _take_apart(seconds: dict[str, float]) -> None:
    """Take what Dynamo says of its own time, and of the backend's, out of the first call's."""
    if "torch._dynamo" not in sys.modules:
        return
    from torch._dynamo.utils import get_compilation_metrics

    found = get_compilation_metrics()
    frames = sum(metrics.entire_frame_compile_time_s or 0 for metrics in found)
    backend = sum(metrics.backend_compile_time_s or 0 for metrics in found)
    seconds["Dynamo"] += frames - backend
    seconds["backend"] += backend
    seconds["run"] -= frames


if __name__ == "__main__":
    main(*sys.argv[1:])
