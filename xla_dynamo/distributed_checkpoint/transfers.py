"""Save and load a state dict in one process, with no process group.

`torch.distributed.checkpoint.save` and `load` do the same between processes. There, exceptions of
all kinds arrive as the text of one, and each call warns that no process group is there.
"""

import os
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.stateful import Stateful

from xla_dynamo.distributed_checkpoint.shard_files import CheckpointReader, CheckpointWriter
from xla_dynamo.errors import CheckpointError
from xla_dynamo.torch_private import pytree


def save_state(
    state_dict: dict[str, Any],
    folder: str | os.PathLike[str],
    planner: SavePlanner,
    thread_count: int = 1,
) -> None:
    """Write a state dict into a new folder.

    Raises:
        CheckpointError: not all of it could be written.
    """
    writer = CheckpointWriter(folder, thread_count)
    planner.set_up_planner(
        values_of(state_dict), storage_meta=writer.storage_meta(), is_coordinator=True
    )
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    try:
        writing = writer.write_data(planner.finish_plan(plan), planner)
        writing.wait()
        results = writing.value()
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError for a full disk
        raise CheckpointError(f"the checkpoint {folder} cannot be written: {error}") from error
    # The writer's threads lose what they raise.
    missing = {item.index for item in plan.items} - {result.index for result in results}
    if missing:
        names = ", ".join(sorted({index.fqn for index in missing}))
        raise CheckpointError(f"the checkpoint {folder} cannot be written: {names} failed")
    writer.finish(metadata, [results])


def load_state(
    state_dict: dict[str, Any], folder: str | os.PathLike[str], planner: LoadPlanner
) -> None:
    """Read a state dict from a folder: tensors in place, other values into their containers.

    Raises:
        CheckpointError: the checkpoint is incomplete or damaged, or is one of other tensors.
    """
    reader = CheckpointReader(folder)
    metadata = reader.read_metadata()
    values = values_of(state_dict)
    if any(isinstance(v, torch.Tensor) and v.is_meta for v in pytree.tree_leaves(values)):
        raise CheckpointError(
            "a tensor to load into is on the device 'meta', where there is no memory: "
            "module.to_empty(device='cpu') gives a module some"
        )
    planner.set_up_planner(values, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    try:
        plan = reader.prepare_local_plan(planner.create_local_plan())
    except (CheckpointError, RuntimeError, ValueError) as error:  # keys or sizes that differ
        why = str(error)
        if "Missing key" in why:
            why += " (An optimizer has state only after its first step, or prime_optimizer.)"
        raise CheckpointError(f"the checkpoint {folder} cannot be loaded: {why}") from error
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
    for key, value in state_dict.items():
        if isinstance(value, Stateful):
            value.load_state_dict(values[key])
        else:
            state_dict[key] = values[key]


def values_of(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with the state dicts of objects, such as models, in their places."""
    return {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state_dict.items()
    }
