"""What a sharding of a Llama block predicts: the bytes that each device sends in a training step.

All-reduces are counted as two passes, each of (n - 1) / n of the array, as `collective_bytes` does.
"""

import dataclasses
import math

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


def textbook(recipe: str, devices: int, sizes: Sizes) -> dict[str, float]:
    """Bytes along each axis by the textbook: the least that the recipe needs.

    Data parallel: an all-reduce of the gradients. Fully sharded: an all-gather of the weights and a
    reduce-scatter of their gradients. Tensor parallel (Megatron-LM): an all-reduce of activations
    behind attention and behind the MLP, and one of their inputs' gradients, backward.
    """
    return _predicted(recipe, devices, sizes, backward=2, scatter=1)


def as_compiled(recipe: str, devices: int, sizes: Sizes) -> dict[str, float]:
    """Bytes along each axis, as XLA's pipeline for the CPU writes the same sharding.

    Two things differ. It adds gradients after they are reduced: those of attention's input come
    from three products (queries, keys, values), those of the MLP's from two (gate, up), so that
    there are five all-reduces backward. And a reduce-scatter is an all-reduce, of which each device
    keeps a slice. The losses' all-reduce of 4 bytes is counted, too.
    """
    found = _predicted(recipe, devices, sizes, backward=5, scatter=2)
    along_data = devices if recipe in ("data", "fully sharded") else mesh_shape(recipe, devices)[0]
    if "data" in found:
        found["data"] += 2 * _part(along_data) * FLOAT
    return found


def _part(devices: int) -> float:
    return (devices - 1) / devices


def _predicted(
    recipe: str, devices: int, sizes: Sizes, backward: int, scatter: int
) -> dict[str, float]:
    shape = dict(zip(RECIPES[recipe], mesh_shape(recipe, devices), strict=True))
    data, model = shape.get("data", 1), shape.get("model", 1)
    found = {}
    if "data" in shape:
        weights = (sizes.matrices() / model + sizes.norms()) * FLOAT
        passes = 1 + scatter if recipe == "fully sharded" else 2
        found["data"] = passes * _part(data) * weights
    if "model" in shape:
        found["model"] = (2 + backward) * 2 * _part(model) * sizes.activation()
    return found
