"""What each device computes: programs that are partitioned before XLA, operation by operation."""

import pytest
import torch

from tests.spmd.sharding import WIDE, sharded
from xla_dynamo import spmd

ROWS, COLUMNS, BOTH = ("data", None), (None, "model"), ("data", "model")


def mark(x, spec):
    """A mark where the function is compiled: there shards may be of several sizes."""
    if not torch.compiler.is_compiling():
        return x
    return spmd.mark_sharding(x, WIDE, spec)


def embedding(x, w):
    return torch.nn.functional.embedding(x.abs().long() % 16, w)


def rows_added(x, w):
    index = (torch.arange(16) * 5) % 16
    return w.index_add(0, index, x[:, :8] * 2)


def rows_of_a_sharded_table(x, w):
    """Each device adds to the rows that it has."""
    return torch.index_put(w, (torch.arange(32) % 16,), x.repeat(2, 1)[:, :8], accumulate=True)


def convolution(x, w):
    image, kernel = x.reshape(16, 2, 4, 2), w.reshape(4, 2, 4, 4)
    return torch.nn.functional.conv2d(image, kernel, padding=2)


def gradient_of_convolution(x, w):
    image, outer = x.reshape(16, 2, 4, 2), x.reshape(16, 4, 4, 1)
    return torch.nn.grad.conv2d_weight(image, (4, 2, 3, 2), outer, padding=(1, 0))


def maxima_and_their_places(x, w):
    image = x.flatten()[:36].reshape(1, 2, 3, 6)
    image = mark(image, (None, None, None, "data"))
    return torch.nn.functional.max_pool2d(image, 3, 2, ceil_mode=True, return_indices=True)


def dropout(x, w):
    torch.manual_seed(3)
    return torch.nn.functional.dropout(x, 0.0) @ w + torch.rand_like(w).mul(0)


KNOWN = [
    ((ROWS, COLUMNS), lambda x, w: x @ w.t().reshape(16, 8).relu()),
    ((COLUMNS, (None, None)), lambda x, w: x @ w),
    ((BOTH, BOTH), lambda x, w: (x @ w, w.t() @ x)),
    ((BOTH, ROWS), lambda x, w: (x.sum(), x.amax(0), x.prod(1), (x > 0).all(1), x.mean(0))),
    ((BOTH, ROWS), lambda x, w: torch.softmax(x, 0) + torch.softmax(x, 1)),
    ((BOTH, ROWS), lambda x, w: (x.var(), torch.logsumexp(x, 0), x.std(1))),
    ((ROWS, ROWS), lambda x, w: torch.cat([x, x * 2], 1).flip(1)),
    ((ROWS, ROWS), lambda x, w: torch.nn.functional.pad(x, (1, 2))),
    ((ROWS, ROWS), lambda x, w: (x.flip(1), x[:, 2:5], x.reshape(16, 2, 8).transpose(1, 2))),
    ((ROWS, ROWS), lambda x, w: torch.erfinv(x.tanh()) + x.atan()),
    ((ROWS, (None, None)), lambda x, w: x + torch.arange(16)[:, None] * torch.tensor([2.0] * 16)),
    (((None, None), ("data", None)), embedding),
    ((ROWS, ("model", None)), embedding),
    ((ROWS, (None, None)), rows_added),
    (((None, None), ("data", None)), rows_of_a_sharded_table),
    ((ROWS, (None, None)), convolution),
    ((ROWS, (None, None)), gradient_of_convolution),
    ((ROWS, (None, None)), lambda x, w: torch.max_pool1d(x[:, None], 3).squeeze(1)),
    ((ROWS, (None, None)), lambda x, w: mark(mark(x.sin(), (None, "data")).cos(), BOTH)),
    ((BOTH, BOTH), lambda x, w: mark(x.sin(), ("data", None)).cos()),
    ((BOTH, BOTH), lambda x, w: mark(x.sin(), (("data", "model"), None)).cos()),
    ((ROWS, ROWS), lambda x, w: x.argmax(0)),
    ((BOTH, BOTH), lambda x, w: (x.to(torch.complex64) * 2j, x.view(torch.int32) ^ 5, x > 1)),
    ((ROWS, ROWS), dropout),
    # What a device needs of others is gathered, where XLA's partitioner fails.
    ((BOTH, BOTH), lambda x, w: (torch.fft.fft(x), torch.fft.fft(x, dim=0), torch.fft.rfft2(w))),
    ((BOTH, BOTH), lambda x, w: torch.hash_tensor(x, 0)),
    # Of shards of several sizes XLA's partitioner would end the process.
    ((BOTH, BOTH), maxima_and_their_places),
]


@pytest.mark.parametrize(("specs", "function"), KNOWN)
def test_what_is_known(specs, function):
    _compare(specs, function, is_known=True)


LEFT_TO_XLA = [
    # The shards are not of one size.
    ((ROWS, ROWS), lambda x, w: mark(x[:15].sin(), ROWS).cos()),
    ((BOTH, BOTH), lambda x, w: torch.max_pool2d(x[None], 3, 2, ceil_mode=True)),
    # Functions of JAX.
    ((ROWS, ROWS), lambda x, w: (x.sort(1).values, x.cumsum(1), torch.special.erfcx(x))),
    # What a device needs of others.
    ((ROWS, ROWS), lambda x, w: x + torch.arange(16).flip(0)[:, None]),
    # Axes of other sizes change places.
    ((BOTH, BOTH), lambda x, w: mark(x.sin(), ("model", "data")).cos()),
    ((BOTH, BOTH), lambda x, w: mark(x.sin(), (("model", "data"), None)).cos()),
]


@pytest.mark.parametrize(("specs", "function"), LEFT_TO_XLA)
def test_what_is_left_to_xla(specs, function):
    _compare(specs, function, is_known=False)


def _compare(specs, function, *, is_known):
    torch.manual_seed(0)
    given = [torch.randn(16, 16), torch.randn(16, 8)]
    wanted = function(*given)
    marked = [
        spmd.mark_sharding(x.clone(), WIDE, spec) for x, spec in zip(given, specs, strict=True)
    ]
    result, executable = sharded(function, *marked)
    torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5)
    assert (executable.program.whole is not None) == is_known
