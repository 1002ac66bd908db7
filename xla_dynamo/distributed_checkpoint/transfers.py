"""Save and load a state dict, in one process or by all of a job, with no process group.

`torch.distributed.checkpoint.save` and `load` do the same in a process group. There, exceptions of
all kinds arrive as the text of one, and each call without a group warns that there is none.
"""

import os
import pathlib
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import WriteResult

from xla_dynamo.distributed_checkpoint.planners import SPMDSavePlanner
from xla_dynamo.distributed_checkpoint.shard_files import CheckpointReader, CheckpointWriter, Entry
from xla_dynamo.distributed_checkpoint.together import Together
from xla_dynamo.errors import CheckpointError
from xla_dynamo.torch_private import pytree


def prepared(state_dict: dict[str, Any], together: Together) -> SPMDSavePlanner:
    """The planner that has planned what this process has of a state dict."""
    planner = SPMDSavePlanner()
    planner.set_up_planner(values_of(state_dict), is_coordinator=not together.rank)
    planner.create_local_plan()
    return planner


def save_state(
    planner: SPMDSavePlanner,
    folder: str | os.PathLike[str],
    together: Together,
    thread_count: int = 1,
) -> None:
    """Write what has been planned into a folder, which is new; in each process its part.

    Raises:
        CheckpointError: not all of it could be written.
        ProcessError: another process is gone.
    """
    writer = CheckpointWriter(folder, thread_count)
    writer.set_up_storage_writer(not together.rank)
    about = f"the checkpoint {pathlib.Path(folder).parent}"
    plans = together.each(f"{about}, its plan", lambda: writer.prepare_local_plan(planner.plan))

    def in_all() -> tuple[list[SavePlan], Metadata]:
        made, metadata = planner.create_global_plan(plans)
        return writer.prepare_global_plan(made), metadata

    plans, metadata = together.first(f"{about}, its plan for all", in_all)
    plan = planner.finish_plan(plans[together.rank])

    def write() -> tuple[list[WriteResult], list[Entry]]:
        try:
            writing = writer.write_data(plan, planner)
            writing.wait()
            results = writing.value()
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError for a full disk
            raise CheckpointError(f"the checkpoint {folder} cannot be written: {error}") from error
        # The writer's threads lose what they raise.
        missing = {item.index for item in plan.items} - {result.index for result in results}
        if missing:
            names = ", ".join(sorted({index.fqn for index in missing}))
            raise CheckpointError(f"the checkpoint {folder} cannot be written: {names} failed")
        return results, writer.checksums_of(results)

    written = together.each(f"{about}, its files", write)
    checksums = [entry for _, entries in written for entry in entries]
    results = [results for results, _ in written]
    together.first(f"{about}, its end", lambda: writer.finish_with(metadata, results, checksums))


def load_state(
    state_dict: dict[str, Any],
    folder: str | os.PathLike[str],
    planner: LoadPlanner,
    together: Together,
) -> None:
    """Read a state dict from a folder: tensors in place, other values into their containers.

    Raises:
        CheckpointError: the checkpoint is incomplete or damaged, or is one of other tensors.
        ProcessError: another process is gone.
    """
    reader = CheckpointReader(folder, together)
    values = values_of(state_dict)
    plans: list[LoadPlan] = []
    together.each(
        f"the plan to load {folder}",
        lambda: plans.append(_load_plan(values, folder, reader, planner, not together.rank)),
    )
    reader.read_data(planner.finish_plan(plans[0]), planner).wait()
    for key, value in state_dict.items():
        if isinstance(value, Stateful):
            value.load_state_dict(values[key])
        else:
            state_dict[key] = values[key]


def _load_plan(
    values: dict[str, Any],
    folder: str | os.PathLike[str],
    reader: CheckpointReader,
    planner: LoadPlanner,
    is_coordinator: bool,
) -> LoadPlan:
    """What this process reads. In a job each knows it without the others."""
    metadata = reader.read_metadata()
    if any(isinstance(v, torch.Tensor) and v.is_meta for v in pytree.tree_leaves(values)):
        raise CheckpointError(
            "a tensor to load into is on the device 'meta', where there is no memory: "
            "module.to_empty(device='cpu') gives a module some"
        )
    planner.set_up_planner(values, metadata, is_coordinator=is_coordinator)
    reader.set_up_storage_reader(metadata, is_coordinator)
    try:
        plan = reader.prepare_local_plan(planner.create_local_plan())
    except (CheckpointError, RuntimeError, ValueError) as error:  # keys or sizes that differ
        why = str(error)
        if "Missing key" in why:
            why += " (An optimizer has state only after its first step, or prime_optimizer.)"
        raise CheckpointError(f"the checkpoint {folder} cannot be loaded: {why}") from error
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    return plan


def values_of(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with the state dicts of objects, such as models, in their places."""
    return {
        key: value.state_dict() if isinstance(value, Stateful) else value
        for key, value in state_dict.items()
    }
