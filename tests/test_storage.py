"""Programs written to a file and read again: calls are bound from what was read, and agree."""

import contextlib
import io
import json
import zipfile

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import xla_dynamo
from bench.models import MODELS, build
from tests import fresh_process
from tests.compiling import compiled
from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.execution import compiled_graph
from xla_dynamo.graphs.output_views import ViewStep
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.options import Options
from xla_dynamo.programs import program as records
from xla_dynamo.programs.lower import lower
from xla_dynamo.programs.program import Constant, NegativeZero
from xla_dynamo.programs.storage import read_program, write_program
from xla_dynamo.programs.targets import target_of


@pytest.fixture
def stored(monkeypatch):
    """Everything that is compiled in this test goes through a file; returns the files' contents."""
    torch._dynamo.reset()
    files, lower = [], compiled_graph.lower

    def through_a_file(*args, **kwargs):
        file = io.BytesIO()
        write_program(lower(*args, **kwargs), file)
        files.append(file.getvalue())
        return read_program(io.BytesIO(file.getvalue()))

    monkeypatch.setattr(compiled_graph, "lower", through_a_file)
    return files


def test_bert_from_its_file(stored, monkeypatch, tmp_path):
    """In bits what the program gives that was never written."""
    model, inputs = build("bert", "tiny"), MODELS["bert"].inputs("tiny", 2)
    with torch.no_grad():
        rebuilt = compiled(model)(**inputs)
        assert len(stored) == 1
        torch._dynamo.reset()
        monkeypatch.undo()
        direct = compiled(model)(**inputs)
        expected = model(**inputs)
    assert torch.equal(rebuilt.logits, direct.logits)
    torch.testing.assert_close(rebuilt.logits, expected.logits, rtol=1e-4, atol=1e-4)
    path = tmp_path / "bert.xla"
    path.write_bytes(stored[0])
    program, again = read_program(str(path)), io.BytesIO()
    write_program(program, again)
    assert read_program(again).module.operation.get_asm() == program.module.operation.get_asm()


def test_gradients_and_saved_tensors(stored):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    )
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    f = compiled(lambda x: net(x).square().sum())
    f(x).backward()
    ours = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net[1].reset_running_stats()
    net(x).square().sum().backward()
    for actual, p in zip(ours, net.parameters(), strict=True):
        torch.testing.assert_close(actual, p.grad, rtol=1e-4, atol=1e-4)
    assert len(stored) == 2


def test_changed_inputs_views_and_numbers(stored):
    def f(cache, x, scale):
        cache[1:3].add_(x)
        view = x[1].view(2, 2)
        return cache.sum(), view, view.t(), x.split(1)[0], scale * 2, x.t() @ x

    both = []
    for g in (f, compiled(f)):
        cache, x = torch.ones(4, 4), torch.arange(8.0).view(2, 4)
        results = g(cache, x, 3)
        assert results[1].data_ptr() == x[1].data_ptr()
        both.append((cache, results))
    (cache, expected), (changed, actual) = both
    assert torch.equal(cache, changed)
    assert actual[4] == expected[4]
    for e, a in zip(expected[:4] + expected[5:], actual[:4] + actual[5:], strict=True):
        assert torch.equal(e, a)
        assert e.stride() == a.stride()


def test_checks_raise_after_the_program(stored):
    f = compiled(lambda x: torch.linalg.inv(x))
    with pytest.raises(torch.linalg.LinAlgError):
        f(torch.zeros(3, 3))
    torch.testing.assert_close(f(2 * torch.eye(3)), torch.eye(3) / 2)


def test_random_numbers_and_barriers(stored):
    f = compiled(lambda x: F.dropout((x * 0.1 + 1e8) - 1e8, 0.5))
    torch.manual_seed(3)
    first = f(torch.ones(100))
    torch.manual_seed(3)
    assert torch.equal(first, f(torch.ones(100)))
    assert read_program(io.BytesIO(stored[0])).of(NegativeZero)


def test_frozen_values(stored):
    layer = torch.nn.Linear(300, 300).eval()
    x = torch.randn(2, 300)
    f = compiled(lambda x: F.linear(x, layer.weight.double().tanh().float()), freeze=True)
    with torch.no_grad():
        for _ in range(2):
            expected = F.linear(x, layer.weight.double().tanh().float())
            torch.testing.assert_close(f(x), expected)
            layer.weight.mul_(0.5)
    assert read_program(io.BytesIO(stored[0])).frozen.module is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128, torch.bool])
def test_tensors_of_the_graph(stored, dtype):
    table = torch.randn(100).to(dtype)
    trace = make_fx(lambda x: (x + table,), tracing_mode="fake", _allow_non_fake_inputs=True)
    gm = trace(torch.ones(100))
    (result,) = xla_dynamo.compile_graph(gm, [torch.ones(100)])(torch.ones(100))
    assert torch.equal(result, torch.ones(100) + table)
    (constant,) = read_program(io.BytesIO(stored[0])).of(Constant)
    assert torch.equal(constant.tensor, table)


def test_dynamic_sizes(stored):
    exact = {"buckets": "exact"}
    f = torch.compile(lambda x: x.softmax(-1)[1:], backend="openxla", dynamic=True, options=exact)
    for n in (3, 5):
        x = torch.randn(n, n)
        torch.testing.assert_close(f(x), x.softmax(-1)[1:])
    assert len(stored) == 2


def test_what_no_file_can_hold():
    class Handle:
        pass

    program = _program()
    output = records.Output(number=Handle())
    file = io.BytesIO()
    with pytest.raises(xla_dynamo.StorageError, match="Handle"):
        write_program(_with(program, outputs=(output,)), file)


def test_other_files(tmp_path):
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    with pytest.raises(xla_dynamo.StorageError, match="empty holds no program"):
        read_program(str(empty))
    file = io.BytesIO()
    write_program(_program(), file)
    for broken in (file.getvalue()[:-30], file.getvalue()[:200] + file.getvalue()[230:]):
        with pytest.raises(xla_dynamo.StorageError):
            read_program(io.BytesIO(broken))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(format=99), "format 99"),
        (lambda d: d["program"]["Program"].pop("arguments"), "arguments"),
        (lambda d: d["program"]["Program"].update(largest={"torch": "load"}), "torch.load"),
        (lambda d: d["program"]["Program"].update(largest={"op": "aten.no_such.op"}), "no_such"),
        (lambda d: d.update(format="1"), "format '1'"),
        (lambda d: d["program"]["Program"].update(results="x"), "program.results is str"),
        (lambda d: d["program"]["Program"].update(results={"tuple": []}), "slots for 1 and 0"),
        (lambda d: d["program"]["Program"].update(outputs=5), "program.outputs is int"),
        (lambda d: _arguments(d).append({"Seed": {}}), "slots for 2 and 1"),
        (lambda d: _arguments(d).append({"Output": {}}), r"arguments\[1\] is Output, and none"),
        (lambda d: d["program"]["Program"].update(effects=_effect("aten.add.Tensor")), "no check"),
        (lambda d: d["program"]["Program"].update(effects=_effect(LOADS)), "no operator"),
        (lambda d: d["program"]["Program"].update(largest={"float": "0x1p99999"}), "Overflow"),
        (lambda d: d["program"]["Program"].update(largest={"device": "bogus:1"}), "bogus"),
    ],
)
def test_changed_descriptions(change, said):
    file = io.BytesIO()
    write_program(_program(), file)
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    described = json.loads(contents["program.json"])
    change(described)
    contents["program.json"] = json.dumps(described).encode()
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    with pytest.raises(xla_dynamo.StorageError, match=said):
        read_program(changed)


def _arguments(described):
    return described["program"]["Program"]["arguments"]["tuple"]


LOADS = "load_library.__call__.__call__"


def _effect(name):
    effect = {"op": {"op": name}, "args": {"tuple": []}, "kwargs": {"dict": []}}
    return {"tuple": [{"Effect": effect}]}


@pytest.mark.parametrize("name", ["program.json", "module.mlir"])
@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes(name, seed):
    """Whatever the damage, the error is the one that callers expect, or there is none."""
    file = io.BytesIO()
    write_program(_program(), file)
    data = bytearray(file.getvalue())
    random = torch.Generator().manual_seed(seed)
    for place in torch.randint(0, len(data), (6,), generator=random).tolist():
        data[place] ^= 0x55
    with contextlib.suppress(xla_dynamo.StorageError):
        read_program(io.BytesIO(bytes(data)))


def test_constants_of_another_size():
    table = torch.randn(100)
    gm = make_fx(lambda x: (x + table,), tracing_mode="fake", _allow_non_fake_inputs=True)(
        torch.ones(100)
    )
    program = lower_of(gm)
    file = io.BytesIO()
    write_program(program, file)
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents["constants/1"] = b""
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    with pytest.raises(xla_dynamo.StorageError, match="a constant of 400 bytes has 0"):
        read_program(changed)


def test_a_conjugated_constant(stored):
    table = torch.randn(100, dtype=torch.complex64).conj()
    gm = make_fx(lambda x: (x * table,), tracing_mode="fake", _allow_non_fake_inputs=True)(
        torch.ones(100)
    )
    (result,) = xla_dynamo.compile_graph(gm, [torch.ones(100)])(torch.ones(100))
    torch.testing.assert_close(result, torch.ones(100) * table)


@pytest.mark.parametrize("name", ["svd", "attention"])
def test_in_a_fresh_process(name, tmp_path):
    """What only lowering rules would have loaded, LAPACK and calls of torch's kernels, is there."""
    functions = {
        "svd": (torch.linalg.svdvals, torch.randn(4, 4)),
        "attention": (
            lambda q: F.scaled_dot_product_attention(q, q, q),
            torch.randn(2, 4, 256, 64),
        ),
    }
    f, x = functions[name]
    found = []

    def note(gm, inputs):
        return compile_torch_graph(gm, inputs, Options(), observer=found.append)

    torch._dynamo.reset()
    expected = torch.compile(f, backend=note)(x)
    program = next(e.program for e in found if hasattr(e, "program"))
    write_program(program, str(tmp_path / "program"))
    torch.save((x, expected), tmp_path / "tensors")
    script = f"""
import torch
from xla_dynamo.calls.calls import bind
from xla_dynamo.calls.steps import steps_of
from xla_dynamo.programs.storage import read_program
from xla_dynamo.runtime.clients import placement_of
from xla_dynamo.runtime.executables import Executable
program = read_program({str(tmp_path / "program")!r})
x, expected = torch.load({str(tmp_path / "tensors")!r})
placement = placement_of(torch.device("cpu"))
executable = Executable(program.module, placement)
call = bind(program, steps_of(program, executable, False, None), placement, "fresh")
assert torch.equal(call([x])[0], expected)
"""
    fresh_process.python(script)


def lower_of(gm):
    request = Request()
    return lower(gm, static_values(gm), target_of("cpu", request.options), request)


def test_records_come_back_equal():
    """Every kind of value that a record may hold."""
    steps = (
        ViewStep(torch.ops.aten.view.dtype, (torch.int32,), {}),
        ViewStep(torch.ops.aten.slice.Tensor, (0, 1, 2), {"step": 1}),
    )
    output = records.Output(
        input=1,
        replay=steps,
        as_view=False,
        number=(1, -0.0, float("inf"), 1 + 2j, None, True, "s", [torch.channels_last]),
    )
    file = io.BytesIO()
    write_program(_with(_program(), outputs=(output,)), file)
    assert repr(read_program(file).outputs) == repr((output,))


def _program():
    """The smallest."""
    found = []
    torch._dynamo.reset()

    def note(gm, inputs):
        return compile_torch_graph(gm, inputs, Options(), observer=found.append)

    torch.compile(lambda x: x + 1, backend=note)(torch.ones(2))
    return next(e.program for e in found if hasattr(e, "program"))


def _with(program, **changes):
    return records.dataclasses.replace(program, **changes)
