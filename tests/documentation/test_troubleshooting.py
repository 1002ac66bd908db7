"""The messages that docs/troubleshooting.md quotes are raised, or are found in the sources."""

import ast
import dataclasses
import functools
import logging
import multiprocessing
import re
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

import xla_dynamo
from tests import fresh_process
from tests.documentation.blocks import ROOT
from xla_dynamo import spmd
from xla_dynamo.command_line import requirements
from xla_dynamo.runtime import cache_settings, clients, topology
from xla_dynamo.stablehlo import StableHLOGraphModule, folders
from xla_dynamo.torch_private import places

PAGE = "docs/troubleshooting.md"
GAP = "…"
# The headings whose messages nothing here raises: other processes, packages that are not there, a
# fault of ours. They are looked up in the sources.
IN_SOURCES = {
    "torchvision::nms",
    "A fault of a rule",
    "No memory behind a tensor",
    "Another process has ended",
    "Nobody to join",
    "A checkpoint is not complete",
    "Too many requests, status 429",
}


@dataclasses.dataclass
class Message:
    """A message that the page quotes, below these headings."""

    section: str
    heading: str
    text: str

    @property
    def pattern(self):
        """The message as an expression: a gap is any text."""
        return re.compile(".*?".join(map(re.escape, self.text.split(GAP))), re.DOTALL)


def quoted():
    """All messages of the page."""
    section = heading = ""
    parts = re.compile(
        r"^## ([^\n]+)$|^### ([^\n]+)$|^```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL
    )
    for new_section, new_heading, text in parts.findall((ROOT / PAGE).read_text()):
        section, heading = new_section or section, new_heading or heading
        if text:
            yield Message(section, heading, text)


QUOTED = list(quoted())


def error(call, *args, **kwargs):
    """The text of what a call raises."""
    with pytest.raises(Exception) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def compiled(function, *args, **settings):
    """The text of what a compiled function raises."""
    return error(torch.compile(function, backend="openxla", **settings), *args)


def heard(logger, call):
    """What a logger says during a call."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    log = logging.getLogger(logger)
    log.addHandler(handler)
    try:
        call()
    finally:
        log.removeHandler(handler)
    return "\n".join(records)


ROW = torch.ones(2, 3)


def installation(patch, _):
    """Of packages that are there: what is told where they are not."""
    yield error(torch.compile, torch.sin, backend="openxl")
    patch.setitem(places.PLACES, "gone", ("torch:gone", "a test"))
    yield error(places.find, "gone")
    patch.setattr(requirements, "_installed", lambda name: None)
    yield "\n".join(finding.advice for finding in requirements.check_versions())
    patch.setattr(topology, "_chosen_platform", lambda: "moon")
    yield error(topology.default_placement.__wrapped__)
    yield compiled(torch.sin, torch.empty(2, device="meta"))

    def none(platform):
        raise RuntimeError("there is no such plugin")

    patch.setattr(clients, "devices_of", none)
    yield error(clients.placement_at.__wrapped__, "cuda", 0)


def compilation(*_):
    yield compiled(lambda x: x + 1, ROW, options={"freze": True})
    yield compiled(torch.sin, ROW, options={"xla_options": {"xla_no_such_option": True}})
    yield compiled(lambda x: x.nonzero(), ROW, options={"fallback": "error"}, fullgraph=True)
    eagerly = torch.compile(lambda x: x.nonzero(), backend="openxla", fullgraph=True)
    yield heard("xla_dynamo", lambda: eagerly(ROW))
    yield compiled(lambda x: x if x.sum() > 0 else -x, ROW, fullgraph=True)
    yield compiled(lambda x: print(x), ROW, fullgraph=True)
    yield compiled(nn.Linear(3, 4), ROW.half())
    yield compiled(torch.view_as_real, torch.zeros(4, dtype=torch.complex32))
    graph = torch.fx.symbolic_trace(lambda x: x * 2)
    eighths = torch.quantize_per_tensor(ROW, 0.125, 0, torch.quint8)
    yield error(xla_dynamo.openxla, graph, [eighths])
    yield compiled(torch.sin, torch.eye(3).to_sparse(), fullgraph=True)
    yield compiled(lambda x, y: (x + 1, y.view(3, 1)), ROW, torch.empty(3, device="meta"))
    with torch._dynamo.config.patch(recompile_limit=2):
        many = torch.compile(lambda x: x + 1, backend="openxla", dynamic=False)
        calls = [functools.partial(many, torch.ones(size)) for size in (2, 3, 4, 5)]
        yield heard("torch._dynamo.convert_frame", lambda: [call() for call in calls])


def calls(*_):
    yield compiled(lambda x: (x + 1).expand(1 << 42, 3) * 2, torch.ones(3))
    with forward_ad.dual_level():
        yield error(torch.compile(torch.sin, backend="openxla"), forward_ad.make_dual(ROW, ROW))
    x = torch.ones(3, requires_grad=True)
    dropped = torch.compile(lambda x: F.dropout(x.sin()), backend="openxla")(x).sum()
    yield error(torch.autograd.grad, dropped, x, create_graph=True)
    yield error(xla_dynamo.launch, print, nprocs=2, start_method="fork")
    function = torch.compile(torch.cos, backend="openxla")
    function(ROW)
    parent, child = multiprocessing.Pipe()
    told = multiprocessing.get_context("fork").Process(
        target=lambda: child.send(error(function, ROW))
    )
    told.start()
    yield parent.recv() if parent.poll(60) else ""
    told.join()


def step(optimizer=torch.optim.SGD, loss=lambda model, x: model(x).sum(), hook=None, stranger=None):
    """The text of what a training step raises, made or called."""
    model = nn.Linear(3, 4)
    if hook:
        model.weight.register_hook(hook)
    made = optimizer((stranger or model).parameters())
    return error(lambda: xla_dynamo.train_step(model, loss, made)(ROW))


def train_step(*_):
    yield step(loss=lambda model, x: {"loss": model(x).sum()})
    yield step(loss=lambda model, x: model(x))
    yield step(stranger=nn.Linear(2, 2))
    yield step(optimizer=torch.optim.LBFGS)
    yield step(optimizer=torch.optim.Adafactor)
    yield step(hook=lambda gradient: 2 * gradient)
    yield error(xla_dynamo.precompile, nn.Linear(3, 4), shapes=[[(2, 3)]])


def devices(*_):
    torch.compile(torch.sin, backend="openxla")(ROW)
    mesh = spmd.Mesh(range(64), (64,), ("data",))
    yield error(spmd.mark_sharding, torch.ones(65, 3), mesh, ("data", None))
    marked = spmd.mark_sharding(torch.ones(64, 3), mesh, ("data", None))
    yield compiled(torch.sin, marked)
    yield error(xla_dynamo.runtime.set_device_count, 63)


def lazy_device(*_):
    yield fresh_process.python(
        """
        import torch, warnings
        import xla_dynamo
        torch.ones(2, requires_grad=True).sum().backward()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            xla_dynamo.device()
        print(*(each.message for each in caught))
        try:
            torch.ones(2).to("xla") + torch.ones(2)
        except RuntimeError as error:
            print(error)
        """
    )


def disk_cache(patch, folder):
    (folder / "file").touch()
    xla_dynamo.runtime.initialize_cache(folder / "file" / "cache")
    yield heard("xla_dynamo", lambda: torch.compile(torch.tan, backend="openxla")(ROW))
    patch.setenv("XDG_CACHE_HOME", str(folder))
    (folder / "xla_dynamo").mkdir()
    (folder / "xla_dynamo").chmod(0o777)
    patch.delenv("XLA_DYNAMO_CACHE_DIR")
    yield heard("xla_dynamo", cache_settings._from_environment)


def exports(patch, folder):
    yield error(StableHLOGraphModule.load, folder)
    patch.setitem(sys.modules, "safetensors", None)
    yield error(folders.needs_safetensors)


def serving(patch, folder):
    from xla_dynamo.command_line import serve
    from xla_dynamo.serving import gate, loading, request_forms, server

    yield error(xla_dynamo.generate, nn.Linear(2, 2), ROW)
    yield error(loading.load, folder)
    first = server.Server(server.Settings(port=0))
    port = int(first.address.rpartition(":")[2])
    yield error(server.Server, server.Settings(port=port))
    first._socket.close()
    bounds = request_forms.Bounds("tiny", longest=100, prompt=90, answer=80)
    yield error(request_forms.answer_tokens, 50, 60, bounds)
    patch.setattr(serve, "NEEDED", ("no_such_package",))
    yield error(serve.run, types.SimpleNamespace())
    starting = types.SimpleNamespace(is_closing=False, engine=None)
    yield gate.Gate._state(starting)


RAISED = {
    "Installation": installation,
    "Compilation": compilation,
    "Calls": calls,
    "`train_step`": train_step,
    "Several devices and processes": devices,
    "The lazy device": lazy_device,
    "The disk cache": disk_cache,
    "Export, checkpoints": exports,
    "Text and serving": serving,
}


@functools.cache
def templates():
    """The texts of the sources, with a gap for each value that is put into them."""
    found = []
    for room in ("xla_dynamo", "runtime", "lowerings"):
        for path in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else GAP for v in node.values)
                    found.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def is_in_sources(message):
    """Whether each part of a quoted message that is longer than a word is in the sources."""
    parts = [part.strip(" :;,.") for part in message.split(GAP)]
    return all(part in templates() for part in parts if len(part) > 3)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning", "ignore:.*quantize:UserWarning")
@pytest.mark.filterwarnings("ignore:.*fork:")  # which is what is tested
@pytest.mark.parametrize("section", RAISED)
def test_a_section_quotes_what_is_raised(section, monkeypatch, tmp_path):
    """All that is raised is quoted, and all that is quoted is raised."""
    wanted = [m for m in QUOTED if m.section == section and m.heading not in IN_SOURCES]
    raised = list(RAISED[section](monkeypatch, tmp_path))
    unknown = [text for text in raised if not any(m.pattern.search(text) for m in wanted)]
    assert not unknown
    assert not [m for m in wanted if not any(m.pattern.search(text) for text in raised)]


def test_what_is_not_raised_here_is_in_the_sources():
    assert {m.section for m in QUOTED} == set(RAISED)
    assert {m.heading for m in QUOTED} >= IN_SOURCES
    assert not [m for m in QUOTED if m.heading in IN_SOURCES and not is_in_sources(m.text)]
    assert not is_in_sources("this message is nobody's")
