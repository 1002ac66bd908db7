"""Views of other dtypes, of views, and of bytes; and writes through them."""

import pytest
import torch

import xla_dynamo
from tests.compiling import compiled_whole

XLA = xla_dynamo.device()
I8, I16, I32, I64 = torch.int8, torch.int16, torch.int32, torch.int64
U8, F16, F64 = torch.uint8, torch.float16, torch.float64


def bits_of(x):
    x = x.cpu().resolve_conj().contiguous()
    return (x if x.dim() else x.reshape(1)).view(U8)


VIEWS = {
    "narrower and narrower": lambda x: x.view(I32).view(I16),
    "narrower and wider": lambda x: x.view(I16).view(I32),
    "wider and narrower": lambda x: x.view(F64).view(I16),
    "wider, narrower, every other": lambda x: x.view(F64).view(I16)[:, ::2],
    "bytes of a row": lambda x: x.view(I16)[0].view(U8),
    "rows as halves, then bytes": lambda x: x[1:].view(I32).view(I16).view(I8),
    "columns as halves": lambda x: x[:, 2:].view(I16)[:, 1:3],
    "columns as pairs": lambda x: x[:, 2:].view(I64),
    "part of the bytes": lambda x: x.view(-1).view(U8)[4:12].view(I32),
    "there and back": lambda x: x.view(I32).view(I16).view(I32).view(torch.float32),
    "transposed": lambda x: x.t().view(I32).t().view(I16),
    "detached between": lambda x: x.view(I32).detach().view(I16),
    "in other shapes": lambda x: x.view(I16).view(2, 2, 4).view(I32).flatten(),
    "complex": lambda x: torch.view_as_real(x.view(torch.complex64)).view(I32),
    "storage": lambda x: torch.empty(0, dtype=I16, device=x.device).set_(x.untyped_storage()),
    "part of the storage": lambda x: (
        torch.empty(0, dtype=U8, device=x.device).set_(x.untyped_storage(), 4, (8,), (1,)).view(I32)
    ),
}
WRITES = {
    "add_": lambda y: y.add_(1),
    "an element": lambda y: y.view(-1)[1:2].fill_(3) if y.is_contiguous() else y[0].fill_(3),
    "out=": lambda y: torch.mul(y, 2, out=y),
    "by index": lambda y: y.index_fill_(0, torch.zeros(1, dtype=I64, device=y.device), 1),
}


def run(device, view):
    found = []
    for write in WRITES.values():
        x = torch.arange(1.0, 9.0).reshape(2, 4).to(device)
        y = view(x)
        found.append(y.clone())
        write(y)
        found.append(y.clone())
        x.add_(1)
        found += [y, x]
    xla_dynamo.sync()
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize("view", VIEWS)
def test_writes_through_views_of_other_dtypes(view):
    for e, a in zip(run("cpu", VIEWS[view]), run(XLA, VIEWS[view]), strict=True):
        assert (e.dtype, e.shape) == (a.dtype, a.shape)
        assert torch.equal(bits_of(e), bits_of(a))


def test_parts_of_bytes():
    """Memory that is shared out among tensors of several dtypes."""
    runs = []
    for device in ("cpu", XLA):
        memory = torch.zeros(16, dtype=U8, device=device)
        a, b = memory[:8].view(torch.float32), memory[8:].view(I32)
        halves = a.view(I16).view(F16)
        torch._foreach_add_([a, b], 7)
        halves += 1
        b[1:] += b[:1]
        runs.append([t.cpu() for t in (memory, a, b, halves)])
    assert all(map(torch.equal, *runs))


@pytest.mark.parametrize("narrow", [U8, I16, I32])
def test_wider_and_narrower_again_compiled(narrow):
    """XLA makes one conversion of two, of a wrong shape."""

    def f(x):
        return (x + 1).view(F64).view(narrow), (x * 2).view(I16).view(F64).view(narrow)

    x = torch.arange(8.0).reshape(2, 4)
    assert all(map(torch.equal, compiled_whole(f)(x), f(x)))
