"""GPT-2 small and ResNet-50, in plain torch, against eager and Inductor."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.accuracy import rms_error
from bench.gpu_check.comparison import Check, compiled, wait
from bench.models.classics import NanoGpt
from bench.models.torchvision_convnets import resnet
from bench.timing import interleave


def models(device: str) -> Iterator[Check]:
    """GPT-2 small and ResNet-50 against eager and Inductor, in turns in one process."""
    small = device == "cpu"

    def gpt2() -> tuple[torch.nn.Module, torch.Tensor]:
        sizes = (1000, 64, 64, 4, 2) if small else (50257, 1024, 768, 12, 12)
        tokens = torch.randint(0, sizes[0], (1, 32) if small else (4, 512), device=device)
        return NanoGpt(*sizes), tokens

    def resnet50() -> tuple[torch.nn.Module, torch.Tensor]:
        model = resnet(8, 1, (2, 1), 8) if small else resnet(64, 1, (3, 4, 6, 3), 64)
        return model, torch.randn(*((1, 3, 64, 64) if small else (16, 3, 224, 224)), device=device)

    for name, make in (("GPT-2", gpt2), ("ResNet-50", resnet50)):
        for dtype in (torch.float32, torch.bfloat16):
            title = f"{name}, {str(dtype).removeprefix('torch.')}"
            yield title, functools.partial(_compare_model, make, dtype, device)


def _compare_model(make: Callable, dtype: torch.dtype, device: str) -> dict:
    torch.manual_seed(0)
    model, x = make()
    model = model.to(device, dtype).eval()
    x = x.to(dtype) if x.is_floating_point() else x
    found: dict[str, Any] = {}
    calls = {}
    with torch.no_grad():
        expected = model(x)
        for name, backend in (("eager", None), ("inductor", "inductor"), ("openxla", None)):
            start = time.perf_counter()
            try:
                run = model if name == "eager" else compiled(model, backend)
                error = rms_error(expected, run(x))
                wait(device)
            except Exception as failure:  # without a compiler, Inductor says so
                if name == "openxla":
                    raise
                found[name] = f"fails ({type(failure).__name__})"
                continue
            if name != "eager":
                found[f"{name}_compile_s"] = round(time.perf_counter() - start, 1)
            limit = 0.05 if dtype is torch.bfloat16 else 1e-3
            assert name != "openxla" or error < limit, f"the error is {error:.1e}"

            def call(run: Callable = run) -> None:
                run(x)
                wait(device)

            calls[name] = call
        times = interleave(calls, rounds=7, seconds=0.2)
    found |= {f"{name}_ms": round(1e3 * t, 3) for name, t in times.items()}
    found |= {f"/{n}": round(times["openxla"] / t, 2) for n, t in times.items() if n != "openxla"}
    return found
