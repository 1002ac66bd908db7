"""PyTorch/XLA's `XlaFullyShardedDataParallel`: its losses, its memory, and its checkpoints."""

import gc
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

import xla_dynamo as xm
from tests.processes.jobs import ROOT, results_of
from tests.processes.sharded_modules import (
    CASES,
    MORE_CASES,
    Layer,
    Normed,
    ReturnsObject,
    Tied,
    by_layer,
    checkpointed,
    plain_step,
    rows,
    sharded_step,
    together,
    two_layers,
    wrapped,
    wrong,
)
from tests.processes.small_gpt import Block, SmallGPT, batches, loss_fn, losses_alone, new_model
from xla_dynamo.distributed import XlaFullyShardedDataParallel
from xla_dynamo.distributed.fsdp import consolidate_sharded_model_checkpoints
from xla_dynamo.errors import CheckpointError

HALF = {"compute_dtype": torch.bfloat16}


def per_block(module, recurse, unwrapped_params):
    return recurse or isinstance(module, Block)


def train(steps, **options):
    """A small GPT behind so many steps.

    Returns the model, the optimizer, the losses, and the shares of its parameters and of its state
    that this process has: the numbers of elements, and the bytes of the device.
    """
    rank, size = xm.runtime.global_ordinal(), xm.runtime.world_size()
    before = xm.get_memory_info()["bytes_used"]
    model = new_model()
    whole = sum(p.numel() for p in model.parameters())
    model = XlaFullyShardedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for tokens, labels in batches(rank, size, steps):
        loss = loss_fn(model, tokens.to("xla"), labels.to("xla"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = xm.all_reduce("sum", loss.detach().float(), 1 / size)
        xm.sync()
        losses.append(mean.item())
    del loss, mean, tokens, labels
    held = sum(p.numel() for p in model.parameters()) / whole
    state = sum(s["exp_avg"].numel() for s in optimizer.state.values()) / whole
    used = (xm.get_memory_info()["bytes_used"] - before) / (3 * 4 * whole)
    return model, optimizer, losses, (held, state, used)


def save(model, optimizer, folder):
    """A checkpoint of this process, and whether another model loads it."""
    rank = xm.runtime.global_ordinal()
    saved = {
        "model": model.state_dict(),
        "shard_metadata": model.get_shard_metadata(),
        "optimizer": optimizer.state_dict(),
    }
    path = f"{folder}/rank-{rank}.pth"
    xm.save(saved, path, master_only=False)
    torch.manual_seed(1)
    again = XlaFullyShardedDataParallel(SmallGPT(), auto_wrap_policy=per_block)
    loaded = torch.load(path)
    again.load_state_dict(loaded["model"])
    torch.optim.AdamW(again.parameters()).load_state_dict(loaded["optimizer"])
    return all(
        torch.equal(a.cpu(), b.cpu())
        for a, b in zip(again.parameters(), model.parameters(), strict=True)
    )


def refusals():
    """What wrong arguments and wrong uses are answered."""
    inner = nn.Sequential(wrapped()(Layer()), Layer())
    tied = Tied()
    tied.first = wrapped()(tied.first)
    called = by_layer()(two_layers())
    called(rows().to("xla"))
    hidden = XlaFullyShardedDataParallel(
        nn.Sequential(XlaFullyShardedDataParallel(ReturnsObject()), Unwraps())
    )
    with torch.device("meta"):
        on_meta = Layer()
    calls = [
        lambda: wrapped()(inner[0]),
        lambda: wrapped()(nn.ModuleList([Layer()])),
        lambda: wrapped(compute_dtype=torch.int32)(Layer()),
        lambda: wrapped(buffer_dtype=torch.float64)(Layer()),
        lambda: wrapped(sharding_groups=[[0]])(Layer()),
        lambda: wrapped(sharding_rank=7)(Layer()),
        lambda: wrapped(sharding_world_size=7)(Layer()),
        lambda: by_layer()(inner),
        lambda: wrapped()(tied),
        lambda: wrapped()(on_meta),
        lambda: wrapped(param_init_fn=lambda module: None)(on_meta),
        lambda: called[0].no_sync().__enter__(),
        lambda: hidden(rows().to("xla")).square().mean().backward(),
    ]
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except (RuntimeError, ValueError) as error:
            found.append(str(error))
    return found


REFUSALS = [
    "this Layer is fully sharded already",
    "ModuleList has no forward of its own",
    "compute_dtype is one of float32, float16 and bfloat16, not torch.int32",
    "buffer_dtype is one of float32, float16 and bfloat16, not torch.float64",
    "groups=[[0]]: they are of one size, with each of the 2 processes in one",
    "sharding_rank is 7, and by the groups it is",
    "sharding_world_size is 7, and by the groups it is 2 here",
    "0 is fully sharded already: an auto_wrap_policy is for modules in which none is",
    "the parameter 'weight' of Linear is tied to one of a module that is fully sharded by itself",
    "a Layer on the meta device without a method reset_parameters: give param_init_fn",
    "is on the meta device still after param_init_fn was called with it",
    "no_sync is a method of the outermost wrapper",
    "after it was freed: none of the tensors that the module returned has a part in this loss",
]


class Unwraps(nn.Module):
    """A layer that takes an object."""

    def forward(self, outputs):
        return outputs[0].x


def buffers_in_half():
    """The buffers of a module that computes in bfloat16, and what is made of them together."""
    # What errors have left in cycles is pending until it is collected: by each process at its time.
    gc.collect()
    module = XlaFullyShardedDataParallel(Normed(), **HALF)
    output = module(rows().to("xla"))
    dtypes = [b.dtype for b in module.buffers()]
    whole = together(module)
    return [output.dtype, *dtypes], [
        whole[f"norm.{n}"].dtype for n, _ in Normed().norm.named_buffers()
    ]


def examine():
    """What two processes find."""
    model, optimizer, *training = train(20, auto_wrap_policy=per_block)
    return {
        "training": training,
        "loads": save(model, optimizer, os.environ["FOLDER"]),
        "gathered": together(model),
        "in half": sharded_step(two_layers, wrapped(**HALF, flatten_parameters=True))[0],
        "wrong": wrong(CASES),
        "refusals": refusals(),
        "buffers": buffers_in_half(),
    }


def test_in_two_processes(tmp_path):
    alone = losses_alone()
    for found in results_of(examine, 2, FOLDER=str(tmp_path)):
        losses, shares = found["training"]
        torch.testing.assert_close(torch.tensor(losses), alone, rtol=1e-4, atol=0)
        assert shares == (0.5, 0.5, pytest.approx(0.5, rel=0.01))
        torch.testing.assert_close(found["in half"], plain_step(two_layers)[0], rtol=0, atol=5e-3)
        assert found["wrong"] == []
        for answer, right in zip(found["refusals"], REFUSALS, strict=True):
            assert right in answer
        half = torch.bfloat16
        assert found["buffers"] == (
            [half, half, half, torch.int64],
            [torch.float32, torch.float32, torch.int64],
        )
        assert found["loads"]
    whole, path = consolidate_sharded_model_checkpoints(f"{tmp_path}/rank-")
    torch.testing.assert_close(whole, found["gathered"], rtol=0, atol=0)
    model = SmallGPT()
    model.load_state_dict(torch.load(path)["model"])
    torch.testing.assert_close(dict(model.state_dict()), whole, rtol=0, atol=0)


def files(folder, size=2, ranks=(0, 1)):
    """Checkpoints of a parameter of three elements, in two processes."""
    metadata = {
        "shard_info": {"w": {"on_dim_0": False, "members": [(["w"], (3,))]}},
        "buffer_info": {},
        "world_size": size,
    }
    for number, rank in enumerate(ranks):
        part = torch.tensor([2.0 * rank, 2.0 * rank + 1])
        saved = {"model": {"w": part}, "shard_metadata": {**metadata, "rank": rank}}
        torch.save(saved, folder / f"rank-{number}.pth")


def command(*arguments):
    name = "xla_dynamo.distributed.fsdp.consolidate_sharded_ckpts"
    return subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_command(tmp_path):
    files(tmp_path)
    target = tmp_path / "whole.pth"
    ended = command(
        "--ckpt_prefix", f"{tmp_path}/", "--ckpt_suffix=rank-*.pth", "--save_path", str(target)
    )
    assert ended.stdout == f"saved {target}\n", ended.stderr
    assert torch.load(target)["model"]["w"].tolist() == [0, 1, 2]


def test_files_that_are_not_those_of_one_job(tmp_path):
    prefix = f"{tmp_path}/rank-"
    with pytest.raises(CheckpointError, match="no file has a path like"):
        consolidate_sharded_model_checkpoints(prefix)
    files(tmp_path, size=3)
    with pytest.raises(CheckpointError, match=r"of 3 processes, and there are files .* \[0, 1\]"):
        consolidate_sharded_model_checkpoints(prefix)
    files(tmp_path, ranks=(1, 1))
    with pytest.raises(CheckpointError, match="are both of the process of rank 1"):
        consolidate_sharded_model_checkpoints(prefix)
    torch.save({"model": {}}, tmp_path / "rank-0.pth")
    with pytest.raises(CheckpointError, match="needs the keys 'model'"):
        consolidate_sharded_model_checkpoints(prefix)
    files(tmp_path)
    for _ in range(2):  # the file of the first time is none of a process
        whole, path = consolidate_sharded_model_checkpoints(prefix)
        assert whole["w"].tolist() == [0, 1, 2]
        assert path == f"{prefix}_consolidated.pth"


WAYS = [
    {"auto_wrap_policy": per_block},
    {"auto_wrap_policy": per_block, "flatten_parameters": True},
    {
        "auto_wrap_policy": per_block,
        "auto_wrapper_callable": checkpointed,
        "shard_param_on_dim_0": True,
        "reshard_after_forward": False,
    },
    {"auto_wrap_policy": size_based_auto_wrap_policy, "sharding_groups": [[0, 2, 1, 3]]},
]


def examine_a_way():
    """What four processes find."""
    return train(20, **WAYS[int(os.environ["WAY"])])[2:]


def examine_in_half():
    """The losses with gradients that are summed in bfloat16, and in float32."""
    options = {"flatten_parameters": True, **HALF}
    return [train(5, fp32_reduce_scatter=wide, **options)[2] for wide in (False, True)]


def examine_all_cases():
    return wrong({**CASES, **MORE_CASES})


@pytest.mark.slow
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_in_four_processes(way):
    alone = losses_alone()
    for losses, shares in results_of(examine_a_way, 4, devices=2, WAY=str(way)):
        torch.testing.assert_close(torch.tensor(losses), alone, rtol=1e-4, atol=0)
        assert shares == (0.25, 0.25, pytest.approx(0.25, rel=0.01))


@pytest.mark.slow
def test_gradients_in_half():
    alone = losses_alone(5)
    for found in results_of(examine_in_half, 4, devices=2):
        for losses in found:
            torch.testing.assert_close(torch.tensor(losses), alone, rtol=1e-2, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_every_case(processes):
    assert results_of(examine_all_cases, processes) == [[]] * processes
