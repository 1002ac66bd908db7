"""Each message that docs/troubleshooting.md quotes is raised here."""

import asyncio
import copy
import dataclasses
import functools
import logging
import multiprocessing
import pathlib
import re
import sys
import types

import accelerate.utils
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
from xla_dynamo.distributed_checkpoint.shard_files import CheckpointReader
from xla_dynamo.lowerings.table import TABLE
from xla_dynamo.runtime import cache_settings, clients, topology
from xla_dynamo.runtime.processes import job
from xla_dynamo.runtime.processes.environment import Seat
from xla_dynamo.spmd import recipes
from xla_dynamo.stablehlo import StableHLOGraphModule, exported_program_to_stablehlo, folders
from xla_dynamo.switches import ours, warn_of_unknown
from xla_dynamo.torch_private import places

PAGE = "docs/troubleshooting.md"
GAP = "…"


@dataclasses.dataclass
class Message:
    """A message that a section of the page quotes."""

    section: str
    text: str

    @property
    def pattern(self):
        """The message as an expression: a gap is any text."""
        return re.compile(".*?".join(map(re.escape, self.text.split(GAP))), re.DOTALL)


def quoted():
    """All messages of the page."""
    section = ""
    parts = re.compile(r"^## ([^\n]+)$|^```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
    for new_section, text in parts.findall((ROOT / PAGE).read_text()):
        section = new_section or section
        if text:
            yield Message(section, text)


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
    # Of torch's own entry, whose place ours has taken in this process.
    yield (pathlib.Path(torch.__file__).parent / "_dynamo/backends/torchxla.py").read_text()
    yield error(torch.compile, torch.sin, backend="openxl")
    # torchvision's line; its own operators are declared here (xla_dynamo/torchvision_operators.py).
    undeclared = torch.library.register_fake("torchvision::undeclared")
    yield error(undeclared, torch.sin).replace("undeclared", "nms")
    yield error(accelerate.utils.DynamoBackend, "OPENXLA")
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


def broken_rule(*_):
    raise KeyError("oops")


def compilation(patch, _):
    yield compiled(lambda x: x + 1, ROW, mode="fastest")
    yield error(torch.compile, torch.sin, backend="openxla", mode="default", options={"tune": True})
    patch.setenv("XLA_DYNAMO_DUMP_MEGABYTES", "many")
    yield error(ours.DUMP_MEGABYTES.get)
    patch.setenv("XLA_DYNAMO_DUMPS", "folder")
    with pytest.warns(UserWarning, match="DUMPS") as caught:
        warn_of_unknown()
    yield str(caught[0].message)
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
    patch.setitem(TABLE, "aten.sin.default", broken_rule)
    yield compiled(lambda x: x.sin(), ROW)


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
    freed = ROW.clone()
    freed.untyped_storage().resize_(0)
    yield error(function, freed)


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
    embedding = nn.Embedding(5, 3, sparse=True)
    sgd = torch.optim.SGD(embedding.parameters())
    sparse = xla_dynamo.train_step(embedding, lambda model, x: model(x).sum(), sgd)
    yield error(sparse, torch.arange(3))
    yield error(copy.deepcopy, sparse)
    yield error(xla_dynamo.precompile, nn.Linear(3, 4), shapes=[[(2, 3)]])


def devices(patch, _):
    torch.compile(torch.sin, backend="openxla")(ROW)
    mesh = spmd.Mesh(range(64), (64,), ("data",))
    yield error(spmd.mark_sharding, torch.ones(65, 3), mesh, ("data", None))
    marked = spmd.mark_sharding(torch.ones(64, 3), mesh, ("data", None))
    yield compiled(torch.sin, marked)
    yield error(xla_dynamo.runtime.set_device_count, 63)
    yield error(recipes.shard_batch, ROW)
    yield error(recipes.shard_batch, ROW, mesh, "rows")
    seat = Seat(rank=0, size=2)
    yield str(job.Job.error(types.SimpleNamespace(seat=seat), "process 1 has ended"))
    patch.delenv("MASTER_ADDR", raising=False)
    yield error(job._meeting_of, seat, None)


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
    (folder / "notes.txt").touch()
    program = torch.export.export(nn.Linear(3, 4), (ROW,))
    yield error(exported_program_to_stablehlo(program).save, folder)
    yield error(CheckpointReader(folder, None).read_metadata)
    patch.setitem(sys.modules, "safetensors", None)
    yield error(folders.needs_safetensors)


def serving(patch, folder):
    import transformers

    from xla_dynamo.command_line import serve
    from xla_dynamo.serving import gate, loading, request_forms, server

    yield error(xla_dynamo.generate, nn.Linear(2, 2), ROW)
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8
    )
    model = transformers.LlamaForCausalLM(config)
    yield error(xla_dynamo.generate, model, torch.ones(1, 2, dtype=torch.int64), use_cache=False)
    yield error(loading.load, folder)
    patch.setitem(sys.modules, "torchao.quantization", None)
    yield error(loading._quantize, model, "int8")
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
    full = gate.Gate(None, 1 << 20, in_work=0)
    scope = {"type": "http", "path": "/v1/completions", "method": "POST", "headers": []}

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    yield error(asyncio.run, full._pass(scope, receive, None))


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


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning", "ignore:.*quantize:UserWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.export's own
@pytest.mark.filterwarnings("ignore:.*fork:")  # which is what is tested
@pytest.mark.parametrize("section", RAISED)
def test_a_section_quotes_what_is_raised(section, monkeypatch, tmp_path):
    """All that is raised is quoted, and all that is quoted is raised."""
    wanted = [m for m in QUOTED if m.section == section]
    raised = list(RAISED[section](monkeypatch, tmp_path))
    unknown = [text for text in raised if not any(m.pattern.search(text) for m in wanted)]
    assert not unknown
    assert not [m for m in wanted if not any(m.pattern.search(text) for text in raised)]


def test_every_section_is_raised():
    assert {m.section for m in QUOTED} == set(RAISED)
