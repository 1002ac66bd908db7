"""Plans of tensor parallel for transformers' models: their own, and some for common names."""

from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes.styles import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

# What models have in `tp_plan`, by its names there. The gathered outputs are logits, which each
# device may as well keep some of: the loss is then computed with a few small sums.
_STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "colwise_rep": ColwiseParallel,
    "colwise_gather_output": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "rowwise_rep": RowwiseParallel,
    "rowwise_split_input": RowwiseParallel,
    "embedding_rowwise": RowwiseParallel,
    "sequence_parallel": SequenceParallel,
}

# By the last parts of names, for models that bring no plan: GPT-2, and BERT and its kin.
_BY_NAME: dict[str, dict[str, Callable[[], ParallelStyle]]] = {
    "gpt2": {
        "attn.c_attn": ColwiseParallel,
        "attn.c_proj": RowwiseParallel,
        "mlp.c_fc": ColwiseParallel,
        "mlp.c_proj": RowwiseParallel,
    },
    "bert": {
        "attention.self.query": ColwiseParallel,
        "attention.self.key": ColwiseParallel,
        "attention.self.value": ColwiseParallel,
        "attention.output.dense": RowwiseParallel,
        "intermediate.dense": ColwiseParallel,
        "output.dense": RowwiseParallel,
    },
}


def plan_of(model: torch.nn.Module, devices: int) -> dict[str, ParallelStyle]:
    """The plan of tensor parallel for one of transformers' models.

    Args:
        model: a model with the plan of transformers (Llama and most decoders), or GPT-2 or BERT.
        devices: over how many its layers are sharded. Heads stay whole: keys and values of grouped
            attention whose heads are not divisible are computed on each device.

    Returns:
        A style for each layer that is sharded, by name.

    Raises:
        ShardingError: there is no plan, it has styles that are unknown here, or the heads of the
            attention are not divisible.
    """
    check_heads(model, devices)
    plan = _own_plan(model) or _plan_by_name(model)
    if not plan:
        raise ShardingError(
            f"there is no plan of tensor parallel for {type(model).__name__}: give "
            "parallelize_module one, with ColwiseParallel for the layers that spread out and "
            "RowwiseParallel for those that come together"
        )
    few = heads_of(model)[1]
    if few is not None and few % devices:
        plan = {n: s for n, s in plan.items() if not n.endswith((".k_proj", ".v_proj"))}
    return plan


def heads_of(model: torch.nn.Module) -> tuple[int | None, int | None]:
    """How many heads the attention of one of transformers' models has, and how many its keys."""
    config: Any = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    return heads, getattr(config, "num_key_value_heads", None) or heads


def check_heads(model: torch.nn.Module, devices: int) -> None:
    """Raise ShardingError if a model's configuration has heads that the devices do not divide."""
    heads, _ = heads_of(model)
    if heads is not None and heads % devices:
        raise ShardingError(
            f"{type(model).__name__} has {heads} heads of attention, which are not divisible by "
            f"the {devices} devices of the axis: use a mesh with fewer devices along it"
        )


def modules_ending_in(model: torch.nn.Module, *endings: str) -> list[str]:
    """The names of a model's modules whose last parts are one of these."""
    dotted = tuple(f".{ending}" for ending in endings)
    return [name for name, _ in model.named_modules() if f".{name}".endswith(dotted)]


def _own_plan(model: Any) -> dict[str, ParallelStyle]:
    plan = dict(getattr(model, "_tp_plan", None) or {})
    if unknown := sorted(set(plan.values()) - set(_STYLES)):
        raise ShardingError(
            f"the plan of tensor parallel that {type(model).__name__} has names the styles "
            f"{', '.join(unknown)}, which are unknown here: give parallelize_module a plan"
        )
    return {name: _STYLES[style]() for name, style in plan.items()}


def _plan_by_name(model: torch.nn.Module) -> dict[str, ParallelStyle]:
    found: dict[str, ParallelStyle] = {}
    for styles in _BY_NAME.values():
        for ending in sorted(styles, key=len):  # a longer ending is the better one
            style = styles[ending]
            found |= {name: style() for name in modules_ending_in(model, ending)}
    return found
