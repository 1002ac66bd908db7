"""A process that compiles a training step of a Llama block for the devices of a mesh, and tells.

`bench.sharding` asks it. The number of devices is fixed for a process.
"""

import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import jax
import torch

import xla_dynamo
from bench.collective_bytes import Collective, collectives, sent_by_axis, sent_by_kind
from bench.processes import answer_requests
from bench.sharding_prediction import RECIPES, Sizes, mesh_shape
from xla_dynamo import spmd
from xla_dynamo.reports.report import Report
from xla_dynamo.runtime import executables, metrics

# XLA's passes that partition a program which was not partitioned before: Shardy spreads the marks,
# the partitioner writes the local program and its collectives.
PARTITIONING = ("shardy-xla", "spmd-partitioning")
_SPLITS_ROWS = re.compile(r"(q|k|v|gate|up)_proj")
_SPLITS_COLUMNS = re.compile(r"(o|down)_proj")


class Block(torch.nn.Module):
    """A decoder layer of transformers' Llama, with its rotary embedding.

    Attributes:
        gathers: the mesh over which weights are put together where they are used; None if they are
            used as they lie.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama import modeling_llama as llama

        config = LlamaConfig(
            hidden_size=sizes.hidden,
            intermediate_size=sizes.inner,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads,
            attn_implementation="sdpa",
        )
        self.layer = llama.LlamaDecoderLayer(config, 0)
        self.rotary = llama.LlamaRotaryEmbedding(config)
        self.gathers: spmd.Mesh | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = self.rotary(x, torch.arange(x.shape[1])[None])
        if self.gathers is None:
            return self.layer(x, position_embeddings=positions)
        whole = {
            name: spmd.mark_sharding(p, self.gathers, (None,) * p.dim())
            for name, p in self.layer.named_parameters()
        }
        given = {"position_embeddings": positions}
        result = torch.func.functional_call(self.layer, whole, (x,), given)
        return spmd.mark_sharding(result, self.gathers, ("data", None, None))


def shard(block: Block, x: torch.Tensor, recipe: str, mesh: spmd.Mesh) -> None:
    """Mark the parameters and the input as a recipe says."""
    if "data" in mesh.axis_names:
        spmd.mark_sharding(x, mesh, ("data", None, None))
    if recipe == "fully sharded":
        block.gathers = mesh
    for name, p in block.named_parameters():
        if recipe == "fully sharded":
            spmd.mark_sharding(p, mesh, ("data",) + (None,) * (p.dim() - 1))
        elif "model" in mesh.axis_names and _SPLITS_ROWS.search(name):
            spmd.mark_sharding(p, mesh, ("model", None))
        elif "model" in mesh.axis_names and _SPLITS_COLUMNS.search(name):
            spmd.mark_sharding(p, mesh, (None, "model"))


class _Compiled(Exception):
    """What a program that is only to be compiled raises in the place of running."""


class Devices:
    """So many devices: what the process is asked."""

    def __init__(self, devices: int, sizes: dict[str, int], threads: int) -> None:
        """Take the number of devices, the block's sizes, and torch's threads."""
        torch.set_num_threads(threads)
        xla_dynamo.runtime.set_device_count(devices)
        self.devices, self.sizes = devices, Sizes(**sizes)

    def measure(self, recipe: str, runs: bool) -> dict[str, Any]:
        """Compile a step by a recipe, and run it or not.

        Returns:
            `lowering`, `partitioning` and `xla`: seconds, the last with those before it; `sent`,
            `by_axis`: bytes of a device; `collectives`: how often there is which kind; `error`: of
            the loss against eager's, relative; `argument_bytes`, `temporary_bytes`: of a device.
        """
        shape = mesh_shape(recipe, self.devices)
        built = self._compile(recipe, spmd.Mesh(range(self.devices), shape, RECIPES[recipe]), runs)
        found: list[Collective] = collectives(built["hlo"]) if self.devices > 1 else []
        kinds = sent_by_kind(found)
        return {
            "mesh": list(shape),
            **{name: built[name] for name in ("lowering", "partitioning", "xla", "error")},
            "collectives": {k: sum(c.times for c in found if c.kind == k) for k in kinds},
            "sent": kinds,
            "by_axis": sent_by_axis(found, RECIPES[recipe], shape),
            "argument_bytes": built["cost"].argument_bytes,
            "temporary_bytes": built["cost"].temporary_bytes,
        }

    def _compile(self, recipe: str, mesh: spmd.Mesh, runs: bool) -> dict[str, Any]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        block = Block(self.sizes)
        batch = self.sizes.batch * dict(mesh.shape()).get("data", 1)
        x = torch.randn(batch, self.sizes.tokens, self.sizes.hidden)
        wanted = _loss(block, x).item() if runs else None
        if self.devices > 1:
            shard(block, x, recipe, mesh)
        step = xla_dynamo.train_step(block, _loss, torch.optim.SGD(block.parameters(), lr=1e-3))
        explained = xla_dynamo.explain(step)
        partitioning = _partitioning_seconds(lambda: _call(explained, x, runs))
        report: Report = explained.report
        (one,) = report.executables
        lowering, xla = one.seconds
        error = None if wanted is None else abs(report.result.item() - wanted) / abs(wanted)
        figures = {"lowering": lowering, "xla": xla, "partitioning": partitioning, "error": error}
        return {**figures, "hlo": one.hlo, "cost": one.cost}


def _loss(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x).square().mean()


def _call(explained: Callable[..., Any], x: torch.Tensor, runs: bool) -> None:
    """Call a step, or have it compiled alone: a thousand devices on two cores would not get far."""
    if runs:
        explained(x)
        return

    def nothing(loaded: Any) -> Callable[..., Any]:
        def execute(buffers: Any) -> Any:
            raise _Compiled

        return execute

    kept, executables.executor = executables.executor, nothing
    try:
        explained(x)
    except _Compiled:
        pass
    finally:
        executables.executor = kept


def _partitioning_seconds(call: Callable[[], None]) -> float:
    """How long partitioning took inside a call: here, and in XLA's passes, from a profile."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            before = _seconds_here()
            call()
        return _seconds_here() - before + sum(_durations(pathlib.Path(folder)))


def _seconds_here() -> float:
    """How long programs were partitioned before XLA."""
    data = metrics.metric_data("PartitionTime")
    return data[1] / 1e9 if data is not None else 0.0


def _durations(folder: pathlib.Path) -> Iterable[float]:
    (path,) = folder.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            yield from (e.duration_ns / 1e9 for e in line.events if e.name in PARTITIONING)


if __name__ == "__main__":
    answer_requests(Devices)
