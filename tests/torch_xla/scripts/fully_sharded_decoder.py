"""A decoder sharded by FSDPv2 over every device, as PyTorch/XLA's guide of FSDP by SPMD."""

import copy
import functools
import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.utils.utils as xu
from torch import nn
from torch_xla import runtime as xr
from torch_xla.distributed.fsdp import checkpoint_module
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

VOCABULARY, SIZE, HEADS, SEQUENCE, STEPS = 64, 16, 2, 8, 3


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZE))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(SIZE, SIZE, bias=False)
        self.k = nn.Linear(SIZE, SIZE // HEADS, bias=False)
        self.v = nn.Linear(SIZE, SIZE // HEADS, bias=False)
        self.o = nn.Linear(SIZE, SIZE, bias=False)
        self.gate, self.up = (nn.Linear(SIZE, 4 * SIZE, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * SIZE, SIZE, bias=False)
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()

    def forward(self, hidden):
        b, s, d = hidden.shape
        x = self.norm1(hidden)
        query = self.q(x).view(b, s, HEADS, -1).transpose(1, 2)
        key, value = (
            made.view(b, s, 1, -1).transpose(1, 2).expand(b, HEADS, s, d // HEADS)
            for made in (self.k(x), self.v(x))
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(d // HEADS)
        lowest = torch.finfo(hidden.dtype).min
        scores += torch.triu(torch.full((s, s), lowest, device=hidden.device), diagonal=1)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        hidden = hidden + self.o((weights @ value).transpose(1, 2).reshape(b, s, d))
        x = self.norm2(hidden)
        return hidden + self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, SIZE)
        self.layers = nn.ModuleList([DecoderLayer() for _ in range(2)])
        self.norm = RMSNorm()
        self.output = nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, ids):
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.output(self.norm(hidden))


def train(model, batches, device):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loss_fn = nn.CrossEntropyLoss()

    def step(data, target):
        optimizer.zero_grad()
        loss = loss_fn(model(data).view(-1, VOCABULARY), target.view(-1))
        loss.backward()
        optimizer.step()
        return loss

    if device.type == "xla":
        step = torch_xla.compile(step)
    return [step(*batch).item() for batch in itertools.islice(batches, STEPS)]


def main():
    xr.use_spmd()
    torch.manual_seed(42)
    count = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.array(range(count)), (count, 1), ("fsdp", "model"))
    xs.set_global_mesh(mesh)
    device = torch_xla.device()
    ids = torch.randint(0, VOCABULARY, (count, SEQUENCE))
    loader = xu.SampleGenerator(data=(ids, torch.roll(ids, -1, 1)), sample_count=STEPS)
    sharding = xs.ShardingSpec(mesh, ("fsdp", None))
    reference = Decoder()
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={DecoderLayer})
    model = FSDPv2(copy.deepcopy(reference).to(device), auto_wrap_policy=policy)
    assert isinstance(model.module.layers[1], FSDPv2)
    got = train(model, pl.MpDeviceLoader(loader, device, input_sharding=sharding), device)
    torch.testing.assert_close(
        got, train(reference, loader, torch.device("cpu")), atol=1e-3, rtol=0
    )
    spec = torch_xla._XLAC._get_xla_sharding_spec(model.module.layers[0].module.q.weight)
    assert spec == f"{{devices=[{count},1]{','.join(map(str, range(count)))}}}", spec

    def shard_output(output, mesh):
        xs.mark_sharding(output, mesh, ("fsdp", None, None))

    other = FSDPv2(checkpoint_module(Decoder().to(device)), mesh, shard_output)
    other(ids.to(device)).sum().backward()
    torch_xla.sync()
    assert all(torch.isfinite(p.grad).all() for p in other.parameters())
    print("ended", count)


if __name__ == "__main__":
    main()
