"""Tensors on the device, as PyTorch/XLA's guide introduces them."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr

assert met.metrics_report() == ""
device = xm.xla_device()
t0 = torch.arange(6.0, device=device).view(2, 3)
t1 = torch.ones(3, 2).to(torch_xla.device())
print(t0 @ t1)
assert torch.equal((t0 @ t1).cpu(), torch.arange(6.0).view(2, 3) @ torch.ones(3, 2))

linear = torch.nn.Linear(3, 4)
expected = linear(t0.cpu())
linear.to(device)
torch_xla.sync()
torch.testing.assert_close(linear(t0).cpu(), expected)

assert xm.xla_device_hw(device) == xr.device_type() == "CPU"
assert xm.get_xla_supported_devices() == ["xla:0"]
assert xm.get_ordinal() == 0
assert xr.world_size() == xm.xrt_world_size() == 1
assert xm.is_xla_tensor(t0)
assert not xm.is_xla_tensor(t0.cpu())
assert "CompileTime" in met.metrics_report()
assert met.metric_data("ExecuteTime")[0] > 0
state = xm.get_rng_state()
first = torch.rand(4, device=device)
xm.set_rng_state(state)
assert torch.equal(first.cpu(), torch.rand(4, device=device).cpu())
