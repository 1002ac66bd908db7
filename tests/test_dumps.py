"""Dumps of programs: what is written, and that `run.py` runs each alone."""

import contextlib
import json
import logging
import os
import pathlib
import runpy
import subprocess
import sys

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.rewriting_passes import sine_for_tanh
from tests.test_structure import ROOT
from xla_dynamo.dumps.program_dump import new_dump

pytestmark = pytest.mark.usefixtures("cold")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_DUMP", str(tmp_path / "dumps"))
    return tmp_path / "dumps"


def status(dump):
    """The exit status of a dump's `run.py`."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(dump / "run.py"), run_name="__main__")
    return ended.value.code


@contextlib.contextmanager
def warned():
    """The messages of the log in this block."""
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("xla_dynamo")
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        return self.norm(self.first(x)).relu() @ self.first.weight  # tied


def test_a_model_that_trains(folder):
    model = Net()
    torch.compile(model, backend="openxla")(torch.randn(4, 8)).sum().backward()
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["0001-forward-Net", "0002-backward-Net"]
    for name in names:
        files = {str(p.relative_to(folder / name)) for p in (folder / name).rglob("*.*")}
        assert files >= {
            *("dynamo_graph.py.txt", "aten_graph.py.txt", "run.py", "inputs.pt", "program.json"),
            *("stablehlo-1/00-lowered.mlir", "hlo-1.txt"),
        }
        assert status(folder / name) == 0
    facts = json.loads((folder / names[0] / "program.json").read_text())
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["request"]["options"]["fallback"] == "eager"


def _cond(x):
    return torch.cond(x.sum() > 0, lambda x: x + torch.arange(3.0), lambda x: x - 1, (x,))


def _in_place(x):
    x.add_(1)
    return x * 2, x.view(3, 2)


def _split(x):
    return (x.nonzero() * 2).sum() + x.sum()


def _random(x):
    return x + torch.rand(3), x * 3


def _scan(x):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, x: (c + x, c * x), torch.zeros(2), x)


FORMS = {
    "cond": (_cond, lambda: [torch.randn(3)]),
    "scan": (_scan, lambda: [torch.randn(5, 2)]),
    "in place": (_in_place, lambda: [torch.randn(2, 3)]),
    "fallback": (_split, lambda: [torch.tensor([0.0, 1.0, 2.0])]),
    "random": (_random, lambda: [torch.randn(3)]),
    "complex": (lambda x, y: (x * y).abs(), lambda: [torch.randn(3, dtype=torch.complex64)] * 2),
    "bool": (lambda x, y: x & ~y, lambda: [torch.randn(4) > 0, torch.randn(4) > 0]),
    "empty": (lambda x: (x.sum(), x * 2), lambda: [torch.empty(0, 3)]),
    "scalar": (lambda x: x.exp() - float("inf"), lambda: [torch.tensor(2.0)]),
    "strides": (lambda x: x.cumsum(1), lambda: [torch.randn(4, 6).t()[::2]]),
    "float8": (lambda x: x.float() * 2, lambda: [torch.randn(4).to(torch.float8_e4m3fn)]),
    "constant": (lambda x: x * torch.tensor([1.0, 2.0] * 40), lambda: [torch.randn(80)]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_graphs_and_inputs(folder, form):
    fn, inputs = FORMS[form]
    with torch.no_grad():
        torch.compile(fn, backend="openxla")(*inputs())
    dumps = sorted(folder.iterdir())
    assert dumps
    assert [status(dump) for dump in dumps] == [0] * len(dumps)


def test_dynamic_sizes_and_shared_memory(folder):
    base = torch.randn(12)
    fn = torch.compile(lambda x, y: (x @ y.T).softmax(0), backend="openxla", dynamic=True)
    fn(base[:8].view(4, 2), base[4:].view(4, 2))
    (dump,) = folder.iterdir()
    assert json.loads((dump / "program.json").read_text())["symbols"]
    assert status(dump) == 0
    first, second = torch.load(dump / "inputs.pt", weights_only=True)["inputs"].values()
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_a_training_step_by_an_option(tmp_path):
    model = nn.Linear(4, 2)
    step = xla_dynamo.train_step(
        model,
        lambda model, x: model(x).square().mean(),
        torch.optim.Adam(model.parameters()),
        options={"dump": str(tmp_path)},
    )
    step(torch.randn(3, 4))
    (dump,) = tmp_path.iterdir()
    assert dump.name.startswith("0001-training_step")
    assert status(dump) == 0


def test_a_wrong_pass_in_a_process_of_its_own(folder, capfd):
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-for-tanh-1"):
        torch.compile(torch.tanh, backend="openxla")(torch.randn(4))
        (dump,) = folder.iterdir()
        assert status(dump) == 1
    assert (dump / "stablehlo-1").glob("*-sine-for-tanh-1.mlir")
    code = "import tests.rewriting_passes as p, xla_dynamo, runpy, sys;"
    code += "xla_dynamo.register_pass(p.sine_for_tanh, identity='sine-for-tanh-1');"
    code += f"runpy.run_path({str(dump / 'run.py')!r}, run_name='__main__')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
    # Elsewhere, and without the pass, it is right, and says that the pass is not there.
    alone = subprocess.run(
        [sys.executable, "run.py"],
        cwd=dump,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.endswith("right\n")


def test_a_program_that_cannot_be_compiled(folder, capsys):
    def fails(module, target):
        raise ValueError("no")

    fn = torch.compile(lambda x: x + 1, backend="openxla")
    with xla_dynamo.register_pass(fails), pytest.raises(Exception, match="raised ValueError"):
        fn(torch.randn(2))
    (dump,) = folder.iterdir()
    assert "raised ValueError: no" in (dump / "error.txt").read_text()
    assert status(dump) == 0  # the pass is gone
    with xla_dynamo.register_pass(fails):
        assert status(dump) == 1
    printed = capsys.readouterr().out
    assert "error (as it was): LoweringError" in printed
    assert "1 inputs are random (the program was never called)" in printed


def test_inputs_over_the_limit_are_random_and_in_range(folder, monkeypatch, capsys):
    monkeypatch.setenv("XLA_DYNAMO_DUMP_MEGABYTES", "0")
    fn = torch.compile(lambda table, i: table[i], backend="openxla")
    fn(torch.randn(5, 2) + 100, torch.tensor([4, 3]))
    (dump,) = folder.iterdir()
    facts = json.loads((dump / "program.json").read_text())
    assert facts["not_saved"] == [0, 1]
    assert facts["inputs"][1]["high"] == 4
    assert facts["inputs"][0]["mean"] == pytest.approx(100, abs=5)
    assert status(dump) == 0
    assert "larger than the limit" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("")
    monkeypatch.setenv("XLA_DYNAMO_DUMP", str(path))
    with warned() as lines:
        assert torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(1)) == 2
    assert "no program can be dumped into" in lines[0]


def test_a_dump_that_fails_lets_the_program_go_on(folder, monkeypatch):
    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    with warned() as lines:
        assert torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(1)) == 2
    assert "is not complete: OSError" in lines[0]


def test_names_are_distinct_among_processes(tmp_path):
    code = "import sys; from xla_dynamo.dumps.program_dump import new_dump\n"
    code += "for _ in range(20): print(new_dump(sys.argv[1], 'forward', 'f').folder.name)"
    running = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = [line for each in running for line in each.communicate()[0].split()]
    assert len(names) == len(set(names)) == 40
    assert new_dump(str(tmp_path), "a", "../b c").folder.name == "0041-a-.._b_c"


def test_expanded_inputs_and_views_of_one_memory(folder, capsys):
    fn = torch.compile(lambda x, y, z: (x + y, y.sin() * z), backend="openxla")
    memory = torch.randn(8)
    fn(torch.randn(1, 4).expand(3, 4), memory[:4], memory[4:])
    (dump,) = folder.iterdir()
    assert status(dump) == 0
    assert "error" not in capsys.readouterr().out


def test_the_passes_and_devices_of_the_dumped_process(folder, monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_PASSES", "verify,limit=0,dump=" + str(folder / "modules"))
    flags = "--xla_cpu_enable_fast_math=false"
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={folder} {flags}")
    torch.compile(torch.tanh, backend="openxla")(torch.randn(4))
    (dump,) = folder.glob("0*")
    facts = json.loads((dump / "program.json").read_text())
    assert facts["environment"]["CPU_NUM_DEVICES"] == os.environ["CPU_NUM_DEVICES"]
    apart = ("XLA_DYNAMO_PASSES", "XLA_FLAGS", "PYTHONPATH")
    kept = {k: v for k, v in os.environ.items() if k not in apart}
    code = "import os, runpy, sys; sys.argv = ['run.py']\n"
    code += "try: runpy.run_path('run.py', run_name='__main__')\n"
    code += "finally: print(os.environ['XLA_DYNAMO_PASSES'], os.environ['XLA_FLAGS'])"
    alone = subprocess.run(
        [sys.executable, "-c", code],
        cwd=dump,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.stdout.endswith(f"right\nverify,limit=0 {flags}\n"), alone.stderr
