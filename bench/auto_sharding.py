"""Automatic shardings against recipes by hand, over eight devices of the CPU.

`python -m bench.auto_sharding` compiles a training step of a GPT-2 of four layers (AdamW) and of a
ResNet-18 on small images (SGD with momentum), float32, and runs three steps. It prints what each
device holds as arguments and sends (`bench.collective_bytes`), and how far the losses are from
eager's. Each row is a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

MODELS = ("gpt2", "resnet18")
WAYS = ("data parallel", "fully sharded", "automatic")
_DEVICES, _STEPS = 8, 3


def measure(model_name: str, way: str) -> dict[str, Any]:
    """The figures of one row, in this process."""
    import torch

    import xla_dynamo
    from bench.collective_bytes import collectives, sent_by_kind
    from xla_dynamo import spmd
    from xla_dynamo.spmd import recipes

    xla_dynamo.runtime.set_device_count(_DEVICES)
    torch.manual_seed(0)
    model, batch, loss = _gpt2() if model_name == "gpt2" else _resnet18()
    wanted = _eager_losses(model_name, model, batch, loss)
    mesh = spmd.Mesh(range(_DEVICES), (_DEVICES,), ("data",))
    if way == "automatic":
        xla_dynamo.runtime.use_spmd(auto=True)
    else:
        recipes.shard_batch(list(batch), mesh)
        if way == "data parallel":
            recipes.data_parallel(model, mesh)
        else:
            model = recipes.SpmdFullyShardedDataParallel(model, mesh=mesh, axis="data")
    optimizer = _optimizer(model_name, model)
    step = xla_dynamo.train_step(model, loss, optimizer)
    start = time.perf_counter()
    report = xla_dynamo.explain(step)(*batch)
    seconds = time.perf_counter() - start
    found = [report.result.item(), *(step(*batch).item() for _ in range(_STEPS - 1))]
    sent = sent_by_kind(collectives(report.executables[0].hlo))
    return {
        "held": report.executables[0].cost.argument_bytes,
        "sent": sum(sent.values()),
        "error": max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True)),
        "compiling": seconds,
    }


def _optimizer(model_name: str, model: Any) -> Any:
    import torch

    if model_name == "gpt2":
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def _eager_losses(model_name: str, model: Any, batch: Any, loss: Callable[..., Any]) -> list[float]:
    import copy

    model = copy.deepcopy(model)
    optimizer = _optimizer(model_name, model)
    found = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def _gpt2() -> tuple[Any, Any, Callable[..., Any]]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=512, n_positions=64, n_embd=128, n_layer=4, n_head=8,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    tokens = torch.randint(512, (16, 64))
    return GPT2LMHeadModel(config), (tokens,), lambda m, x: m(x, labels=x, use_cache=False).loss


def _resnet18() -> tuple[Any, Any, Callable[..., Any]]:
    import torch
    from torch.nn import functional as F
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
        layer_type="basic", num_labels=64,
    )  # fmt: skip
    batch = torch.randn(16, 3, 32, 32), torch.randint(64, (16,))
    return (
        ResNetForImageClassification(config),
        batch,
        lambda m, x, y: F.cross_entropy(m(x).logits, y),
    )


def main() -> int:
    """Print the table; the exit status: 1 if a loss was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "WAY"), help="one row, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return 0
    table = Table(title=f"a training step over {_DEVICES} devices of the CPU, for each device")
    for column in ("model", "way", "holds MB", "sends MB", "loss's error", "first step s"):
        table.add_column(column, justify="left" if column in ("model", "way") else "right")
    worst = 0.0
    for model in options.models:
        for way in WAYS:
            command = [sys.executable, "-m", "bench.auto_sharding", "--one", model, way]
            told = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ)
            ).stdout
            row = json.loads(told.splitlines()[-1])
            worst = max(worst, row["error"])
            figures = f"{row['held'] / 1e6:.2f}", f"{row['sent'] / 1e6:.2f}"
            table.add_row(model, way, *figures, f"{row['error']:.0e}", f"{row['compiling']:.0f}")
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    return int(worst > 1e-4)


if __name__ == "__main__":
    import bench  # noqa: F401 - before transformers

    sys.exit(main())
