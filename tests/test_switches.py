"""Environment variables: what each takes, where they are read, and those that are misspelt."""

import ast
import multiprocessing.process
import re

import pytest

import xla_dynamo
from docs import import_floors, switches
from xla_dynamo import process_state
from xla_dynamo.errors import OptionError
from xla_dynamo.options import CHOICES, Options
from xla_dynamo.runtime import clients
from xla_dynamo.switches import (
    TABLE,
    given,
    others,
    ours,
    pytorch_xla,
    unknown,
    warn_of_unknown,
)
from xla_dynamo.switches.others import MASTER_ADDR, XLA_FLAGS
from xla_dynamo.switches.ours import CACHE_MEGABYTES, DISABLE, PROGRESS
from xla_dynamo.switches.pytorch_xla import CPU_NUM_DEVICES, DEBUG_LEVEL, SAVE_GRAPH_FMT

# Files that touch the environment by themselves, and why.
ALLOWED = {
    "xla_dynamo/switches/switch.py": "what all others read variables through",
    "xla_dynamo/switches/unknown.py": "looks for names that nobody declares",
    "xla_dynamo/registration.py": "runs at each `import torch`, and imports nothing",
    "xla_dynamo/torch_xla/forms/surroundings.py": "reads what the caller of `getenv_as` names",
}


def test_variables_are_read_through_their_declarations():
    reading, names = set(), set()
    for path in import_floors.sources().values():
        place = str(path.relative_to(import_floors.ROOT))
        nodes = list(ast.walk(ast.parse(path.read_text())))
        named = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        named |= {n.id for n in nodes if isinstance(n, ast.Name)}
        named |= {n.name for n in nodes if isinstance(n, ast.alias)}
        if {"environ", "environb", "getenv", "getenvb"} & named:
            reading.add(place)
        if not place.startswith("xla_dynamo/switches/"):
            names |= named
    assert reading == set(ALLOWED), "declare the variable in xla_dynamo/switches"
    constants = {
        id(switch): name
        for module in (ours, pytorch_xla, others)
        for name, value in vars(module).items()
        for switch in (value if isinstance(value, tuple) else [value])
    }
    unread = [s.name for s in TABLE if s.is_read_here and constants.get(id(s)) not in names]
    assert not unread, "no other file reads these"


def test_a_variable_is_declared_once():
    names = [s.name for s in TABLE]
    assert len(set(names)) == len(names)
    for s in TABLE:
        assert not s.meaning.endswith("."), s.name
        assert s.name not in pytorch_xla.IGNORED
        text = str(int(s.default)) if isinstance(s.default, bool) else str(s.default)
        assert s.default is None or s.parse(text) == s.default, s.name
    source = import_floors.sources()["xla_dynamo.registration"].read_text()
    assert re.findall(r'"(XLA_DYNAMO_\w+)"', source) == [DISABLE.name]


@pytest.mark.parametrize(
    ("switch", "text", "value"),
    [
        (PROGRESS, "No", False),
        (PROGRESS, "", False),
        (PROGRESS, " ON ", True),
        (PROGRESS, "please", None),
        (DISABLE, "please", True),
        (CACHE_MEGABYTES, "7", 7),
        (CACHE_MEGABYTES, "0", None),
        (CACHE_MEGABYTES, "1e3", None),
        (CPU_NUM_DEVICES, "1024", 1024),
        (CPU_NUM_DEVICES, "1025", None),
        (DEBUG_LEVEL, "0", 0),
        (DEBUG_LEVEL, "-1", None),
        (SAVE_GRAPH_FMT, "dot", "dot"),
        (SAVE_GRAPH_FMT, "png", None),
        (XLA_FLAGS, "--a=1 --b", "--a=1 --b"),
    ],
)
def test_texts_become_values(switch, text, value, monkeypatch):
    monkeypatch.setenv(switch.name, text)
    if value is not None:
        assert switch.get() == value
        return
    with pytest.raises(OptionError) as raised:
        switch.get()
    told = f"the environment variable {switch.name} must be {switch.kind}, not {text!r}"
    assert str(raised.value) == told


def test_a_variable_is_set_for_a_block(monkeypatch):
    monkeypatch.delenv(PROGRESS.name, raising=False)
    assert PROGRESS.get()
    with PROGRESS.replaced("0"):
        assert not PROGRESS.get()
        with PROGRESS.replaced("1"):
            assert PROGRESS.get()
        assert PROGRESS.text() == "0"
    assert PROGRESS.text() is None


def test_dumps_tell_of_what_programs_depend_on(monkeypatch):
    monkeypatch.setenv(XLA_FLAGS.name, "--xla_cpu_enable_fast_math=true")
    monkeypatch.setenv(MASTER_ADDR.name, "10.0.0.1")
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", "/home/me")
    assert given()[XLA_FLAGS.name] == "--xla_cpu_enable_fast_math=true"
    assert not {MASTER_ADDR.name, "XLA_DYNAMO_CACHE_DIR"} & set(given())


def test_misspelt_names(monkeypatch):
    assert not unknown()
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIRS", "/a")
    monkeypatch.setenv("xladynamo_dump", "/a")
    monkeypatch.setenv("XLA_DYNAMO_QQQQQQQQQQQQ", "1")
    monkeypatch.setenv("XLA_DYNAMO_TESTS_DRAW", "1")
    monkeypatch.setenv("DYNAMO_CACHE_DIR", "/a")
    near = {"XLA_DYNAMO_CACHE_DIRS": "XLA_DYNAMO_CACHE_DIR", "xladynamo_dump": "XLA_DYNAMO_DUMP"}
    assert unknown() == {**near, "XLA_DYNAMO_QQQQQQQQQQQQ": ""}
    monkeypatch.delenv("xladynamo_dump")
    monkeypatch.delenv("XLA_DYNAMO_QQQQQQQQQQQQ")
    with process_state.replaced():
        monkeypatch.setattr(multiprocessing.process, "parent_process", object)
        warn_of_unknown()  # a process that another one has started
    monkeypatch.undo()
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIRS", "/a")
    monkeypatch.setenv("RANK", "1")
    with process_state.replaced():
        warn_of_unknown()  # the first process of the job warns
    monkeypatch.setenv("RANK", "0")
    with process_state.replaced():
        with pytest.warns(UserWarning, match="CACHE_DIRS is none.*did you mean XLA_DYNAMO_CACHE"):
            warn_of_unknown()
        warn_of_unknown()  # once


def test_the_first_client_warns(monkeypatch):
    made = clients.devices_of("cpu")
    monkeypatch.setattr(clients, "_clients", {})
    monkeypatch.setattr(clients, "_make_client", lambda platform, configuration: made)
    monkeypatch.setattr(clients.forks, "watch", lambda client: None)
    monkeypatch.setenv("XLA_DYNAMO_DUNP", "/nowhere")
    with process_state.replaced(), pytest.warns(UserWarning, match="did you mean XLA_DYNAMO_DUMP"):
        assert clients.devices_of("cpu") is made


def test_a_launcher_warns_for_its_processes(monkeypatch):
    started = []
    monkeypatch.setattr("torch.multiprocessing.start_processes", lambda *a, **k: started.append(a))
    monkeypatch.setenv("XLA_DYNAMO_DUNP", "/nowhere")
    with process_state.replaced(), pytest.warns(UserWarning, match="did you mean XLA_DYNAMO_DUMP"):
        xla_dynamo.launch(print, nprocs=2)
    assert started


def test_every_option_is_described():
    told = switches.descriptions()
    assert list(told) == list(Options.__dataclass_fields__)
    for option, choices in CHOICES.items():
        named = re.findall(r'"(\w+)"', told[option])
        assert option == "matmul_precision" or set(named) >= set(choices) - {"wait"}
