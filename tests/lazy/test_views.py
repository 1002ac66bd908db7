"""Views of tensors on the lazy device alias their memory, in both directions, as on the CPU."""

import pytest
import torch

import xla_dynamo
from tests.comparison import compare

XLA = xla_dynamo.device()

VIEWS = {
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1:3],
    "steps": lambda x: x[::2, ::2],
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.view(2, 2, 4).permute(2, 0, 1),
    "view": lambda x: x.view(2, 8),
    "reshape": lambda x: x.reshape(-1)[3:9],
    "expand": lambda x: x[:, :1].expand(4, 4)[:, 0],
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2)[:, 1],
    "as_strided": lambda x: x.as_strided((3, 2), (5, 1), 1),
    "of as_strided": lambda x: x.t().as_strided((3, 2), (5, 1), 1)[1:],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(2, dim=1)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "squeeze": lambda x: x.unsqueeze(0)[0].squeeze(),
    "detach": lambda x: x.detach(),
    "of a view": lambda x: x[1:].t()[1:3].view(-1, 3)[0],
    "bits": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize(
    "sync", [False, pytest.param(True, marks=pytest.mark.every(3))], ids=["pending", "computed"]
)
def test_a_view_aliases_its_base_in_both_directions(view, sync):
    def program(device):
        base = torch.arange(16.0, device=device).reshape(4, 4).clone()
        shown = view(base)
        if sync:
            xla_dynamo.sync()
        base.add_(1)
        first = shown.clone()
        shown.mul_(2)
        base[2] -= 1
        return base, shown, first

    expected, actual = program("cpu"), program(XLA)
    for e, a in zip(expected, actual, strict=True):
        assert e.stride() == a.stride()
        assert e.storage_offset() == a.storage_offset()
        compare(e, a.cpu(), values=True, strides=False)


def test_a_view_of_a_view_outlives_its_base():
    shown = torch.arange(6.0, device=XLA).view(2, 3)[1][1:]
    xla_dynamo.sync()
    shown += 1
    assert shown.tolist() == [5.0, 6.0]


def test_views_of_views_of_complex_numbers():
    def program(device):
        z = torch.zeros(3, dtype=torch.complex64, device=device)
        z.real.fill_(2)
        z.conj().imag.add_(3)
        torch.view_as_real(z)[0] = 7
        return z

    compare(program("cpu"), program(XLA).cpu(), values=True)


def test_parts_of_complex_numbers_in_columns():
    def program(device):
        z = torch.complex(torch.ones(3, 2, device=device), torch.arange(2.0, device=device))
        z = z.t().contiguous().t()
        torch.view_as_real(z)[..., 1].add_(1)
        values = torch.linalg.eig(torch.eye(2, device=device) * 3)[1]
        return z, torch.view_as_real(values) * 2

    compare(program("cpu"), tuple(t.cpu() for t in program(XLA)), values=True, strides=False)


def test_a_read_sees_what_was_written_before_it_and_no_more():
    x = torch.zeros(3, device=XLA)
    before = x + 0
    x += 1
    between = x * 1
    x[0] = 5
    assert (before.tolist(), between.tolist(), x.tolist()) == ([0] * 3, [1] * 3, [5, 1, 1])


def test_indexed_writes():
    def program(device):
        x = torch.zeros(4, 3, device=device)
        x[torch.tensor([0, 2])] = 1.0
        x[:, 1][x[:, 0] > 0] = 4.0
        x.index_add_(0, torch.tensor([1, 1], device=device), torch.ones(2, 3, device=device))
        x.masked_fill_(x == 0, -1)
        x[3, 2].fill_(9)
        x.t().scatter_(1, torch.tensor([[3]], device=device), 8.0)
        return x

    compare(program("cpu"), program(XLA).cpu(), values=True)


def test_writes_between_views_that_overlap():
    def program(device):
        x = torch.arange(8.0, device=device)
        x[2:] = x[:-2].clone()
        a, b = x[:5], x[3:]
        a += b.clone()
        b.copy_(a + 1)
        return x

    compare(program("cpu"), program(XLA).cpu(), values=True)


def test_changes_of_shape_in_place():
    def program(device):
        x = torch.arange(6.0, device=device).view(2, 3)
        y = x.view(-1)
        x.t_().unsqueeze_(0)
        y[1] = 10
        grown = torch.arange(3.0, device=device)
        grown.resize_(2)
        return x, grown

    for e, a in zip(program("cpu"), program(XLA), strict=True):
        assert (e.shape, e.stride()) == (a.shape, a.stride())
        compare(e, a.cpu(), values=True, strides=False)


def test_data_is_another_tensor_of_the_same_memory():
    def program(device):
        x = torch.ones(3, device=device, requires_grad=True)
        x.data.mul_(4)
        x.data[0] = 2
        y = torch.zeros(3, device=device)
        y.data = x.data
        y += 1
        return x.detach(), y

    compare(program("cpu"), tuple(t.cpu() for t in program(XLA)), values=True)


def test_a_write_into_an_expanded_tensor_raises_as_on_the_cpu():
    x = torch.zeros(1, device=XLA).expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        x += 1
    assert x.fill_(2).tolist() == [2.0] * 3


@pytest.mark.parametrize("sync", [False, True], ids=["pending", "computed"])
def test_writes_through_conjugates_are_seen_by_other_views(sync):
    def program(device):
        z = torch.complex(torch.arange(3.0), torch.ones(3)).to(device)
        shown = z.conj()
        imaginary = shown.imag
        shown.mul_(2j)
        if sync:
            xla_dynamo.sync()
        imaginary.add_(1)
        shown.mul_(shown)
        return z, torch.view_as_real(z), imaginary.resolve_neg()

    for expected, actual in zip(program("cpu"), program(XLA), strict=True):
        compare(expected, actual.cpu(), values=True)


@pytest.mark.parametrize("sync", [False, True], ids=["pending", "computed"])
def test_rows_that_take_the_rows_before_them(sync):
    x = torch.arange(9.0, device=XLA)
    if sync:
        xla_dynamo.sync()
    rows = x.view(3, 3).clone()
    rows[1:] = rows[:-1].clone()
    assert rows.tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
