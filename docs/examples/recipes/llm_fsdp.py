"""A language model from scratch, fully sharded: each device has a part of everything.

    python -m docs.examples.recipes.llm_fsdp
    python -m docs.examples.recipes.llm_fsdp --processes 2 --devices 4
    torchrun --nproc-per-node 2 -m docs.examples.recipes.llm_fsdp --devices 4

One CPU appears as `--devices` devices, in each of `--processes` processes, and one mesh goes over
all of them. The text is Python's own standard library. A checkpoint is written every `--save-every`
steps: the same command, begun again after it was ended or killed, goes on from the last one, also
with another number of devices or processes.
"""

import argparse
import json
import os
from collections.abc import Sequence

import torch
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import xla_dynamo
from docs.examples import gpt
from docs.examples.progress import plot, track
from docs.examples.recipes.common import multiple_of, options_of
from xla_dynamo import spmd
from xla_dynamo.distributed_checkpoint import CheckpointManager, prime_optimizer
from xla_dynamo.spmd import recipes


def batch_of(text: torch.Tensor, rows: int, step: int) -> torch.Tensor:
    """The batch i64[rows, CONTEXT + 1] of a step: the same in every run and in every process."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - gpt.CONTEXT - 1, (rows, 1), generator=generator)
    return text[starts + torch.arange(gpt.CONTEXT + 1)].long()


def new_model(options: argparse.Namespace, device: torch.device | str) -> gpt.GPT:
    """The model on a device; all processes make the same one."""
    torch.manual_seed(0)
    model = gpt.GPT(options.width, options.layers).to(device)
    model.head.weight = model.tokens.weight  # a move to the device 'xla' takes tied weights apart
    return model


def train(_: int, options: argparse.Namespace) -> None:
    """Train in this process, alone or with others of a job."""
    device = xla_dynamo.device()
    mesh = spmd.get_1d_mesh("fsdp")
    text, whole = gpt.corpus(), new_model(options, device)

    # Marks on the parameters: each device keeps a part of each, and gathers a block's where the
    # block is computed. The optimizer's state is sharded like its parameters.
    model = recipes.SpmdFullyShardedDataParallel(
        whole, mesh=mesh, axis="fsdp", auto_wrap_policy=ModuleWrapPolicy({gpt.Block})
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    prime_optimizer(optimizer)  # makes the state that a checkpoint is loaded into
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": []}

    # Each shard is an entry of a checkpoint, so that another mesh can load it.
    manager = CheckpointManager(options.out / "checkpoints", options.save_every, max_to_keep=2)
    if saved := manager.all_steps():
        manager.restore(max(saved), state)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        xla_dynamo.master_print(f"goes on behind step {max(saved)}")
    losses = state["losses"]
    if len(losses) >= options.steps:
        xla_dynamo.master_print(f"{options.out} has so many already: ask for more by --steps")
        return

    step = xla_dynamo.train_step(model, gpt.loss_fn, optimizer)
    first = xla_dynamo.explain(step)
    numbers: Sequence[int] = range(len(losses), options.steps)
    for number in track(numbers, "train_step") if xla_dynamo.is_master_ordinal() else numbers:
        batch = batch_of(text, options.batch, number).to(device)
        batch = recipes.shard_batch(batch, mesh, axis="fsdp")
        if number == numbers[0]:
            told = first(batch)
            losses.append(told.result.item())
        else:
            losses.append(step(batch).item())
        state["optimizer"] = optimizer.state_dict()
        manager.save(number + 1, state, force=number + 1 == options.steps)
        if manager.reached_preemption(number + 1):
            xla_dynamo.master_print(f"a SIGTERM: ends behind step {number + 1}, which is saved")
            return

    weights = {name: tensor.cpu() for name, tensor in whole.state_dict().items()}  # gathers them
    if xla_dynamo.is_master_ordinal():
        report(options, weights, losses, told.memory[0].argument_bytes, mesh.size())


def report(
    options: argparse.Namespace,
    weights: dict[str, torch.Tensor],
    losses: list[float],
    held: int,
    count: int,
) -> None:
    """Write down what came of it, and let the model write some Python."""
    model = new_model(options, "cpu")
    model.load_state_dict(weights)
    torch.save(weights, options.out / "model.pt")
    everything = 3 * sum(parameter.nbytes for parameter in model.parameters())
    figures = {"losses": losses, "devices": count, "held": held, "everything": everything}
    (options.out / "figures.json").write_text(json.dumps(figures))
    plot(options.out / "loss.png", losses={f"{count} devices": losses})
    end = losses[-20:]
    print(f"loss, nats a byte: {losses[0]:.2f} at first, {sum(end) / len(end):.2f} at the end")
    print(f"parameters and AdamW's moments: {everything:,} bytes")
    print(f"on each of {count} devices: {held:,} bytes")
    print(f"weights, checkpoints and loss curve: {options.out}\n")
    print(model.eval().write("def ", 200))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in as many processes as are asked for, or in those that torchrun has started."""
    parser = options_of(__doc__, "llm_fsdp", steps=300)
    for name, default, page in (
        ("devices", 8, "of each process"),
        ("processes", None, "that are started here; torchrun starts its own"),
        ("batch", 16, "rows of all devices together"),
        ("layers", 4, None),
        ("save-every", 100, "steps"),
    ):
        parser.add_argument(f"--{name}", type=multiple_of(1), default=default, help=page)
    parser.add_argument("--width", type=multiple_of(4), default=128)  # there are four heads
    options = parser.parse_args(arguments)
    count = options.devices * int(os.environ.get("WORLD_SIZE", options.processes or 1))
    if options.batch % count:
        parser.error(f"--batch {options.batch} cannot be shared by {count} devices")
    os.environ["CPU_NUM_DEVICES"] = str(options.devices)  # the processes that start have it, too
    xla_dynamo.launch(train, (options,), nprocs=options.processes)


if __name__ == "__main__":
    main()
