"""`xla_dynamo.profile`: the time of programs by lines of this file."""

import pathlib

import pytest
import torch

import xla_dynamo
from xla_dynamo.errors import OptionError
from xla_dynamo.reports.hlo_places import Place, places_of

pytestmark = pytest.mark.usefixtures("cold")
HERE = __file__


def line_of(text):
    """The number of the first line of this file that has a text."""
    lines = pathlib.Path(HERE).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def model(x, w):
    for _ in range(4):
        x = torch.tanh(x @ w)  # the products
    return x.cumsum(0).sum()  # the sums


def test_lines_and_their_times(tmp_path):
    fast = torch.compile(model, backend="openxla")
    x, w = torch.randn(256, 512), torch.randn(512, 512) / 20
    fast(x, w)
    with xla_dynamo.profile() as p:
        for _ in range(3):
            fast(x, w)
    found = {line.line: line for line in p.lines if line.file == HERE}
    products, sums = found[line_of("# the products")], found[line_of("# the sums")]
    assert {"mm", "tanh"} <= set(products.operators)
    assert {"cumsum", "sum"} <= set(sums.operators)
    assert products.runs >= 12
    assert products.text.startswith("x = torch.tanh")
    assert p.programs == 3
    assert 0 < p.covered <= p.wall
    assert sum(line.seconds for line in p.lines) >= 0.9 * p.covered
    assert f"{HERE}:{products.line}" in str(p).replace("\n", "") or "test_profile" in str(p)
    p.save(tmp_path / "page.html")
    assert "x = torch.tanh(x @ w)" in (tmp_path / "page.html").read_text()


def test_training_steps_and_functions_of_one_name():
    layer = torch.nn.Linear(64, 64)
    step = xla_dynamo.train_step(
        layer, lambda m, x: m(x).square().mean(), torch.optim.SGD(layer.parameters(), lr=0.1)
    )
    other = torch.compile(lambda x: x.exp() @ x, backend="openxla")
    x = torch.randn(64, 64)
    step(x), other(x)

    @xla_dynamo.profile()
    def both():
        step(x), other(x)

    both()  # a decorator
    with xla_dynamo.profile() as p:
        both.__wrapped__()
    named = {line.line: set(line.operators) for line in p.lines if line.file == HERE}
    assert "exp" in named[line_of("lambda x: x.exp() @ x")]
    assert named[line_of("m(x).square()")]
    assert p.programs == 2


def test_a_trace_is_kept_in_a_folder(tmp_path):
    fast = torch.compile(lambda x: x.sin().sum(), backend="openxla")
    fast(torch.ones(8))
    with xla_dynamo.profile(tmp_path):
        fast(torch.ones(8))
    assert list(tmp_path.rglob("perfetto_trace.json.gz"))
    with pytest.raises(OptionError, match="another folder"), xla_dynamo.profile(tmp_path):
        pass


def test_one_trace_at_a_time_and_errors_leave_none():
    refused = pytest.raises(OptionError, match="a trace runs already")
    with xla_dynamo.profile(), refused, xla_dynamo.profile():
        pass
    with pytest.raises(ZeroDivisionError), xla_dynamo.profile():
        raise ZeroDivisionError
    with xla_dynamo.profile() as p:
        pass
    assert p.lines == []
    assert p.programs == 0
    assert str(p)


def test_places_of_a_text():
    text = """HloModule main

FileNames
1 "/model.py"

FunctionNames
1 "mm"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %a.1 = f32[2]{0} add(%p, %p), metadata={op_name="add" stack_frame_id=1}
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0)
  %copy = f32[2]{0} copy(%x)
  ROOT %fusion = f32[2]{0} fusion(%copy), kind=kLoop, calls=%fused
}
"""
    assert places_of(text, {})["fusion"] == (Place("/model.py", 7, "mm"),)
    assert places_of(text, {"add": ("/now.py", 9)})["fusion"] == (Place("/now.py", 9, "add"),)
    assert places_of(text, {})["copy"] == ()
