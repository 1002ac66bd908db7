"""A language model from scratch by torch's own FSDP2, `fully_shard`, on the device `xla`.

    python -m docs.examples.recipes.llm_fsdp2 --processes 2
    torchrun --nproc-per-node 2 -m docs.examples.recipes.llm_fsdp2

Each process has a part of every parameter, of its gradient and of AdamW's moments, and rows of its
own. The loop is the usual one of PyTorch, with no compiled step: the device records what the loop
does. `llm_fsdp` has one mesh over all devices instead, whose step is one program; it is faster.
"""

import argparse
import os
from collections.abc import Sequence

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import xla_dynamo
from docs.examples import gpt
from docs.examples.progress import track
from docs.examples.recipes.common import multiple_of, options_of
from docs.examples.recipes.llm_fsdp import batch_of, new_model, report

MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's, of each parameter


def train(_: int, options: argparse.Namespace) -> None:
    """Train in this process, with the others of the job."""
    distributed.init_process_group("xla")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    mesh = init_device_mesh("xla", (size,))
    text, model = gpt.corpus(), new_model(options, xla_dynamo.device())
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))

    losses = []
    numbers: Sequence[int] = range(options.steps)
    for number in track(numbers, "fully_shard") if rank == 0 else numbers:
        rows = batch_of(text, options.batch, number).chunk(size)[rank].to("xla")
        loss = gpt.loss_fn(model, rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        distributed.all_reduce(mean, distributed.ReduceOp.AVG)
        losses.append(mean.item())  # reading a value ends the step: what was recorded runs

    kept = [state[name] for state in optimizer.state.values() for name in MOMENTS]
    held = sum(part.to_local().nbytes for part in [*model.parameters(), *kept])
    # The first process gets the whole weights, in the memory of its host.
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole)
    if rank == 0:
        report(options, weights, losses, held, size)
    distributed.destroy_process_group()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in as many processes as are asked for, or in those that torchrun has started."""
    parser = options_of(__doc__, "llm_fsdp2", steps=100)
    parser.add_argument("--processes", type=multiple_of(1), help="2, or those of torchrun")
    parser.add_argument("--batch", type=multiple_of(1), default=16, help="rows of all together")
    parser.add_argument("--layers", type=multiple_of(1), default=4)
    parser.add_argument("--width", type=multiple_of(4), default=128)  # there are four heads
    options = parser.parse_args(arguments)
    started = "WORLD_SIZE" in os.environ
    processes = options.processes or (None if started else 2)
    count = processes or int(os.environ["WORLD_SIZE"])
    if options.batch % count:
        parser.error(f"--batch {options.batch} cannot be shared by {count} processes")
    xla_dynamo.launch(train, (options,), nprocs=processes)


if __name__ == "__main__":
    main()
