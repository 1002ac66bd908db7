"""Train a small network on made-up digits, as PyTorch/XLA's example does without a download."""

import argparse

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.test.test_utils as test_utils
import torch_xla.utils.utils as xu
from torch import nn, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.bn1 = nn.BatchNorm2d(6)
        self.fc1 = nn.Linear(6 * 12 * 12, 10)

    def forward(self, x):
        x = self.bn1(F.relu(F.max_pool2d(self.conv1(x), 2)))
        return F.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)


def batches(flags):
    torch.manual_seed(1)
    data = torch.randn(flags.batch_size, 1, 28, 28), torch.randint(0, 10, (flags.batch_size,))
    return xu.SampleGenerator(data=data, sample_count=flags.steps)


def train(flags, device):
    torch.manual_seed(42)
    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    writer = test_utils.get_summary_writer(flags.logdir)
    tracker, losses = xm.RateTracker(), []
    loader = batches(flags)
    if device.type == "xla":
        loader = pl.MpDeviceLoader(loader, device)
    for step, (data, target) in enumerate(loader):
        with xp.StepTrace("train_mnist", step_num=step), xp.Trace("build_graph"):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            xm.optimizer_step(optimizer) if device.type == "xla" else optimizer.step()
            tracker.add(flags.batch_size)
        losses.append(loss.detach())
        if device.type == "xla":
            xm.add_step_closure(
                lambda step, loss: test_utils.print_training_update(
                    device, step, loss.item(), tracker.rate(), tracker.global_rate(), 1, writer
                ),
                args=(step, loss),
            )
    test_utils.close_summary_writer(writer)
    return torch.stack([loss.cpu() for loss in losses])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--logdir")
    flags = parser.parse_args()
    found = train(flags, torch_xla.device())
    torch.testing.assert_close(found, train(flags, torch.device("cpu")), rtol=1e-4, atol=1e-4)
    assert found[-1] < found[0]
    print("ended", flags.steps)
