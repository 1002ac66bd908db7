"""Layers as one loop on lazy tensors: values, programs, and shards."""

import functools
import logging

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import nn
from torch.nn import functional as F

import xla_dynamo
from bench.collective_bytes import collectives
from tests.spmd.sharding import ONE_AXIS
from xla_dynamo import spmd
from xla_dynamo.events import BuiltExecutable
from xla_dynamo.torch_xla.forms.scan import scan
from xla_dynamo.torch_xla.forms.scan_layers import scan_layers

WIDTH = 16


class Block(nn.Module):
    """A residual block, with a buffer."""

    def __init__(self, dropout=0.0, bias=True):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 4 * WIDTH, bias), nn.Linear(4 * WIDTH, WIDTH, bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, x):
        return x + self.dropout(self.b(torch.tanh(self.a(x))) * self.scale)


def blocks(count, **how):
    torch.manual_seed(0)
    return nn.ModuleList([Block(**how) for _ in range(count)])


@pytest.mark.every(2)
@pytest.mark.parametrize("is_layer_pure", [False, True])
def test_dropout_in_layers(is_layer_pure):
    device = xla_dynamo.device()
    layers = blocks(3, dropout=0.5).to(device)
    x = torch.ones(64, WIDTH, device=device)
    run = functools.partial(scan_layers, layers, x, is_layer_pure=is_layer_pure)
    torch.manual_seed(1)
    one, two = run().detach().cpu(), run().detach().cpu()
    assert not torch.equal(one, two)
    torch.manual_seed(1)
    assert torch.equal(run().detach().cpu(), one)
    layers.eval()
    expected = nn.Sequential(*layers).cpu()(torch.ones(64, WIDTH))
    layers.to(device)
    torch.testing.assert_close(run().cpu(), expected)


# --- layers ---------------------------------------------------------------------------------------


@pytest.mark.every(2)
@pytest.mark.parametrize("partition_fn", [default_partition, min_cut_rematerialization_partition])
def test_layers_and_their_gradients(partition_fn):
    device = xla_dynamo.device()
    layers, expected = blocks(4), blocks(4)
    layers.to(device)
    x = torch.randn(2, WIDTH)
    nn.Sequential(*expected)(x).square().sum().backward()
    result = scan_layers(layers, x.to(device), partition_fn)
    result.square().sum().backward()
    torch.testing.assert_close(
        [p.grad.cpu() for p in layers.parameters()], [p.grad for p in expected.parameters()]
    )


def test_layers_of_several_values():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)

        def forward(self, x, y):
            return self.one(x).sin(), y @ self.one.weight

    layers, device = [Two() for _ in range(3)], xla_dynamo.device()
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    expected = x, y
    for layer in layers:
        expected = layer(*expected)
    found = scan_layers([layer.to(device) for layer in layers], (x.to(device), y.to(device)))
    torch.testing.assert_close(tuple(t.cpu() for t in found), expected)


def test_layers_that_differ():
    x = torch.ones(1, 4)
    assert scan_layers([], x) is x
    with pytest.raises(ValueError, match=r"layer 1 has mismatched keys.*bias"):
        scan_layers([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], x)
    with pytest.raises(
        ValueError, match=r"Shape mismatch for 'weight' in layer 1.*\(4, 4\).*\(5, 4\)"
    ):
        scan_layers([nn.Linear(4, 4), nn.Linear(4, 5)], x)
    with pytest.raises(ValueError, match="Dtype mismatch for 'weight' in layer 2"):
        scan_layers([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4).double()], x)


def test_a_layer_that_writes_its_buffers_is_an_error():
    device = xla_dynamo.device()
    layers = [nn.BatchNorm1d(4).to(device) for _ in range(2)]
    with pytest.raises(RuntimeError, match="in-place operation"):
        scan_layers(layers, torch.randn(8, 4, device=device))


def test_pure_layers_are_traced_once():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append(None)
            return super().forward(x)

    device = xla_dynamo.device()
    layers = [Counted(4, 4).to(device) for _ in range(3)]
    for _ in range(3):
        scan_layers(layers, torch.ones(2, 4, device=device), is_layer_pure=True)
    once = len(calls)
    scan_layers(layers, torch.ones(3, 4, device=device), is_layer_pure=True)
    assert len(calls) == 2 * once


# --- programs -------------------------------------------------------------------------------------


@pytest.fixture
def built():
    """A list of the programs that are compiled while a test runs."""
    found = []

    class Handler(logging.Handler):
        def emit(self, record):
            found.extend(e for e in record.args or () if isinstance(e, BuiltExecutable))

    log, handler = logging.getLogger("xla_dynamo"), Handler()
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)
    log.setLevel(level)


def test_one_program_of_one_size_for_any_number_of_layers(built):
    """Weights in one stack: the programs are the same but for the number of rows."""
    device = xla_dynamo.device()
    sizes = {}
    for count in (1, 8, 64):
        weights = (0.1 * torch.randn(count, WIDTH, WIDTH)).to(device).requires_grad_()
        x = torch.ones(2, WIDTH, device=device)
        xla_dynamo.sync()
        built.clear()
        for _ in range(2):
            weights.grad = None
            carry, _ = scan(lambda c, w: (F.dropout(torch.tanh(c @ w), 0.1), None), x, weights)
            carry.sum().backward()
            xla_dynamo.sync()
        (program,) = built
        sizes[count] = len(program.stablehlo), len(program.hlo)
    assert sizes[1][0] == pytest.approx(sizes[64][0], rel=0.1), sizes
    for one, most in zip(sizes[8], sizes[64], strict=True):
        assert one == pytest.approx(most, rel=0.1), sizes
    assert sizes[1][1] < sizes[64][1], "XLA makes no loop of one row"


def test_layers_add_their_weights_alone_to_the_program(built):
    """Each layer adds its arguments and rows of gradients: less than a tenth of what it is."""
    device, sizes = xla_dynamo.device(), {}
    for in_loop in (True, False):
        for count in (2, 6):
            layers = blocks(count).to(device)
            x = torch.ones(2, WIDTH, device=device)
            xla_dynamo.sync()
            built.clear()
            run = scan_layers if in_loop else (lambda layers, x: nn.Sequential(*layers)(x))
            run(layers, x).sum().backward()
            xla_dynamo.sync()
            (program,) = built
            sizes[in_loop, count] = program.stablehlo.count(" = ")
    of_a_layer = {b: (sizes[b, 6] - sizes[b, 2]) / 4 for b in (True, False)}
    assert of_a_layer[True] < 0.4 * of_a_layer[False], sizes


def test_sharded_layers_are_gathered_one_at_a_time(built):
    """As fully sharded layers without a loop, which are kept gathered for the backward."""
    device, count, sent, found = xla_dynamo.device(), 4, {}, {}
    one_layer = 4 * WIDTH * WIDTH * 4
    for in_loop in (True, False):
        layers = blocks(count, bias=False).to(device)
        for weight in layers.parameters():
            spmd.mark_sharding(weight, ONE_AXIS, (ONE_AXIS.axis_names[0], None))
        x = torch.ones(1024, WIDTH, device=device)
        spmd.mark_sharding(x, ONE_AXIS, (ONE_AXIS.axis_names[0], None))
        xla_dynamo.sync()
        built.clear()
        run = scan_layers if in_loop else (lambda layers, x: nn.Sequential(*layers)(x))
        result = run(layers, x)
        result.square().mean().backward()
        xla_dynamo.sync()
        (program,) = built
        gathers = [c for c in collectives(program.hlo) if c.kind == "all-gather"]
        assert {c.bytes for c in gathers} == {one_layer}
        assert sum(c.times for c in gathers) == (4 if in_loop else 2) * count
        sent[in_loop] = sum(c.sent() for c in collectives(program.hlo))
        found[in_loop] = [p.grad.cpu() for p in layers.parameters()]
        if in_loop:
            grads = program.hlo.split("ENTRY")[1].split("->")[1].split("{")[0]
            assert f"f32[{count},{4 * WIDTH // 8},{WIDTH}]" in grads, "gradients are sharded"
    again = 2 * count * one_layer * 7 / 8
    assert sent[True] <= sent[False] + again
    torch.testing.assert_close(found[True], found[False])
