"""A training that is profiled: a server, traces on demand and by calls, and metrics."""

import glob
import os
import tempfile
import time

os.environ["XLA_IR_DEBUG"] = "1"
os.environ["XLA_HLO_DEBUG"] = "1"

import torch
import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
import torch_xla.utils.utils as xu
from torch import nn

device = torch_xla.device()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, y = torch.randn(16, 32).to(device), torch.randint(0, 4, (16,)).to(device)
losses = []


@xp.trace_me("loss_fn")
def loss_fn(output, target):
    return nn.functional.cross_entropy(output, target)


def train(count):
    for step in range(count):
        with xp.StepTrace("train_step", step_num=step):
            with xp.Trace("forward"):
                loss = loss_fn(model(x), y)
            with xp.Trace("backward"):
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        losses.append(loss.item())


def planes(folder):
    return glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)


if __name__ == "__main__":
    port = xu.get_free_tcp_ports()[0]
    server = xp.start_server(port)
    train(2)
    with tempfile.TemporaryDirectory() as folder:
        detached = os.path.join(folder, "detached")
        xp.trace_detached(f"localhost:{port}", detached, duration_ms=300)
        until = time.time() + 30
        while not planes(detached) and time.time() < until:
            train(1)
        assert planes(detached)

        session = os.path.join(folder, "session")
        xp.start_trace(session)
        train(2)
        xp.stop_trace()
        (path,) = planes(session)
        with open(path, "rb") as file:
            written = file.read()
        assert all(name in written for name in (b"train_step", b"forward", b"loss_fn"))
    for call in (xp.stop_trace, lambda: xp.start_server(port)):
        try:
            call()
        except RuntimeError:
            continue
        raise AssertionError(f"{call} is to raise RuntimeError")
    assert losses[-1] < losses[0]
    report = met.metrics_report()
    for name in ("CompileTime", "ExecuteTime", "TransferToDeviceTime"):
        assert f"Metric: {name}" in report, report
    assert "CompileTime" in met.short_metrics_report()
    count, total, samples = met.metric_data("ExecuteTime")
    assert count >= len(losses)
    met.clear_all()
    assert met.metric_data("CompileTime") is None
    assert "HloModule" in torch_xla._XLAC._get_xla_tensors_hlo([model(x)])
    print("ended")
