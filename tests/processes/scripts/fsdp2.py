"""The calls of PyTorch's example of FSDP2, with a small GPT: `example.py` and `checkpoint.py`.

https://github.com/pytorch/examples/tree/main/distributed/FSDP2

It trains twice: parameters that are drawn on the device, whose state is saved; and what was loaded
from there.
"""

import argparse
import itertools
import os
import pathlib

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    _init_optim_state,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import xla_dynamo
from tests.processes.scripts import toy
from tests.processes.small_gpt import SmallGPT, batches

RATE, STEPS = 1e-2, 2
INITIAL, SAVED, CONTINUED = "initial.pt", "saved.pt", "continued.pt"


def new_model():
    model = SmallGPT()
    del model.blocks[1:]
    return model


class Checkpoints:
    """Whole states in one file, by functions of DTensors or of torch.distributed.checkpoint."""

    def __init__(self, folder, dcp_api):
        self.file, self.dcp_api = pathlib.Path(folder, SAVED), dcp_api
        self.is_empty = not self.file.exists()
        self.next = self.file if self.is_empty else pathlib.Path(folder, CONTINUED)

    def load_model(self, model):
        states = torch.load(self.file, mmap=True, weights_only=True, map_location="cpu")["model"]
        if self.dcp_api:
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(model=model, model_state_dict=states, options=options)
            return
        meta = model.state_dict()
        sharded = {name: torch.nn.Parameter(like(t, meta[name])) for name, t in states.items()}
        model.load_state_dict(sharded, strict=False, assign=True)

    def load_optim(self, model, optimizer):
        states = torch.load(self.file, mmap=True, weights_only=True, map_location="cpu")["optim"]
        if self.dcp_api:
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_optimizer_state_dict(
                model=model, optimizers=optimizer, optim_state_dict=states, options=options
            )
            return
        _init_optim_state(optimizer)
        own = optimizer.state_dict()
        for number, state in own["state"].items():
            saved = states["state"][number]
            own["state"][number] = {name: like(saved[name], t) for name, t in state.items()}
        optimizer.load_state_dict(own)

    def save(self, model, optimizer):
        if self.dcp_api:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            states = {
                "model": get_model_state_dict(model=model, options=options),
                "optim": get_optimizer_state_dict(
                    model=model, optimizers=optimizer, options=options
                ),
            }
        else:
            optim = optimizer.state_dict()
            states = {
                "model": {name: whole(t) for name, t in model.state_dict().items()},
                "optim": {
                    "param_groups": optim["param_groups"],
                    "state": {
                        number: {name: whole(t) for name, t in state.items()}
                        for number, state in optim["state"].items()
                    },
                },
            }
        if torch.distributed.get_rank() == 0:
            torch.save(states, self.next)


def like(t, sharded):
    """A whole tensor in the shards of another."""
    if not isinstance(sharded, DTensor):
        return t
    return distribute_tensor(t, sharded.device_mesh, sharded.placements)


def whole(t):
    return (t.full_tensor() if isinstance(t, DTensor) else t).cpu()


def prefetch(blocks):
    for this, following in itertools.pairwise(blocks):
        this.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([this])


def main(args):
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() >= 2
    rank = int(os.environ["LOCAL_RANK"])
    device_type = torch.accelerator.current_accelerator()
    device = torch.device(f"{device_type}:{rank}")
    with torch.accelerator.device_index(rank):
        pass
    backend = torch.distributed.get_default_backend_for_device(device)
    torch.distributed.init_process_group(backend=backend, device_id=device)
    torch.manual_seed(0)
    with torch.device("meta"):
        model = new_model()
    policy = {}
    if args.mixed_precision:
        policy["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    assert isinstance(model, FSDPModule)
    assert all(p.placements == (Shard(0),) for p in model.parameters())
    if args.explicit_prefetching:
        prefetch(model.blocks)
    checkpoints = Checkpoints(args.folder, args.dcp_api)
    if checkpoints.is_empty:
        model.to_empty(device=device)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        initial = {name: whole(t) for name, t in model.state_dict().items()}
        if rank == 0:
            torch.save(initial, pathlib.Path(args.folder, INITIAL))
    else:
        checkpoints.load_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    if not checkpoints.is_empty:
        checkpoints.load_optim(model, optimizer)
    losses = []
    for tokens, _ in batches(rank, torch.distributed.get_world_size(), STEPS):
        if args.explicit_prefetching:
            model.unshard()
        loss = model(tokens.to(device)).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    checkpoints.save(model, optimizer)
    torch.distributed.destroy_process_group()
    return [loss.item() for loss in losses]


def losses_alone(folder, continued, size):
    """The losses of one process in eager, from the same parameters and optimizer's state."""
    model = new_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    if continued:
        states = torch.load(pathlib.Path(folder, SAVED), weights_only=True)
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optim"])
    else:
        model.load_state_dict(torch.load(pathlib.Path(folder, INITIAL), weights_only=True))
    losses = []
    for tokens, _ in batches(steps=STEPS):
        loss = model(tokens).sum() / size
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    xla_dynamo.device()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--explicit-prefetching", action="store_true")
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--dcp-api", action="store_true")
    given = parser.parse_args()
    losses = main(given)
    toy.hand_over(given.folder, os.environ["RANK"], losses)
