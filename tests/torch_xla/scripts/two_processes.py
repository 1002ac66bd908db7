"""Two processes that average what they have, and reduce their gradients."""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


def work(index, factor):
    device = torch_xla.device()
    value = torch.tensor([float(xr.global_ordinal() + 1)] * 3).to(device)
    total = xm.all_reduce(xm.REDUCE_SUM, value)
    assert (total * factor).tolist() == [6.0] * 3
    model = torch.nn.Linear(3, 1, bias=False).to(device)
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().cpu().clone()
    model(value).sum().backward()
    xm.optimizer_step(optimizer)
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.15)
    assert xmp.MpSerialExecutor().run(lambda: index) == index
    print("ended", index, flush=True)


if __name__ == "__main__":
    xmp.spawn(work, args=(2,), nprocs=2)
