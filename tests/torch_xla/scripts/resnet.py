"""ResNet-18 on fake data, a class with a training loop as in PyTorch/XLA's examples."""

import copy
import itertools
import time

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.utils.utils as xu
from torch import nn, optim
from torch_xla import runtime as xr

WIDTHS = (8, 16, 32, 64)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        layers, inputs = [], WIDTHS[0]
        for outputs in WIDTHS:
            stride = 1 if inputs == outputs else 2
            layers += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = self.layers(self.maxpool(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


class TrainResNet:
    def __init__(self):
        self.batch_size, self.num_steps, self.num_epochs = 4, 4, 1
        torch.manual_seed(0)
        self.data = (torch.randn(self.batch_size, 3, 32, 32), torch.tensor([1, 3, 5, 7]))
        loader = xu.SampleGenerator(data=self.data, sample_count=1000 // xr.world_size())
        self.device = torch_xla.device()
        self.train_device_loader = pl.MpDeviceLoader(loader, self.device)
        self.reference = ResNet18()
        self.model = copy.deepcopy(self.reference).to(self.device)
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.05, weight_decay=1e-4)
        self.loss_fn = nn.CrossEntropyLoss()
        self.compiled_step_fn = torch_xla.compile(
            self.step_fn, full_graph=True, name="resnet_step_fn"
        )
        self.losses = []

    def _train_update(self, step, loss, tracker, epoch):
        self.losses.append(loss.item())
        print(f"epoch: {epoch}, step: {step}, loss: {loss}, rate: {tracker.rate()}")

    def run_optimizer(self):
        self.optimizer.step()

    def step_fn(self, data, target):
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(data), target)
        loss.backward()
        self.run_optimizer()
        return loss

    def train_loop_fn(self, loader, epoch):
        tracker = xm.RateTracker()
        self.model.train()
        for step, (data, target) in enumerate(itertools.islice(loader, self.num_steps)):
            loss = self.compiled_step_fn(data, target)
            tracker.add(self.batch_size)
            xm.add_step_closure(self._train_update, args=(step, loss, tracker, epoch))

    def start_training(self):
        for epoch in range(1, self.num_epochs + 1):
            xm.master_print(f"Epoch {epoch} train begin {time.strftime('%l:%M%p %Z')}")
            self.train_loop_fn(self.train_device_loader, epoch)
            xm.master_print(f"Epoch {epoch} train end {time.strftime('%l:%M%p %Z')}")
        torch_xla.sync()
        xm.wait_device_ops()

    def compare(self):
        optimizer = optim.SGD(self.reference.parameters(), lr=0.05, weight_decay=1e-4)
        for got in self.losses:
            optimizer.zero_grad()
            loss = self.loss_fn(self.reference(self.data[0]), self.data[1])
            loss.backward()
            optimizer.step()
            assert abs(got - loss.item()) < 0.05 * loss.item() + 1e-3, (got, loss.item())
        mean = self.model.bn1.running_mean.cpu()
        torch.testing.assert_close(mean, self.reference.bn1.running_mean, atol=1e-3, rtol=1e-2)
        # The first step, which makes nothing of what the loader loads, and all later ones.
        assert met.metric_data("CompileTime")[0] <= 4
        fallbacks = {name for name in met.counter_names() if name.startswith("aten::")}
        assert fallbacks <= {"aten::_local_scalar_dense"}, fallbacks  # the losses are read


if __name__ == "__main__":
    training = TrainResNet()
    training.start_training()
    training.compare()
    print("ended", len(training.losses))
