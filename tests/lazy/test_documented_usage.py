"""What PyTorch/XLA's documentation shows for one device, with other imports: the shapes stay.

The names of `torch_xla`, `xm` and `pl` are all in `xla_dynamo`: docs/from-pytorch-xla.md.
"""

import copy
import io
import time

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import xla_dynamo as torch_xla
import xla_dynamo as xm
from tests.comparison import compare
from xla_dynamo import metrics as met


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(2 * 2 * 16, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = x.view(-1, 2 * 2 * 16)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def digits(count=256):
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:count] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    return DataLoader(TensorDataset(x, torch.tensor(labels[:count])), batch_size=32)


def model_and_optimizer(device, lr=0.1):
    torch.manual_seed(0)
    model = DigitsNet().train().to(device)
    return model, optim.SGD(model.parameters(), lr=lr, momentum=0.5)


@pytest.fixture(scope="module")
def eagers_losses():
    model, optimizer = model_and_optimizer("cpu")
    losses = []
    for data, target in digits():
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def nothing_counted():
    torch_xla.device()
    torch_xla.sync()
    met.clear_all()


def compilations():
    return met.counter_value("UncachedCompile")


# pytorch-on-xla-devices.md


def test_tensors_are_made_printed_and_computed_with():
    t = torch.randn(2, 2, device=torch_xla.device())
    assert str(t.device) == "xla:0"
    assert repr(t).startswith("tensor([[")
    assert "device='xla:0'" in repr(t)
    t0, t1 = (torch.randn(2, 2, device=xm.xla_device()) for _ in range(2))
    compare(t0.cpu() + t1.cpu(), (t0 + t1).cpu(), values=True)
    compare(t0.cpu() @ t1.cpu(), t0.mm(t1).cpu(), values=True)


def test_a_module_must_be_on_the_device():
    l_in = torch.randn(10, device=torch_xla.device())
    linear = nn.Linear(10, 20)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        linear(l_in)
    expected = linear(l_in.cpu())
    compare(expected, linear.to(torch_xla.device())(l_in).cpu(), values=True)


def test_a_training_loop_with_sync(eagers_losses):
    device = torch_xla.device()
    model, optimizer = model_and_optimizer(device)
    loss_fn = nn.NLLLoss()
    losses = []
    for data, target in digits():
        optimizer.zero_grad()
        data = data.to(device)
        target = target.to(device)
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    assert losses == pytest.approx(eagers_losses, rel=1e-3)
    assert compilations() <= 3  # of the first step, which makes momenta, and of the others


def test_a_training_loop_with_step(eagers_losses):
    """The README's."""
    device = torch_xla.device()
    model, optimizer = model_and_optimizer(device)
    losses = []
    for inputs, labels in digits():
        with torch_xla.step():
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(inputs), labels)
            loss.backward()
            xm.optimizer_step(optimizer)
        losses.append(loss.detach())
    assert [x.item() for x in losses] == pytest.approx(eagers_losses, rel=1e-3)


def test_a_loader_of_the_device(eagers_losses):
    device = torch_xla.device()
    model, optimizer = model_and_optimizer(device)
    train_loader = torch_xla.MpDeviceLoader(digits(), device)
    losses = []
    for data, target in train_loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.detach())
    assert [x.item() for x in losses] == pytest.approx(eagers_losses, rel=1e-3)
    assert met.counter_value("MarkStep") == len(train_loader)


def test_an_optimizer_step_may_be_the_barrier():
    model = nn.Linear(2, 1).to(torch_xla.device())
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2, device="xla")).sum()
        loss.backward()
        return loss

    loss = xm.optimizer_step(optimizer, barrier=True, optimizer_args={"closure": closure})
    assert met.counter_value("MarkStep") == 1
    assert loss.item() == pytest.approx(model(torch.ones(1, 2, device="xla")).item() + 0.3)


def test_tensors_are_saved_from_the_cpu(tmp_path):
    device = torch_xla.device()
    t0, t1 = torch.randn(2, 2, device=device), torch.randn(2, 2, device=device)
    tensors = (t0.cpu(), t1.cpu())
    torch.save(tensors, tmp_path / "tensors.pt")
    again = [t.to(device) for t in torch.load(tmp_path / "tensors.pt")]
    assert torch.equal(again[0], t0)
    assert torch.equal(again[1], t1)


def test_save_moves_to_the_cpu(tmp_path):
    model, _ = model_and_optimizer(torch_xla.device())
    path = tmp_path / "model.pt"
    xm.save({"model": model.state_dict(), "epochs": [1, (2,)]}, path)
    loaded = torch.load(path)
    assert loaded["epochs"] == [1, (2,)]
    assert {t.device.type for t in loaded["model"].values()} == {"cpu"}
    other = DigitsNet()
    other.load_state_dict(loaded["model"])
    x = torch.randn(2, 1, 8, 8)
    compare(other(x), model(x.to("xla")).cpu(), values=True)
    file = io.BytesIO()
    xm.save(model.fc1.bias, file, master_only=False)
    file.seek(0)
    assert torch.equal(torch.load(file), model.fc1.bias.cpu())


# eager.md


def test_a_model_in_eager_mode_and_compiled():
    torch_xla.eager_mode(True)
    try:
        model, _ = model_and_optimizer(torch_xla.device())
        compiled_model = torch_xla.compile(model)
        data = torch.randn(4, 1, 8, 8)
        met.clear_all()
        result = compiled_model(data.to("xla"))
        assert compilations() <= 2  # the upload is none
        compare(copy.deepcopy(model).cpu()(data), result.cpu(), values=True)
    finally:
        torch_xla.eager_mode(False)


def test_a_compiled_training_step(eagers_losses):
    def step_fn(model, data, target, loss_fn, optimizer):
        optimizer.zero_grad()
        loss = loss_fn(model(data), target)
        loss.backward()
        optimizer.step()
        return loss

    torch_xla.eager_mode(True)
    try:
        model, optimizer = model_and_optimizer(torch_xla.device())
        step_fn = torch_xla.compile(step_fn, full_graph=True, name="train_step")
        losses = []
        for data, target in digits():
            data, target = data.to("xla"), target.to("xla")
            losses.append(step_fn(model, data, target, nn.NLLLoss(), optimizer))
    finally:
        torch_xla.eager_mode(False)
    assert [x.item() for x in losses] == pytest.approx(eagers_losses, rel=1e-3)


# trace-vs-execution-time.md


def test_the_time_of_an_execution():
    a, b = (torch.randn(64, 64, device="xla") for _ in range(2))
    _ = torch.matmul(a, b)
    torch_xla.sync(wait=True)
    executions = met.metric_data("ExecuteTime")[0]
    start = time.perf_counter()
    result = torch.matmul(a, b)
    torch_xla.sync(wait=True)
    assert time.perf_counter() > start
    assert met.metric_data("ExecuteTime")[0] == executions + 1
    compare(a.cpu() @ b.cpu(), result.cpu(), values=True)


def test_unlazy_computes_some_tensors():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    met.clear_all()
    y, z = x + 1, x + 2
    xm.unlazy([y])
    assert met.metric_data("ExecuteTime")[0] == 1
    assert y.tolist() == [2, 2, 2]
    assert met.metric_data("ExecuteTime")[0] == 1
    assert z.tolist() == [3, 3, 3]
    assert met.metric_data("ExecuteTime")[0] == 2


# xla-overview.md


@pytest.mark.parametrize("barrier", [False, True])
def test_a_barrier_makes_one_small_graph(barrier):
    pairs = [(torch.full((2,), n, device="xla"), torch.ones(2, device="xla")) for n in range(4)]
    z = torch.zeros(2, dtype=torch.float32, device="xla")
    torch_xla.sync()
    met.clear_all()
    for x, y in pairs:
        z += x + y
        if barrier:
            xm.mark_step()
    torch_xla.sync()
    assert z.tolist() == [10, 10]
    assert met.metric_data("ExecuteTime")[0] == (4 if barrier else 1)
    assert compilations() <= 1


# troubleshoot.md


def test_a_simple_calculation():
    t1 = torch.tensor(100, device=torch_xla.device())
    t2 = torch.tensor(200, device=torch_xla.device())
    assert repr(t1 + t2) == "tensor(300, device='xla:0')"


def test_reports_of_metrics():
    x = torch.tensor([0, 3, 0, 5], device="xla")
    assert x.nonzero().tolist() == [[1], [3]]
    torch_xla.sync()
    report, short = met.metrics_report(), met.short_metrics_report()
    assert "Counter: aten::nonzero\n  Value: 1\n" in report
    assert "Metric: TransferFromDeviceTime\n  TotalSamples: " in report
    assert "Percentiles: 1%=" in report
    assert "Counter: MarkStep\n  Value: 1\n" in short
    assert "Percentiles" not in short
    assert met.executed_fallback_ops() == ["aten::nonzero"]
    met.clear_all()
    assert "aten::nonzero" not in met.metrics_report()


def test_gradients_are_clipped_by_where():
    linear = nn.Linear(3, 2).to(torch_xla.device())
    linear(torch.full((1, 3), 5.0, device="xla")).sum().backward()
    max_norm, parameters = 1.0, list(linear.parameters())
    device = parameters[0].device
    torch_xla.sync()
    executions = met.metric_data("ExecuteTime")[0]
    total_norm = torch.zeros([], device=device)
    for p in parameters:
        total_norm.add_(p.grad.norm(2) ** 2)
    clip_coef = torch.tensor(max_norm, device=device) / (total_norm**0.5 + 1e-6)
    for p in parameters:
        p.grad.mul_(torch.where(clip_coef < 1, clip_coef, torch.tensor(1.0, device=device)))
    assert met.metric_data("ExecuteTime")[0] == executions  # nothing asked for a value
    assert nn.utils.get_total_norm([p.grad for p in parameters]).item() == pytest.approx(1, 1e-4)


def test_copy_copies_and_a_view_does_not():
    x = torch.zeros(2, device="xla")
    y, view = copy.copy(x), x.view(2)
    x += 1
    assert y.tolist() == [0, 0]
    assert view.tolist() == [1, 1]


def test_weights_are_tied_after_the_move():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)

    model = Tied().to(torch_xla.device())
    model.head.weight = model.embed.weight
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    model.head(model.embed(torch.tensor([1, 2], device="xla"))).square().sum().backward()
    optimizer.step()
    torch_xla.sync()
    assert len(list(model.parameters())) == 1
    assert torch.equal(model.head.weight, model.embed.weight)


# amp.md


@pytest.mark.parametrize("scaled", [False, True])
def test_mixed_precision(scaled, eagers_losses):
    device = torch_xla.device()
    model, optimizer = model_and_optimizer(device)
    scaler = torch.amp.GradScaler("xla", enabled=scaled)
    dtype = torch.float16 if scaled else torch.bfloat16
    losses = []
    for data, target in digits():
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=dtype):
            output = model(data.to(device))
            loss = F.nll_loss(output, target.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch_xla.sync()
        losses.append(loss.item())
    assert losses == pytest.approx(eagers_losses, abs=0.05)


# dynamo.md and assume_pure.md


def test_a_compiled_function_that_moves_its_arguments():
    def add(a, b):
        a_xla = a.to(torch_xla.device())
        b_xla = b.to(torch_xla.device())
        return a_xla + b_xla

    a, b = torch.randn(10), torch.randn(10)
    result = torch.compile(add, backend="openxla")(a, b)
    assert result.device.type == "xla"
    assert torch.equal(result.cpu(), a + b)


def test_a_pure_function_is_traced_once():
    module = nn.Linear(4, 4).to("xla")

    def forward(params, x):
        return torch.func.functional_call(module, params, (x,))

    cached_forward = torch.compile(forward, backend="openxla")
    params = dict(module.named_parameters())
    on_host = copy.deepcopy(module).cpu()
    met.clear_all()
    for _ in range(3):
        x = torch.randn(5, 4)
        with torch.no_grad():
            compare(on_host(x), cached_forward(params, x.to("xla")).cpu(), values=True)
    assert compilations() == 1
