"""What is tried on the GPU: each item is a function, run in a process of its own.

An item yields checks, pairs of a name and a function that returns figures, or raises. Compared is
with eager on the same device; float32 products and convolutions are in full precision on both
sides, so that TF32 explains no difference: torch's settings say so for torch, and
NVIDIA_TF32_OVERRIDE=0 for what XLA calls of cuDNN, whose convolutions have no setting of ours.
"""

import contextlib
import functools
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench.gpu_check.comparison import Check, against_eager, compiled, wait
from bench.gpu_check.families import families
from bench.gpu_check.models import models
from bench.gpu_check.streams import streams
from bench.timing import interleave


def environment(device: str) -> Iterator[Check]:
    """What is there."""

    def versions() -> dict:
        names = ("torch", "jax", "jaxlib", "numpy", "triton", "jax-cuda13-plugin")
        found = {"python": platform.python_version()}
        for name in names:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
        return found

    def devices() -> dict:
        from xla_dynamo.runtime.clients import placement_at

        placement = placement_at(device, 0)
        kind = placement.device.device_kind
        found = {"pjrt": placement.platform, "kind": kind, "version": _version(placement.device)}
        if device == "cuda":
            found |= {"torch": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
            assert placement.platform == "cuda"
        return found

    yield "versions", versions
    yield "devices", devices


def _version(device: Any) -> str:
    return str(device.client.platform_version).splitlines()[0][:80]


def tiny(device: str) -> Iterator[Check]:
    """The ten things of tests/test_tiny.py."""
    new = functools.partial(torch.randn, device=device)
    layer = torch.nn.Linear(4, 3, device=device)

    def in_place() -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

        x = torch.ones(3, device=device)
        y = compiled(f)(x)
        assert (x.tolist(), y.tolist()) == ([2, 2, 2], [4, 4, 4])

    def compare(f: Callable, *args: Any, **how: Any) -> Callable[[], dict]:
        return functools.partial(against_eager, f, *args, **how)

    yield "addition", compare(torch.add, new(3, 4), new(4))
    yield "matrix product", compare(torch.matmul, new(3, 4), new(4, 5))
    yield "reduction", compare(lambda x: (x.sum(1), x.amax()), new(3, 4))
    yield "integers", compare(lambda x: x * 3 // 2 - 1, torch.arange(-5, 5, device=device))
    yield "view and slice", compare(lambda x: x.view(2, 6)[:, 1::2] + 1, new(3, 4))
    yield "linear layer", compare(layer, new(2, 4))
    yield "convolution", compare(F.conv2d, new(1, 3, 8, 8), new(4, 3, 3, 3), factor=10)
    yield "attention", compare(F.scaled_dot_product_attention, *new(3, 1, 2, 5, 8))
    yield "in place", in_place
    yield "gradient", compare(lambda x: (x * x).sum(), new(3), grad=True)


def zero_copy(device: str) -> Iterator[Check]:
    """Tensors enter and leave without a copy; what is changed in place stays where it is."""
    # A GPU copies 64 MiB in the time of a call: only with much more does a copy show.
    count = 1 << (28 if device == "cuda" else 24)

    def large() -> torch.Tensor:
        return torch.randn(count, device=device)

    def seconds(f: Callable, x: torch.Tensor) -> float:
        run = compiled(f)
        with torch.no_grad():
            for _ in range(3):
                run(x)
            wait(device)
            start = time.perf_counter()
            for _ in range(10):
                run(x)
            wait(device)
        return (time.perf_counter() - start) / 10

    def addresses() -> None:
        from xla_dynamo.runtime.buffers import export_buffer, import_tensor
        from xla_dynamo.runtime.clients import placement_at
        from xla_dynamo.runtime.jaxlib_private import buffer_address

        placement = placement_at(device, 0)
        stream = placement.stream() if placement.has_streams else None
        x = torch.randn(64, 64, device=device)
        buffer = import_tensor(x, placement, stream)
        assert buffer_address(buffer) == x.data_ptr(), "the buffer is a copy of the tensor"
        y = export_buffer(buffer, stream)
        assert y.data_ptr() == buffer_address(buffer), "the tensor is a copy of the buffer"
        torch.testing.assert_close(y, x, rtol=0, atol=0)

    def peek() -> dict:
        x = large()
        copy = seconds(lambda x: x + 1, x)
        part = seconds(lambda x: x[:8] + 1, x)
        assert part < copy / 2, f"reading 8 elements takes {part:.1e} s, and all {copy:.1e} s"
        return {"mib": count >> 18, "all_us": round(copy * 1e6), "eight_us": round(part * 1e6)}

    def step(x: torch.Tensor) -> torch.Tensor:
        x[:4].add_(1)
        return x[:2] * 2

    def in_place() -> None:
        x = large()
        address, before = x.data_ptr(), x.clone()
        run = compiled(step)
        with torch.no_grad():
            for _ in range(3):
                run(x)
        before[:4] += 3
        torch.testing.assert_close(x, before)
        assert x.data_ptr() == address

    def in_place_time() -> dict:
        x = large()
        update, copy = seconds(step, x), seconds(lambda x: x + 1, x)
        assert update < copy / 2, f"changing 4 elements takes {update:.1e} s, all {copy:.1e} s"
        return {"all_us": round(copy * 1e6), "four_us": round(update * 1e6)}

    yield "addresses both ways", addresses
    yield "a large input", peek
    yield "a change in place", in_place
    yield "no copy for a change in place", in_place_time


def training(device: str) -> Iterator[Check]:
    """A step by `torch.compile`, and the whole step as one program."""

    def setting() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        head = (torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10))
        model = torch.nn.Sequential(*layers, *head).to(device)
        x = torch.randn(16, 3, 8, 8, device=device)
        return model, x, torch.randint(0, 10, (16,), device=device)

    def losses(road: str) -> list[float]:
        import xla_dynamo

        model, x, labels = setting()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if road == "train_step":
            step = xla_dynamo.train_step(model, lambda m, x, y: F.cross_entropy(m(x), y), optimizer)
            return [float(step(x, labels)) for _ in range(10)]
        forward = model if road == "eager" else compiled(model)
        found = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), labels)
            loss.backward()
            optimizer.step()
            found.append(float(loss))
        return found

    def compare(road: str) -> dict:
        expected, actual = losses("eager"), losses(road)
        worst = max(abs(a - e) / e for a, e in zip(actual, expected, strict=True))
        assert worst < 1e-3, f"{actual} against {expected}"
        return {"difference": f"{worst:.1e}", "last": f"{actual[-1]:.4f}"}

    yield "torch.compile", functools.partial(compare, "compile")
    yield "train_step", functools.partial(compare, "train_step")


def lazy(device: str) -> Iterator[Check]:
    """Tensors of the device 'xla', whose programs run where PJRT's default device is."""

    def operators() -> dict:
        import xla_dynamo

        xla = xla_dynamo.device()
        host = torch.randn(64, 64)
        x = host.to(xla).requires_grad_()
        loss = (x @ x).relu().mean()
        loss.backward()
        xla_dynamo.sync()
        eager = host.clone().requires_grad_()
        (eager @ eager).relu().mean().backward()
        torch.testing.assert_close(x.grad.cpu(), eager.grad, rtol=1e-4, atol=1e-5)
        return {"platform": xla_dynamo.xla_device_hw(xla)}

    def in_place_views() -> None:
        import xla_dynamo

        x = torch.zeros(4, 4, device=xla_dynamo.device())
        x[1] += 2
        x.t()[0].mul_(3)
        xla_dynamo.sync()
        expected = torch.zeros(4, 4)
        expected[1] += 2
        expected.t()[0].mul_(3)
        assert x.cpu().equal(expected)

    yield "operators and a gradient", operators
    yield "writes into views", in_place_views


def memory(device: str) -> Iterator[Check]:
    """What torch and XLA take of the one memory that they share."""

    def peak() -> dict:
        from xla_dynamo.runtime.clients import placement_at

        x = torch.randn(1 << 22, device=device)
        f = compiled(lambda x: ((x[:, None] * x[None, :2]).sum(1), x.sort()[0]))
        with torch.no_grad():
            f(x)
        wait(device)
        stats = placement_at(device, 0).device.memory_stats() or {}
        keys = ("peak_bytes_in_use", "bytes_limit", "bytes_reserved", "pool_bytes")
        found = {f"xla_{key}_mib": stats[key] >> 20 for key in keys if key in stats}
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            found |= {"torch_mib": torch.cuda.max_memory_allocated() >> 20}
            found |= {"free_mib": free >> 20, "total_mib": total >> 20}
            assert free > total / 2, f"{total - free >> 20} MiB are taken for a program of 100"
        return found

    def freed() -> dict:
        """A hundred results of 64 MiB, one after another, take no more room than some.

        Only a GPU tells how much is free: elsewhere the process would end for want of memory.
        """
        before = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
        f = compiled(lambda x: x + 1)
        x = torch.zeros(1 << 24, device=device)
        with torch.no_grad():
            for _ in range(100):
                x = f(x)
        assert float(x[0]) == 100
        gc.collect()
        if device != "cuda":
            return {}
        taken = before - torch.cuda.mem_get_info()[0] >> 20
        assert taken < 3 << 10, f"{taken} MiB are taken after 100 results of 64 MiB"
        return {"taken_mib": taken}

    yield "peak", peak
    yield "results are freed", freed


def overhead(device: str) -> Iterator[Check]:
    """A call of a graph without work."""

    def call() -> dict:
        x, y = torch.randn(2, 8, device=device)
        f = compiled(lambda x, y: (x + y) * y)
        with torch.no_grad():
            calls = {"openxla": lambda: f(x, y), "eager": lambda: (x + y) * y}
            times = interleave(calls, rounds=7)
        return {f"{name}_us": round(1e6 * t, 1) for name, t in times.items()}

    yield "two inputs", call


ITEMS: dict[str, Callable[[str], Iterator[Check]]] = {
    f.__name__: f
    for f in (
        environment,
        tiny,
        streams,
        zero_copy,
        training,
        lazy,
        families,
        overhead,
        memory,
        models,
    )
}


def main(item: str, device: str, path: str) -> int:
    """Run an item, and write a line for each of its checks."""
    os.environ.setdefault("XLA_DYNAMO_CACHE_DIR", "")
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device == "cpu":
        torch.set_num_threads(1)  # whose other threads would fight with XLA's for the cores
    torch.manual_seed(0)
    with open(path, "a", buffering=1) as lines:
        for name, check in ITEMS[item](device):
            start, record = time.perf_counter(), {"check": name, "status": "ok", "figures": {}}
            try:
                record["figures"] = check() or {}
            except Exception:
                text = traceback.format_exc()
                print(text, flush=True)
                record |= {"status": "failed", "error": "\n".join(text.splitlines()[-30:])}
            lines.write(json.dumps({**record, "seconds": time.perf_counter() - start}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
