"""A ResNet-18 on fake data: PyTorch/XLA's `train_resnet_base`, by data parallelism.

    python -m docs.examples.migration.resnet --steps 10 --devices 8

There `torch_xla.launch` starts a process for each device, and `xm.optimizer_step` sums gradients.
Here one process has all devices: the batch is sharded over a mesh, and the all-reduces are part of
the step's one executable. `--devices` on a CPU makes it appear as so many.
"""

import argparse
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from transformers import ResNetConfig, ResNetForImageClassification

import xla_dynamo
from xla_dynamo import spmd
from xla_dynamo.spmd import recipes


def resnet18(classes: int) -> torch.nn.Module:
    """Images f32[batch, 3, height, width] to classes."""
    config = ResNetConfig(
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=classes,
    )
    return ResNetForImageClassification(config)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on one fake batch; the losses of all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="of an image, in pixels")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.devices != xla_dynamo.runtime.global_runtime_device_count():
        xla_dynamo.runtime.set_device_count(options.devices)
    torch.manual_seed(42)
    model = resnet18(10)
    batch = {
        "x": torch.zeros(options.batch, 3, options.size, options.size),
        "y": torch.zeros(options.batch, dtype=torch.int64),
    }
    if options.devices > 1:
        mesh = spmd.get_1d_mesh("data")
        recipes.data_parallel(model, mesh)
        recipes.shard_batch(batch, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    step = xla_dynamo.train_step(model, lambda m, x, y: F.cross_entropy(m(x).logits, y), optimizer)
    losses = []
    for number in range(options.steps):
        start = time.perf_counter()
        losses.append(step(*batch.values()).item())
        rate = options.batch / (time.perf_counter() - start)
        print(f"step {number}: loss {losses[-1]:.3f}, {rate:.1f} images/s")
    return losses


if __name__ == "__main__":
    main()
