"""A program has one name: on the terminal, in dumps, reports, profiles, torch's traces, the log."""

import contextlib
import json
import logging
import re

import pytest
import torch

import xla_dynamo
from xla_dynamo.graphs.subjects import subject_of
from xla_dynamo.runtime.progress import Progress

pytestmark = pytest.mark.usefixtures("cold")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.first(x).relu()

    def encode(self, x):
        return self.first(x)


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What the line of progress shows, what the log says, and the folder of dumps."""
    shown, said = [], []

    @contextlib.contextmanager
    def showing(self, subject, name):
        shown.append(subject)
        yield

    monkeypatch.setattr(Progress, "showing", showing)
    monkeypatch.setenv("XLA_DYNAMO_DUMP", str(tmp_path / "dumps"))
    log, handler = logging.getLogger("xla_dynamo"), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield shown, said, tmp_path / "dumps"
    log.removeHandler(handler)
    log.setLevel(level)


def test_a_program_has_one_name_everywhere(told):
    shown, said, dumps = told
    x = torch.randn(64, 8, requires_grad=True)
    net = Net()
    explained = xla_dynamo.explain(net)
    explained(x).result.sum().backward()
    with torch.profiler.profile() as outer, xla_dynamo.profile() as p:
        explained(x).result.sum().backward()
    titles = ["forward of Net", "backward of Net"]
    assert list(dict.fromkeys(shown)) == titles
    names = [built.name for built in explained.report.executables]
    for name, title in zip(names, titles, strict=True):
        assert re.fullmatch(rf"graph \d+ \({title}, \d+/0\)", name)
    assert [one for one in said if one.startswith(f"executable of {names[1]}: ")]
    assert {op.program for op in p.operations} == set(names)
    assert {memory.name for memory in explained.report.memory} == set(names)
    assert {f"xla_dynamo: {title}" for title in titles} <= {e.name for e in outer.events()}
    folders = sorted(dumps.iterdir())
    assert [each.name for each in folders] == ["0001-forward-Net", "0002-backward-Net"]
    for folder, name, title in zip(folders, names, titles, strict=True):
        facts = json.loads((folder / "program.json").read_text())
        assert (facts["graph"], facts["title"]) == (name, title)


def helper(net, x):
    return net(x) * 2


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (Net().encode, "Net.encode"),
        (torch.nn.Sequential(torch.nn.Linear(8, 8)), "Sequential"),
        (lambda x: x.sin(), r"lambda in test_program_names\.py:\d+"),
        (lambda x: helper(Net(), x), "Net"),
        (torch.sin, ""),
    ],
)
def test_subjects(fn, name):
    found = []

    def backend(gm, example_inputs):
        found.append(subject_of(gm))
        return gm.forward

    torch.compile(fn, backend=backend)(torch.randn(4, 8))
    (one,) = found
    assert re.fullmatch(name, one)


def test_programs_of_steps_loops_and_the_disk_cache_have_names(told, tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_DYNAMO_DUMP")
    shown, said, _ = told
    net = Net()
    step = xla_dynamo.train_step(
        net, lambda m, x: m(x).sum(), torch.optim.SGD(net.parameters(), 0.1)
    )
    x = torch.randn(64, 8)
    step(x)
    assert set(shown) == {"training step of Net"}
    xla_dynamo.runtime.initialize_cache(tmp_path / "cache")
    for dynamic in (False, True):
        for _ in range(2):
            torch._dynamo.reset()
            fast = torch.compile(net, backend="openxla", dynamic=dynamic)
            with torch.no_grad():
                fast(x)
                with xla_dynamo.profile() as p:
                    fast(x)
            (program,) = {op.program for op in p.operations}
            assert "inference of Net" in program
    assert any("(inference of Net) loaded from the disk cache" in one for one in said)
