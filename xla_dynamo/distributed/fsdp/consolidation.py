"""From the checkpoints of the single processes to one that the plain module loads."""

import glob
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.errors import CheckpointError


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[Mapping[str, Any]], shard_metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Make one state dict of those of all processes.

    Args:
        state_dict_list: the wrapped module's `state_dict()` in each process, by rank, on the CPU.
        shard_metadata: its `get_shard_metadata()`, of any process.

    Returns:
        The plain module's state dict. Buffers are those of the first process, in the dtype that
        they had before they were cast.

    Raises:
        CheckpointError: the number of processes is another.
    """
    if len(state_dict_list) != shard_metadata["world_size"]:
        raise CheckpointError(
            f"{len(state_dict_list)} state dicts, and {shard_metadata['world_size']} processes "
            "have divided the model: give those of all"
        )
    whole: dict[str, Any] = {}
    for key, value in state_dict_list[0].items():
        info = shard_metadata["shard_info"].get(key)
        if info is None:
            dtype = shard_metadata["buffer_info"].get(key)
            whole[key] = value if dtype is None else value.to(dtype)
            continue
        rows = torch.cat([state[key] for state in state_dict_list])
        start = 0
        for names, shape in info["members"]:
            count = shape[0] if info["on_dim_0"] else math.prod(shape)
            # A copy: a view would be saved with all that is behind it.
            parameter = rows[start : start + count].reshape(shape).clone()
            whole |= dict.fromkeys(names, parameter)
            start += count
    return whole


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str,
    ckpt_suffix: str = "*.pth",
    save_path: str = "",
    save_model: bool = True,
) -> tuple[dict[str, Any], str | None]:
    """Make one checkpoint of the files of all processes, each a dict with the keys of PyTorch/XLA.

    These are "model", the wrapped module's `state_dict()`, and "shard_metadata", its
    `get_shard_metadata()`. Files are mapped and not read at once; pickles of other things than
    tensors, numbers, strings and containers of them are refused, as by `torch.load`.

    Args:
        ckpt_prefix: what the files' paths begin with.
        ckpt_suffix: what they end with: a pattern, as for `glob`.
        save_path: where to save {"model": state dict}: the prefix and "_consolidated.pth" unless
            it is given.
        save_model: whether to save it.

    Returns:
        The plain module's state dict, and the path, which is None if it was not saved.

    Raises:
        CheckpointError: there are no such files, or they are not those of all processes of a job.
    """
    target = save_path or ckpt_prefix + "_consolidated.pth"
    found: dict[int, tuple[str, Any]] = {}
    for path in sorted(glob.glob(ckpt_prefix + ckpt_suffix)):
        if os.path.abspath(path) == os.path.abspath(target):
            continue  # an earlier one of this function
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(saved, dict) or not {"model", "shard_metadata"} <= saved.keys():
            raise CheckpointError(
                f"{path} is no checkpoint of one process: it needs the keys 'model', a "
                "state_dict(), and 'shard_metadata', a get_shard_metadata()"
            )
        rank = saved["shard_metadata"]["rank"]
        if rank in found:
            raise CheckpointError(
                f"{path} and {found[rank][0]} are both of the process of rank {rank}: keep the "
                "files of one job"
            )
        found[rank] = path, saved
    if not found:
        raise CheckpointError(f"no file has a path like {ckpt_prefix + ckpt_suffix}")
    path, first = next(iter(found.values()))
    size = first["shard_metadata"]["world_size"]
    if sorted(found) != list(range(size)):
        raise CheckpointError(
            f"{path} is of {size} processes, and there are files of the ranks {sorted(found)}"
        )
    states = [found[rank][1]["model"] for rank in range(size)]
    whole = consolidate_sharded_state_dicts(states, first["shard_metadata"])
    if not save_model:
        return whole, None
    torch.save({"model": whole}, target)
    return whole, target
