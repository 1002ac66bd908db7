"""Memory that is shared: in lists, between what is read and written, and within a tensor."""

import pytest
import torch

import xla_dynamo

XLA = xla_dynamo.device()


def numbers(device, *size):
    return torch.arange(1.0, 1 + torch.Size(size).numel(), device=device).reshape(size)


def assert_same_runs(run):
    """A function of a device gives the same, or raises the same, on 'xla' as on the CPU."""
    told = []
    for device in ("cpu", XLA):
        try:
            told.append(run(device))
        except RuntimeError as error:
            told.append(error)
    expected, actual = told
    if isinstance(expected, RuntimeError):
        assert (type(actual), str(actual)) == (type(expected), str(expected))
        return
    for e, a in zip(expected, actual, strict=True):
        assert e.stride() == a.stride()
        torch.testing.assert_close(a.cpu(), e, rtol=1e-6, atol=1e-6)


# --- lists ---------------------------------------------------------------------------------------


def twice(d):
    x, y = numbers(d, 4), numbers(d, 3)
    torch._foreach_add_([x, y, x], 1)
    return x, y


def of_each_other(d):
    x, y = numbers(d, 4), numbers(d, 4) * 10
    torch._foreach_add_([x, y], [y, x], alpha=2)
    return x, y


def views_that_overlap(d):
    x = numbers(d, 6)
    torch._foreach_mul_([x[:4], x[2:], x.view(2, 3)[1]], [2.0, 3.0, 5.0])
    return (x,)


def views_beside_each_other(d):
    x = numbers(d, 6)
    torch._foreach_mul_([x[:3], x[3:]], [x[:3], x[3:]])
    return (x,)


def numbers_of_a_tensor(d):
    x, y = numbers(d, 4), numbers(d, 4)
    torch._foreach_addcdiv_([x, x], [y, x], [y, y], torch.tensor([2.0, 3.0]))
    torch._foreach_addcmul_([x, y, x], [y, y, x], [y, x, y], [0.5, 0.25, 2.0])
    return x, y


def one_tensor_for_all(d):
    x, y = numbers(d, 1)[0] * 3, numbers(d, 4)
    torch._foreach_mul_([x, y], x)
    return x, y


def copies(d):
    x, y = numbers(d, 4), numbers(d, 4) * 10
    torch._foreach_copy_([x, y], [y, x])
    return x, y


def into_out(d):
    x, y, out = numbers(d, 4), numbers(d, 4) * 10, torch.zeros(4, device=d)
    torch.ops.aten._foreach_add.List_out([x, out], [y, y], out=[out, y])
    torch.ops.aten._foreach_mul.List_out([x, x], [x, y], out=[x, x])
    return x, y, out


def unscaled(d):
    x, found = numbers(d, 4), torch.zeros(1, device=d)
    torch._amp_foreach_non_finite_check_and_unscale_([x, x], found, torch.full((1,), 0.5, device=d))
    return x, found


def fused(d):
    x, y = numbers(d, 4), numbers(d, 4)
    grads, momenta = [numbers(d, 4), y], [torch.ones(4, device=d), torch.ones(4, device=d)]
    torch.ops.aten._fused_sgd_(
        [x, x], grads, momenta, weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip
    return x, *momenta


@pytest.mark.parametrize(
    "run",
    [
        twice, of_each_other, views_that_overlap, views_beside_each_other, numbers_of_a_tensor,
        one_tensor_for_all, copies, into_out, unscaled, fused,
    ],
)  # fmt: skip
def test_lists(run):
    assert_same_runs(run)


# --- a write that reads what it writes -----------------------------------------------------------


def in_place(write):
    """A function that returns a tensor of six elements which `write` changed."""

    def run(d):
        x = numbers(d, 6)
        write(x)
        return (x,)

    return run


def index(x, *places):
    return torch.tensor(places, device=x.device)


OVERLAPS = {
    "x += x[0]": in_place(lambda x: x.view(2, 3).add_(x.view(2, 3)[0])),
    "x[:3] += x[3:]": in_place(lambda x: x[:3].add_(x[3:])),
    "x[1:] = x[:-1]": in_place(lambda x: x[1:].copy_(x[:-1])),
    "x[:-1] += x[1:]": in_place(lambda x: x[:-1].add_(x[1:])),
    "x[::2] += x[1::2]": in_place(lambda x: x[::2].add_(x[1::2])),
    "transposed": in_place(lambda x: x[:4].view(2, 2).copy_(x[:4].view(2, 2).t())),
    "x *= x": in_place(lambda x: x.mul_(x)),
    "x += a view of all": in_place(lambda x: x.view(2, 3).add_(x.view(2, 3))),
    "out= shifted": in_place(lambda x: torch.add(x[1:], 1, out=x[:-1])),
    "out= in place": in_place(lambda x: torch.add(x, 1, out=x)),
    "gather": in_place(lambda x: torch.gather(x, 0, index(x, 0, 1, 2, 3, 4, 5), out=x)),
    "index_copy_": in_place(lambda x: x.index_copy_(0, index(x, 0, 1), x[3:5])),
    "index_put_": in_place(lambda x: x.__setitem__(index(x, 0, 1), x[3:5])),
    "cat": in_place(lambda x: torch.cat([x[:3], x[:3]], out=x)),
    "cumsum": in_place(lambda x: torch.cumsum(x, 0, out=x)),
    "max": in_place(lambda x: torch.max(x, 0, out=(x[0], index(x, 0)[0]))),
    "a number of its own": in_place(lambda x: x.div_(x[0])),
    "a number made of it": in_place(lambda x: x.sub_(x.max())),
    "as another dtype": in_place(lambda x: x.view(torch.int32).copy_(x[:6].view(torch.int32))),
    "halves": in_place(lambda x: x.view(torch.float64).copy_(x[:3])),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_writes_that_read_what_they_write(name):
    for _ in range(2):
        assert_same_runs(OVERLAPS[name])


# --- elements of one place -----------------------------------------------------------------------


def overlapping(write, size=(2, 3), stride=(0, 1), dtype=torch.float32):
    """A function that returns a tensor of such strides, filled with zeros, that `write` changed."""

    def run(d):
        x = torch.empty_strided(size, stride, device=d, dtype=dtype).zero_()
        y = write(x)
        return x + 1, *([y] if isinstance(y, torch.Tensor) else []), x.clone()

    return run


REPEATED = {
    "fill_": overlapping(lambda x: x.fill_(3)),
    "a row": overlapping(lambda x: x[0].copy_(numbers(x.device, 3))),
    "an element": overlapping(lambda x: x[1, 2].add_(2)),
    "all equal": overlapping(lambda x: x.mul(2), (4,), (0,)),
    "overlapping rows": overlapping(lambda x: x[0].fill_(5), (3, 2), (1, 1)),
    "overlapping rows, all": overlapping(lambda x: x.fill_(2), (3, 2), (1, 1)),
    "whole numbers": overlapping(lambda x: x[0].add_(2), dtype=torch.int64),
    "nothing": overlapping(lambda x: x.add_(1), (0, 2), (0, 1)),
    "new_empty_strided": overlapping(lambda x: x.new_empty_strided((2, 2), (0, 1)).fill_(2)),
    "detached": overlapping(lambda x: x.detach().sum()),
    "add_": overlapping(lambda x: x.add_(1)),
    "copy_": overlapping(lambda x: x.copy_(numbers(x.device, 2, 3))),
    "normal_": overlapping(lambda x: x.normal_()),
    "out=": overlapping(lambda x: torch.add(numbers(x.device, 2, 3), 1, out=x)),
    "scatter_": overlapping(lambda x: x.scatter_(1, index(x, 0)[None], 2.0)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_elements_of_one_place(name):
    assert_same_runs(REPEATED[name])


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize(
    "write",
    [lambda x: x.index_fill_(0, index(x, 0), 2.0), lambda x: x.masked_fill_(x == 0, 2.0)],
)
def test_what_eager_deprecates_is_refused(write):
    """As if each element had a place of its own, the last write would win."""
    write(torch.zeros(3).expand(2, 3))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        write(torch.zeros(3, device=XLA).expand(2, 3))
