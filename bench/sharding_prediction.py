"""What a sharding of a Llama block predicts: the bytes that each device sends in a training step.

All-reduces are counted as two passes, each of (n - 1) / n of the array, as `collective_bytes` does.

`python -m bench.sharding_prediction` extrapolates to devices that nobody here has: 1,000 unless
told, the blocks of Llama 2 7B in bfloat16, and the speeds of links and processors that are given.
"""

import argparse
import dataclasses
import math
import sys

from rich.console import Console
from rich.table import Table

from bench.timing import above_zero, positive

FLOAT = 4  # bytes


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the block, and of the batch for each device along the data axis.

    Attributes:
        hidden: the width of the residual stream.
        inner: the width inside the MLP.
        heads: of attention, all with keys and values of their own.
        batch: sequences for each device of the data axis.
        tokens: in a sequence.
    """

    hidden: int = 1024
    inner: int = 3072
    heads: int = 32
    batch: int = 1
    tokens: int = 32

    def matrices(self) -> int:
        """Elements of the seven matrices: four of attention, three of the MLP."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.inner

    def norms(self) -> int:
        """Elements of the weights of the two norms."""
        return 2 * self.hidden

    def activation(self) -> int:
        """Bytes of the residual stream of one device of the data axis."""
        return self.batch * self.tokens * self.hidden * FLOAT


# Recipes, and the axes of their meshes.
RECIPES = {
    "data": ("data",),
    "fully sharded": ("data",),
    "tensor": ("model",),
    "data, tensor": ("data", "model"),
}


def mesh_shape(recipe: str, devices: int) -> tuple[int, ...]:
    """The mesh of a recipe: of two axes, the model's is the longer one, up to 8 devices."""
    if len(RECIPES[recipe]) == 1:
        return (devices,)
    model = min(8, 2 ** math.ceil(math.log2(devices) / 2))
    return (devices // model, model)


def _axes(recipe: str, devices: int) -> dict[str, int]:
    """The sizes of a mesh's axes by their names."""
    return dict(zip(RECIPES[recipe], mesh_shape(recipe, devices), strict=True))


def textbook(recipe: str, devices: int, sizes: Sizes) -> dict[str, float]:
    """Bytes along each axis by the textbook: the least that the recipe needs.

    Data parallel: an all-reduce of the gradients. Fully sharded: an all-gather of the weights and a
    reduce-scatter of their gradients. Tensor parallel (Megatron-LM): an all-reduce of activations
    behind attention and behind the MLP, and one of their inputs' gradients, backward.
    """
    shape = _axes(recipe, devices)
    data, model = shape.get("data", 1), shape.get("model", 1)
    found = {}
    if "data" in shape:
        weights = (sizes.matrices() / model + sizes.norms()) * FLOAT
        found["data"] = 2 * _part(data) * weights
    if "model" in shape:
        found["model"] = 4 * 2 * _part(model) * sizes.activation()
    return found


def with_loss(recipe: str, devices: int, sizes: Sizes) -> dict[str, float]:
    """The same, with the all-reduce of the loss, 4 bytes along the data axis."""
    found = textbook(recipe, devices, sizes)
    if "data" in found:
        found["data"] += 2 * _part(_axes(recipe, devices)["data"]) * FLOAT
    return found


def _part(devices: int) -> float:
    return (devices - 1) / devices


@dataclasses.dataclass(frozen=True)
class Machines:
    """What a device is assumed to do.

    Attributes:
        model_gbs, data_gbs: GB that it sends a second along the axis of the model, and of the data.
        latency_us: microseconds of each message, of which a ring of n sends n - 1 in a pass.
        tflops: floating-point operations that it makes a second in products, 1e12.
    """

    model_gbs: float = 300.0
    data_gbs: float = 25.0
    latency_us: float = 5.0
    tflops: float = 400.0


def seconds(
    recipe: str, devices: int, sizes: Sizes, layers: int, bits: int, machines: Machines
) -> dict[str, float]:
    """Seconds of a step: `compute`, and along each axis, where nothing of it overlaps.

    Computing is 6 operations for each element of a matrix and token, attention's own left out. The
    collectives are the textbook's, each of its arrays in a message of its own but for gradients
    and weights, which go block by block.
    """
    shape = _axes(recipe, devices)
    tokens = sizes.batch * sizes.tokens
    model = shape.get("model", 1)
    found = {"compute": 6 * layers * sizes.matrices() / model * tokens / (machines.tflops * 1e12)}
    speeds = {"data": machines.data_gbs, "model": machines.model_gbs}
    passes = {"data": 2, "model": 4 * 2}  # of a block: Megatron has four all-reduces
    for axis, sent in textbook(recipe, devices, sizes).items():
        moving = layers * sent * bits / (8 * FLOAT) / (speeds[axis] * 1e9)
        found[axis] = moving + layers * passes[axis] * (shape[axis] - 1) * machines.latency_us / 1e6
    return found


def extrapolated(devices: int, sizes: Sizes, layers: int, bits: int, machines: Machines) -> Table:
    """A row for each recipe: bytes, weights and seconds of a device."""
    table = Table(title=f"a step of {layers} blocks on {devices:,} devices, for each device")
    columns = ("GB along data", "GB along model", "weights GB", "compute s", "data s", "model s")
    for column in ("recipe", "mesh", *columns, "sending / computing"):
        table.add_column(column, justify="left" if column == "recipe" else "right")
    for recipe in RECIPES:
        shape = _axes(recipe, devices)
        if sizes.heads % shape.get("model", 1):
            continue  # the model's axis shards heads
        sent = textbook(recipe, devices, sizes)
        times = seconds(recipe, devices, sizes, layers, bits, machines)
        share = devices if recipe == "fully sharded" else shape.get("model", 1)
        bytes_ = layers * bits / 8
        figures = [bytes_ * sent.get(a, 0) / FLOAT / 1e9 for a in ("data", "model")]
        figures.append(bytes_ * (sizes.matrices() / share + sizes.norms()) / 1e9)
        figures += [times.get(name, 0) for name in ("compute", "data", "model")]
        figures.append((sum(times.values()) - times["compute"]) / times["compute"])
        table.add_row(recipe, "x".join(map(str, shape.values())), *(f"{n:.3f}" for n in figures))
    return table


def main() -> None:
    """Print what is predicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=positive, nargs="+", default=[1000])
    parser.add_argument("--layers", type=positive, default=32)
    parser.add_argument("--bits", type=positive, default=16, help="of an element")
    llama = Sizes(hidden=4096, inner=11008, heads=32, batch=1, tokens=4096)
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=positive, default=getattr(llama, field.name))
    for field in dataclasses.fields(Machines):
        option = f"--{field.name.replace('_', '-')}"
        parser.add_argument(option, type=above_zero, default=field.default)
    options = parser.parse_args()
    sizes, machines = (
        kind(**{f.name: getattr(options, f.name) for f in dataclasses.fields(kind)})
        for kind in (Sizes, Machines)
    )
    console = Console(width=None if sys.stdout.isatty() else 130)
    for devices in options.devices:
        console.print(extrapolated(devices, sizes, options.layers, options.bits, machines))


if __name__ == "__main__":
    main()
