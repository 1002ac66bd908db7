"""Compile and differentiate a small model by `torch.compile`, and compare it with eager torch.

`doctor` runs this file as a process of its own, which prints what it found as JSON: an import or a
program may end the process.
"""

import json
import time
from typing import Any


def run() -> dict[str, Any]:
    """The devices of each platform, the libraries, and how the compiled model did."""
    import jax  # first, as it says soonest whether its jaxlib fits
    import torch

    from xla_dynamo.kernels.libraries import fault_of_native_code, libraries_of
    from xla_dynamo.runtime.clients import devices_of
    from xla_dynamo.runtime.topology import default_placement, device_type

    assert jax
    platform = default_placement().platform
    return {
        "default": device_type(),
        "devices": [str(device) for device in devices_of(platform)],
        "libraries": sorted(libraries_of(platform)),
        "native_code": fault_of_native_code(),
        "torch_cuda": torch.cuda.is_available(),
        **_compiled(torch),
    }


def _compiled(torch: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)
    model, x = torch.nn.Sequential(*layers), torch.randn(8, 16)

    def results(fn: Any) -> list[Any]:
        model.zero_grad()
        loss = fn(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    expected, start = results(model), time.perf_counter()
    found = results(torch.compile(model, backend="openxla", options={"fallback": "error"}))
    seconds = time.perf_counter() - start
    error = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))
    return {"seconds": seconds, "error": error}


if __name__ == "__main__":
    print(json.dumps(run()))
