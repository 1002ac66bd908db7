"""The slots of a program: one loop supplies them, in whatever order lowering has met them."""

import io
import json
import zipfile

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import xla_dynamo
from tests.compiling import watched
from tests.documentation.blocks import blocks
from xla_dynamo.calls import steps
from xla_dynamo.calls.supply import supply_of
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.memory.one_device import OneDevice
from xla_dynamo.options import Options
from xla_dynamo.programs.lower import lower
from xla_dynamo.programs.program import (
    Constant,
    Donated,
    FrozenValue,
    Input,
    NegativeZero,
    Parameter,
    Seed,
)
from xla_dynamo.programs.storage import read_program, write_program
from xla_dynamo.programs.targets import target_of
from xla_dynamo.runtime.clients import placement_at

PAGE = "docs/adding-a-placement.md"
TABLE = torch.randn(300)


def draw_then_read(x):
    """A draw, whose seed is met first, and a constant."""
    return torch.rand_like(x) + TABLE


def kinds(program):
    return [type(slot) for slot in program.arguments]


def test_a_seed_before_a_constant():
    trace = make_fx(
        lambda x: (draw_then_read(x),), tracing_mode="fake", _allow_non_fake_inputs=True
    )
    gm = trace(torch.ones(300))
    program = lower(gm, static_values(gm), target_of("cpu", Options()), Request())
    order = [Input, Seed, Constant, NegativeZero]
    assert kinds(program) == order
    file = io.BytesIO()
    write_program(program, file)
    assert kinds(read_program(file)) == order
    call = xla_dynamo.compile_graph(gm, [torch.ones(300)])
    torch.manual_seed(3)
    (first,) = call(torch.ones(300))
    torch.manual_seed(3)
    (again,) = call(torch.ones(300))
    assert torch.equal(first, again)
    drawn = first - TABLE
    assert drawn.min() > -1e-6
    assert drawn.max() < 1 + 1e-6
    assert drawn.std() > 0.1


def test_every_kind_in_one_program():
    weight = torch.nn.Parameter(torch.randn(8, 8))

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight
            self.register_buffer("cache", torch.zeros(8, 8))

        def forward(self, x):
            self.cache.copy_(self.cache + x @ self.weight)
            return ((self.cache * 0.1 + 1e8) - 1e8) + 0 * torch.rand_like(x)

    run, built = watched(Module())
    eager = Module()
    x = torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), eager(x))
    program = built[0].program
    assert set(kinds(program)) == {Donated, Input, Parameter, Seed, NegativeZero}
    assert kinds(program)[-1] is NegativeZero
    assert [slot.donated for slot in program.results][-1] == program.of(Donated)[0].index


def test_donated_tensors_and_results_are_counted_alike():
    """A file whose results are written into another input than the one that is donated is none."""
    run, built = watched(lambda x, y: x.add_(y).sum())
    run(torch.ones(64), torch.ones(64))
    file = io.BytesIO()
    write_program(built[0].program, file)
    changed = io.BytesIO(_renumbered(file))
    with pytest.raises(xla_dynamo.StorageError, match="donated inputs"):
        read_program(changed)


def _renumbered(file):
    """The same file, in which a result belongs to an input that is not donated."""
    out = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(out, "w") as made:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "program.json":
                described = json.loads(data)
                for result in described["program"]["Program"]["results"]["tuple"]:
                    if result["Result"]["donated"] is not None:
                        result["Result"]["donated"] += 7
                data = json.dumps(described).encode()
            made.writestr(name, data)
    return out.getvalue()


def test_frozen_values_need_somebody_who_computes_them():
    placement = placement_at("cpu", 0)
    memory = OneDevice(placement)
    with pytest.raises(AssertionError, match="nobody who computes"):
        supply_of([FrozenValue("key")], memory, memory.inputs)


def test_the_example_of_the_page(monkeypatch):
    """docs/adding-a-placement.md: a memory of one's own."""
    example, chosen = [block.code for block in blocks(PAGE)]
    made, names = [], {"Constant": Constant}
    exec(compile(example, PAGE, "exec"), names)
    exec(compile(chosen, PAGE, "exec"), names)

    def memory_of(*given):
        made.append(names["memory_of"](*given))
        return made[-1]

    monkeypatch.setattr(steps, "memory_of", memory_of)
    layer = torch.nn.Linear(64, 64)
    run = torch.compile(layer, backend="openxla")
    x = torch.randn(8, 64)
    with torch.no_grad():
        torch.testing.assert_close(run(x), layer(x))
        (memory,) = made
        parameters = 4 * (64 * 64 + 64)
        assert memory.bytes == parameters + x.nbytes
        run(x)
    assert memory.bytes == parameters + x.nbytes
