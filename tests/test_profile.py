"""`xla_dynamo.profile`: the time of programs by lines of this file."""

import gzip
import html.parser
import json
import pathlib
import re
import threading
import time

import jax
import pytest
import torch

import xla_dynamo
from xla_dynamo.errors import ExecutionError, OptionError, StorageError
from xla_dynamo.reports import peaks
from xla_dynamo.reports.hlo_costs import costs_of
from xla_dynamo.reports.hlo_places import Place, places_of
from xla_dynamo.reports.hlo_text import parse

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
    # Programs of 4 ms, on a machine that may be busy: a thread that waits for its turn is no line.
    assert sum(line.seconds for line in p.lines) >= 0.5 * p.covered
    assert f"test_profile.py:{products.line}" in str(p)
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
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    ran = [e for e in events if e.get("cat") == "xla_operation"]
    assert any(f"{HERE}:" in e["args"]["line"] and e["args"]["bytes"] > 0 for e in ran)
    assert list(tmp_path.rglob("*.xplane.pb"))
    with pytest.raises(OptionError, match="another folder"), xla_dynamo.profile(tmp_path):
        pass


def test_one_trace_at_a_time_and_errors_leave_none(tmp_path):
    outer = xla_dynamo.profile(tmp_path)
    again = pytest.raises(OptionError, match="one object is for one block")
    refused = pytest.raises(OptionError, match="a trace runs already")
    with outer:
        with refused, xla_dynamo.profile():
            pass
        with again, outer:
            pass
    assert any(tmp_path.rglob("*.xplane.pb")), "what is refused inside changes nothing"
    failed = xla_dynamo.profile(tmp_path / "failed")
    with pytest.raises(ZeroDivisionError), failed:
        raise ZeroDivisionError
    assert not [*(tmp_path / "failed").iterdir()]
    ended = pytest.raises(ExecutionError, match="was ended inside its block")
    with ended, failed:
        jax.profiler.stop_trace()
    with failed as p:
        pass
    assert p.lines == []
    assert p.programs == 0
    assert str(p)
    with pytest.raises(TypeError, match=r"write @xla_dynamo.profile\(\)"):
        xla_dynamo.profile(model)


def test_folders_that_cannot_be_written_are_told_of_at_once(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(StorageError, match="no trace can be written into"):
            xla_dynamo.profile(folder).__enter__()
    late = xla_dynamo.profile(tmp_path / "late").__enter__()
    (tmp_path / "late").rmdir()
    (tmp_path / "late").touch()
    with pytest.raises(StorageError, match="cannot be written into"):
        late.__exit__(None, None, None)
    with xla_dynamo.profile(tmp_path / "ünï ☃ <b>"):  # and no trace has been left running
        pass
    assert (tmp_path / "ünï ☃ <b>" / "trace.json.gz").exists()


def test_places_and_costs_of_a_text():
    text = """HloModule main

FileNames
1 "/model.py"

FunctionNames
1 "layers.0"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused (p: f32[4,8], q: f32[2]) -> f32[4,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %a.1 = f32[4,8]{1,0} add(%p, %p), metadata={op_name="add" stack_frame_id=1}
}

ENTRY %main (x: f32[4,8], y: f32[8,16]) -> f32[4,16] {
  %x = f32[4,8]{1,0} parameter(0)
  %y = f32[8,16]{1,0} parameter(1)
  %copy = f32[4,8]{1,0} copy(%x)
  %fusion = f32[4,8]{1,0} fusion(%copy), kind=kLoop, calls=%fused
  ROOT %dot = f32[4,16]{1,0} dot(%fusion, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    module = parse(text)
    places = places_of(module, {})
    assert places["fusion"] == (Place("/model.py", 7, "add", "layers.0"),)
    assert places["copy"] == places["fusion"], "what XLA adds is for the line that reads it"
    assert places["dot"] == places["fusion"], "or for what it reads"
    costs = costs_of(module, {})
    assert costs["dot"].flops == 2 * 4 * 16 * 8
    assert costs["dot"].bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert costs["fusion"].flops == 4 * 8
    assert costs["fusion"].bytes == 2 * 4 * 4 * 8


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 256)
        self.last = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())

    def forward(self, x):
        hidden = self.first(x).relu()  # the first
        return self.last(hidden)  # the last


@pytest.mark.parametrize("whole", [True, False])
def test_lines_of_training_have_their_gradients_and_the_optimizer_its_name(whole):
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(512, 256)
    if whole:
        step = xla_dynamo.train_step(net, lambda m, x: m(x).square().mean(), optimizer)
    else:
        fast = torch.compile(net, backend="openxla")

        def step(x):
            optimizer.zero_grad()
            fast(x).square().mean().backward()
            optimizer.step()

    step(x)
    with xla_dynamo.profile() as p:
        step(x)
    first, last = (
        next(line for line in p.lines if line.line == line_of(text))
        for text in ("hidden = self.first(x)", "return self.last(hidden)")
    )
    product = 2 * 512 * 256 * 256
    # The gradient of the input of the first product is not needed.
    assert 2 * product <= first.flops < 2.2 * product
    assert 3 * product <= last.flops < 3.2 * product
    assert 0 < first.backward < first.seconds
    assert 0 < last.backward < last.seconds
    modules = {module.path: module for module in p.modules}
    assert {"first", "last", "last.0"} <= modules.keys()
    assert modules["last"].seconds >= modules["last.0"].seconds > 0
    named = [line.where for line in p.lines if not line.file]
    assert ("optimizer: AdamW.step" in named) == whole
    assert (p.times.torch > 0) != whole, "the optimizer's operators are torch's"
    assert sum(seconds for _, seconds in p.times.parts) == pytest.approx(p.wall)


def test_the_wall_time_has_compilations_and_torch():
    fast = torch.compile(model, backend="openxla")
    x, w = torch.randn(256, 512), torch.randn(512, 512) / 20
    with xla_dynamo.profile() as p:
        fast(x, w)
        for _ in range(5):
            x @ w
        time.sleep(0.05)
    assert p.times.compilation > p.times.programs > 0
    assert p.times.torch > 0
    assert p.times.python > 0.05
    assert "compilation" in str(p)


def test_operations_in_the_trace_of_torch(tmp_path):
    fast = torch.compile(model, backend="openxla")
    x, w = torch.randn(256, 512), torch.randn(512, 512) / 20
    fast(x, w)
    with torch.profiler.profile() as outer, xla_dynamo.profile() as p:
        fast(x, w), fast(x, w)
    path = tmp_path / "trace.json"
    outer.export_chrome_trace(str(path))
    p.add_to(path)
    events = json.loads(path.read_text())["traceEvents"]
    calls = [e for e in events if e["name"] == "xla_dynamo: inference of model"]
    operations = [e for e in events if e.get("cat") == "xla_operation"]
    assert len(calls) == 2
    assert operations
    for one in operations:  # the clocks are one
        assert any(
            c["ts"] <= one["ts"] and one["ts"] + one["dur"] <= c["ts"] + c["dur"] for c in calls
        )
    assert any(f"{HERE}:{line_of('# the products')}" in e["args"]["line"] for e in operations)
    assert not p.times.is_whole


@pytest.mark.parametrize("cached", [False, True])
def test_programs_of_one_structure_are_told_apart(cached, tmp_path):
    if cached:
        xla_dynamo.runtime.initialize_cache(tmp_path)

    def sine(x):
        return (x @ x).sin().sum()  # the sine

    def plus(x):
        return (x @ x + 1).sum()  # the addition

    x = torch.randn(200, 200)
    for _ in range(1 + cached):  # the second time from the disk cache
        torch._dynamo.reset()
        fast = [torch.compile(fn, backend="openxla", dynamic=False) for fn in (sine, plus)]
        fast[0](x), fast[1](x)
    small = x[:150, :150].contiguous()
    fast[0](small)
    with xla_dynamo.profile() as p:
        fast[0](x), fast[0](x), fast[1](x), fast[0](small)
    found = {line.line: line for line in p.lines}
    product = 2 * 200**3
    assert found[line_of("# the addition")].flops == pytest.approx(product, rel=0.02)
    twice = 2 * product + 2 * 150**3
    assert found[line_of("# the sine")].flops == pytest.approx(twice, rel=0.02)


def test_a_profiler_of_torch_inside():
    fast = torch.compile(model, backend="openxla")
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    fast(x, w)
    with xla_dynamo.profile() as p:
        with torch.profiler.profile() as inner:
            fast(x, w)
        fast(x, w)
    assert p.programs == 2
    assert not p.times.is_whole
    assert any(e.name == "xla_dynamo: inference of model" for e in inner.events())


def test_a_page_escapes_what_it_shows(tmp_path):
    file = tmp_path / "mödel & <x>.py"
    file.write_text('def double(x):\n    return x * 2  # <i>&"\n')
    code = {}
    exec(compile(file.read_text(), str(file), "exec"), code)
    fast = torch.compile(code["double"], backend="openxla")
    fast(torch.ones(99))
    with xla_dynamo.profile() as p:
        fast(torch.ones(99))
    assert [line.where for line in p.lines] == [f"{file}:2"]
    p.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "mödel &amp; &lt;x&gt;.py:2" in text
    assert not re.search(r"<x>|<i>&", text)


def test_the_page_has_all_and_loads_nothing(tmp_path):
    net = torch.compile(Net(), backend="openxla")
    x = torch.randn(64, 256)
    with torch.no_grad():
        net(x)
        with xla_dynamo.profile() as p:
            net(x)
    p.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for part in ("Wall time", "Time by line", "Time by module", "Roofline", "Last run of"):
        assert part in text
    assert "hidden = self.first(x).relu()" in text
    assert not re.search(r"(src|href)=|<script|@import|url\(", text)
    parser = html.parser.HTMLParser()
    parser.feed(text)


def test_threads_and_peaks():
    fast = torch.compile(model, backend="openxla")
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    fast(x, w)
    with xla_dynamo.profile() as p:
        threads = [threading.Thread(target=fast, args=(x, w)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert p.programs == 3
    assert p.peaks.flops["f32"] > 1e9
    assert p.peaks.bytes > 1e8
    assert p.peaks.bound(p.peaks.flops["f32"], 0, "f32") == pytest.approx(1)
    assert p.peaks.bound(0, 2 * p.peaks.bytes, "s8") == pytest.approx(2)


def test_peaks_are_measured_once(tmp_path, monkeypatch):
    xla_dynamo.runtime.initialize_cache(tmp_path)
    found = peaks.peaks()
    monkeypatch.setattr(peaks, "measured", lambda: pytest.fail("measured again"))
    monkeypatch.setattr(peaks._known, "peaks", {})
    assert peaks.peaks() == found
