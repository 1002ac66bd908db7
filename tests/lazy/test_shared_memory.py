"""Tensors that share memory, and parameters that are one: moved, copied, saved and loaded."""

import copy
import io

import pytest
import torch
from torch import nn

import xla_dynamo

XLA = xla_dynamo.device()


class Tied(nn.Module):
    """An embedding whose table is the weight of the last layer."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.last.weight = self.table.weight

    def forward(self, x):
        return self.last(self.table(x).tanh())


def trained(device, *, optimizer_first):
    torch.manual_seed(0)
    model = Tied()
    model(torch.tensor([1, 2])).sum().backward()  # torch remembers how gradients are added up
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.to(device)
    if not optimizer_first:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        x, y = torch.tensor([1, 2, 3], device=device), torch.tensor([2, 3, 4], device=device)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        xla_dynamo.sync()
    return model, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_tied_weights_stay_tied(optimizer_first):
    _, expected = trained("cpu", optimizer_first=optimizer_first)
    model, actual = trained(XLA, optimizer_first=optimizer_first)
    torch.testing.assert_close(actual, expected)
    for moved in (model, copy.deepcopy(model), model.double(), model.to("cpu"), model.to(XLA)):
        assert moved.last.weight is moved.table.weight
        assert len(list(moved.parameters())) == 1


def test_what_refers_to_a_parameter_sees_where_it_is():
    model = Tied()
    weight = model.table.weight
    model.to(XLA)
    assert model.table.weight is weight
    assert weight.device == XLA
    weight.data = torch.ones(2, device=XLA)
    weight.sum().backward()
    assert weight.grad.tolist() == [1, 1]
    model.cpu()
    assert weight.device.type == weight.grad.device.type == "cpu"


BASE = torch.arange(12.0)
SAVED = {
    "views": [BASE[:4], BASE[4:8].view(2, 2), BASE[::2], BASE],
    "twice": [BASE, BASE],
    "a part, and a number": [torch.arange(5, dtype=torch.int16)[1:3], torch.tensor(3.0)],
    "transposed, and nothing": [torch.arange(6.0).view(2, 3).t(), torch.zeros(0)],
    "of other dtypes": [torch.arange(4) * (1 + 2j), torch.arange(8).to(torch.bfloat16)[2:6]],
    "tied": list(Tied().state_dict().values()),
}


def write_a_part(tensors):
    for t in tensors:
        if t.numel():
            t[-1:].copy_(t[:1].clone()) if t.dim() else t.fill_(7)


def write_all(tensors):
    for t in tensors:
        t.mul_(2).add_(1)


def write_lists(tensors):
    torch._foreach_add_(tensors, 1)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", SAVED)
def test_writes_into_loaded_tensors(name, weights_only):
    """Those of one storage share memory, as on the CPU."""
    file = io.BytesIO()
    torch.save(SAVED[name], file)
    for write in (write_a_part, write_all, write_lists):
        loaded = []
        for device in ("cpu", "xla"):
            file.seek(0)
            tensors = torch.load(file, map_location=device, weights_only=weights_only)
            write(tensors)
            loaded.append([t.cpu() for t in tensors])
        expected, actual = loaded
        assert all(map(torch.equal, expected, actual))
        assert [t.dtype for t in expected] == [t.dtype for t in actual]


def test_loaded_parameters_are_trained():
    file = io.BytesIO()
    torch.save([nn.Parameter(torch.arange(3.0))], file)
    file.seek(0)
    (weight,) = torch.load(file, map_location="xla")
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.square().sum().backward()
    optimizer.step()
    assert weight.tolist() == [0, 0, 0]


def test_saved_tensors_share_memory_in_the_file():
    base = torch.arange(6.0, device=XLA)
    parameter = nn.Parameter(torch.ones(2, device=XLA))
    data = {"base": base, "rows": [base[2:4], base.view(2, 3).t()], "p": parameter, "again": base}
    file = io.BytesIO()
    xla_dynamo.save(data, file)
    file.seek(0)
    loaded = torch.load(file)
    loaded["base"].add_(1)
    assert loaded["rows"][0].tolist() == [3, 4]
    assert loaded["rows"][1].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert loaded["again"].data_ptr() == loaded["base"].data_ptr()
    assert loaded["p"].requires_grad
    assert loaded["p"].device.type == "cpu"
