"""FLOPs that `explain` and `profile` tell of products, convolutions and attention are torch's."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop, sdpa_flop

import xla_dynamo
from xla_dynamo.reports.hlo_text import parse
from xla_dynamo.reports.line_costs import line_costs
from xla_dynamo.reports.line_times import ProgramText

pytestmark = pytest.mark.usefixtures("cold")


def counted(report):
    """The FLOPs of products, convolutions and calls of libraries, by profile's count."""
    total = 0.0
    for built in report.executables:
        hlo, name, notes = built.executable.text_and_notes()
        program, module = ProgramText(hlo, name, notes), parse(hlo)
        told = sum(line.flops for line in line_costs(built))
        entry = sum(program.costs[i.name].flops for i in module.computations[module.entry])
        assert told == pytest.approx(entry), "explain and profile have one count"
        total += sum(
            program.costs[one.name].flops
            for one in module.instructions.values()
            if one.opcode in ("dot", "convolution", "custom-call")
        )
    return total


def by_torch(fn, *args):
    with FlopCounterMode(display=False) as counter:
        fn(*args)
    return counter.get_total_flops()


IMAGES = torch.randn(2, 16, 28, 28)
CASES = {
    "product": (lambda x, w: (x @ w).relu(), (256, 512), (512, 256)),
    "batch": (lambda x, w: x @ w, (3, 64, 96), (3, 96, 32)),
    "few rows": (F.linear, (2, 1024), (1024, 1024)),
    "small": (lambda x, w: x @ w, (4, 5), (5, 3)),
    "images": (lambda x, w: F.conv2d(x, w, padding=1), (2, 3, 28, 28), (32, 3, 3, 3)),
    "groups": (lambda x, w: F.conv2d(x, w, groups=4), (2, 16, 28, 28), (32, 4, 3, 3)),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (2, 16, 9, 9), (16, 8, 3, 3)),
    "rows": (F.conv1d, (2, 16, 100), (32, 16, 5)),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("libraries", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_products_and_convolutions(name, libraries):
    fn, *shapes = CASES[name]
    args = [torch.randn(shape) for shape in shapes]
    options = {} if libraries else {"libraries": []}
    with torch.no_grad():
        report = xla_dynamo.explain(fn, options=options)(*args)
    assert counted(report) == by_torch(fn, *args)


def test_padded_sizes_are_counted_as_computed():
    def fn(x, w):
        return (x @ w).relu()

    explained = xla_dynamo.explain(fn, dynamic=True, options={"buckets": [256]})
    report = explained(torch.randn(250, 512), torch.randn(512, 256))
    rows = 250 if not report.calls[-1].asked else 256
    padded = parse(report.executables[-1].hlo)
    assert any(f"[{rows}," in one.result for one in padded.instructions.values())
    assert counted(report) == 2 * rows * 512 * 256


def test_frozen_weights_and_sums():
    block = torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 16, 3, padding=1, groups=2),
    ).eval()

    def fn(x):
        return torch.relu(block(x) + x)

    with torch.no_grad():
        report = xla_dynamo.explain(fn, options={"freeze": True})(IMAGES)
        assert counted(report) == by_torch(fn, IMAGES)


def test_attention_and_its_gradients():
    shapes = (2, 4, 128, 64), (2, 4, 384, 64), (2, 4, 384, 64)
    args = [torch.randn(shape, requires_grad=True) for shape in shapes]
    explained = xla_dynamo.explain(F.scaled_dot_product_attention)
    explained(*args).result.sum().backward()
    forward, backward = sdpa_flop(*shapes), sdpa_backward_flop(shapes[0], *shapes)
    assert counted(explained.report) == pytest.approx(forward + backward)


def test_gradients_of_grouped_convolutions():
    conv = torch.nn.Conv2d(16, 32, 3, padding=1, groups=4)
    explained = xla_dynamo.explain(lambda x: conv(x.sin()))
    explained(IMAGES.clone().requires_grad_()).result.sum().backward()
    # torch's formula forgets the groups of the weights' gradient.
    assert counted(explained.report) == 3 * (2 * 2 * 28 * 28 * 32 * 4 * 9)
