"""Convolutions with packed weights: what their tests share."""

import pytest
import torch
from torch import nn

from tests.comparison import compare_with_exact
from tests.compiling import watched
from tests.freezing import check_inference
from xla_dynamo.kernels import attention, onednn_convolution, onednn_product, product_choices
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.kernels.product_choices import COLUMNS, ROWS, Choice
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.programs import targets
from xla_dynamo.programs.program import Handles
from xla_dynamo.runtime.cpu.script_layout import TARGET

needs_onednn = pytest.mark.skipif(
    "onednn_packed" not in libraries_of("cpu"), reason="no library of oneDNN's own is here"
)
# Those in which convolutions are packed here.
DTYPES = [torch.float32] + [torch.bfloat16] * ("onednn_bfloat16" in libraries_of("cpu"))


def let_plan(monkeypatch):
    """Let products and attentions be plans, whatever the processor, and however little there is."""
    every = libraries_of("cpu") | {ONEDNN_PLANS}
    monkeypatch.setattr(targets, "libraries_of", lambda name: every)
    monkeypatch.setattr(product_choices, "shipped", _always)
    monkeypatch.setattr(attention, "are_measured", lambda: True)
    monkeypatch.setattr(attention, "FEWEST_IN_PLAN", 1)
    monkeypatch.setattr(attention, "FEWEST_OF_FEW_QUERIES", 1)
    monkeypatch.setattr(attention, "MOST_KEYS_BESIDE_PLAN", 0)
    monkeypatch.setattr(onednn_product, "are_measured", lambda: True)
    monkeypatch.setattr(onednn_product, "FEWEST_BY_ROWS", 1 << 62)


def _always(sizes):
    by = ROWS if sizes.rows >= 16 else COLUMNS
    return Choice(by, by)


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However little there is to multiply."""
    monkeypatch.setattr(onednn_convolution, "FEWEST_IN_CONVOLUTION", 0)
    torch.manual_seed(0)


def assert_packed(model, x, calls, **how):
    """Compare with eager in this dtype and in float64; the program makes so many packed calls."""
    run, built = watched(model, fullgraph=True, freeze=True, **how)
    with torch.no_grad():
        actual, expected = run(x), model(x)
        exact = model.double()(x.double())
        model.to(x.dtype)
    assert actual.stride() == expected.stride()
    compare_with_exact(exact, expected, actual)
    assert sum(str(event.program.module).count(f"@{TARGET}(") for event in built) == calls
    return run


def convolution(**settings):
    """A convolution of 8 channels by a window of 3, unless said otherwise."""
    return nn.Conv2d(**{"in_channels": 8, "out_channels": 8, "kernel_size": 3, **settings})


class Block(nn.Module):
    """Convolutions, their statistics, and a sum, as in residual nets."""

    def __init__(self, last=True):
        super().__init__()
        self.first, self.second = convolution(padding=1, bias=False), convolution(padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.last = last
        self.eval()

    def forward(self, x):
        y = self.second(self.norm(self.first(x)).relu()) + x
        return y.relu() if self.last else y


def forms(model, x):
    """What follows the convolutions of a frozen model inside their calls."""
    run, built = watched(model, fullgraph=True, freeze=True)
    tolerance = {} if x.dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    check_inference(run, x, eager=model, **tolerance)  # eager rounds more often
    return [
        [[op.name, *op.numbers] for op in call.form.then] for call in packed_calls(built[0].program)
    ]


def packed_calls(program):
    """What a program executes by handles."""
    return [call for slot in program.of(Handles) for call in slot.calls]
