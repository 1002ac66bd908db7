"""A model sharded over eight virtual devices by marks, and fully sharded by a wrapper."""

import numpy as np
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel as FSDPv2,
)

xr.use_spmd()
number = xr.global_runtime_device_count()
assert number == 8
mesh = xs.Mesh(np.array(range(number)), (number, 1), ("fsdp", "model"))
xs.set_global_mesh(mesh)
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
x, y = torch.randn(8, 16), torch.randint(0, 8, (8,))
expected = nn.functional.cross_entropy(plain(x), y)

device = xm.xla_device()
model = FSDPv2(plain.to(device), mesh=mesh)
data, target = x.to(device), y.to(device)
xs.mark_sharding(data, mesh, ("fsdp", None))
assert isinstance(data, xs.XLAShardedTensor)
assert not isinstance(target, xs.XLAShardedTensor)
alike = torch.zeros(8, 16, device=device)
xs.shard_as({"x": alike}, {"x": data})
assert isinstance(alike, xs.XLAShardedTensor)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = nn.functional.cross_entropy(model(data), target)
loss.backward()
optimizer.step()
xm.mark_step()
torch.testing.assert_close(loss.cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
print("ended")
