"""The program of a dump's folder, which is compiled and run as it was."""

import contextlib
import dataclasses
import importlib
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.dumps import graph_code, saved_inputs
from xla_dynamo.dumps.program_dump import FORMAT
from xla_dynamo.errors import StorageError
from xla_dynamo.execution.compile_graph import compile_undumped
from xla_dynamo.graphs.request import Request
from xla_dynamo.lowerings.passes.registered import registered_passes
from xla_dynamo.options import Options
from xla_dynamo.switches import Switch
from xla_dynamo.switches.others import NPROC, PJRT_NPROC, XLA_FLAGS
from xla_dynamo.switches.ours import DUMP, PASSES
from xla_dynamo.switches.pytorch_xla import CPU_NUM_DEVICES

# What registers operators that graphs may call.
_OPERATORS = (
    "xla_dynamo.backend",
    "xla_dynamo.spmd.manual_operators",
    "xla_dynamo.spmd.collective_operators",
)
_ROUNDED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclasses.dataclass
class SavedProgram:
    """A program of a dump.

    Attributes:
        make: makes the module of the graph, which calls operators alone.
        facts: what `program.json` has.
        inputs: those of the call.
        notes: what is not as it was.
        given_back: the results of `eager`, by number, that are inputs, which are compared as such.
    """

    make: Callable[[], torch.nn.Module]
    facts: dict[str, Any]
    inputs: list[Any]
    notes: list[str]
    given_back: frozenset[int] = frozenset()

    @property
    def request(self) -> Request:
        """What the program is compiled with."""
        return read_request(self.facts["request"])

    def graph(self, is_static: bool = False) -> torch.fx.GraphModule:
        """The ATen graph, with fake values; of the sizes of the call if it is to be static."""
        gm = graph_code.traced(self.make())
        given, ranges = self.facts["inputs"], self.facts["symbols"]
        if is_static:
            given, ranges = [saved_inputs.written(x) for x in self.inputs], {}
        mode, fakes = saved_inputs.fakes(given, ranges)
        graph_code.add_values(gm, mode, fakes)
        return gm

    def copies(self) -> list[Any]:
        """Inputs for one call, which may change them: what shares memory shares it again."""
        return copies(self.inputs)

    def eager(self, rounded: int | None = None) -> list[Any]:
        """The results of eager torch, and the inputs as it leaves them.

        `rounded` is the seed of changes to the inputs that are as small as those of rounding.
        """
        args = self.copies()
        if rounded is not None:
            round_otherwise(args, rounded)
        with torch.no_grad():
            results = self.make()(*args)
        given = {id(a) for a in args if isinstance(a, torch.Tensor)}
        self.given_back = frozenset(i for i, r in enumerate(results) if id(r) in given)
        return [*results, *args]

    def compiled(self) -> list[Any]:
        """The results of the compiled program, and the inputs as it leaves them."""
        return run_compiled(self.graph(), self.copies(), self.request)


def run_compiled(gm: torch.fx.GraphModule, args: list[Any], request: Request) -> list[Any]:
    """Compile a graph and call it once: the results, and the inputs as the call leaves them."""
    given = list(args)
    with torch.no_grad():
        results = compile_undumped(gm, args, request).call(args)
    return [*results, *given]


def round_otherwise(values: Sequence[Any], seed: int) -> None:
    """Move each number of floating point by less than the step to its neighbour."""
    generator = torch.Generator().manual_seed(seed)
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype in _ROUNDED and value.numel():
            # All of its memory, each place once: an expanded tensor has elements that share one.
            memory = torch.empty(0, dtype=value.dtype, device=value.device)
            memory.set_(value.untyped_storage())
            step = torch.rand(memory.shape, generator=generator, dtype=torch.float64) * 2 - 1
            step *= torch.finfo(value.dtype).eps
            memory.mul_((1 + step).to(value.device))


def copies(values: Sequence[Any]) -> list[Any]:
    """Copies of tensors, with their strides; those of one storage share one again."""
    storages: dict[int, torch.UntypedStorage] = {}
    found = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            found.append(value)
            continue
        own = value.untyped_storage()
        key = own.data_ptr() or id(value)
        if key not in storages:
            storages[key] = own.clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        made.set_(storages[key], value.storage_offset(), value.shape, value.stride())
        found.append(made)
    return found


def read_request(written: Mapping[str, Any]) -> Request:
    """The request that a dump has."""
    options = dict(written["options"])
    for name in ("libraries", "buckets"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    known = {field.name for field in dataclasses.fields(Options)}
    return Request(
        Options(**{k: v for k, v in options.items() if k in known}),
        kind=written["kind"],
        trains=written["trains"],
        keeps_inputs=written["keeps_inputs"],
        static_inputs=frozenset(written["static_inputs"]),
        results_for_backward=frozenset(written["results_for_backward"]),
        views_of_inputs=frozenset(written["views_of_inputs"]),
        input_strides={int(i): tuple(s) for i, s in written["input_strides"].items()},
    )


def read_program(graph: type[torch.nn.Module], folder: pathlib.Path) -> SavedProgram:
    """The program of a folder, whose `run.py` defines the graph.

    Raises:
        StorageError: the folder lacks what `run.py` needs, or another release wrote it.
    """
    try:
        facts = json.loads((folder / "program.json").read_text())
    except (OSError, ValueError) as error:
        raise StorageError(f"{folder} has no program.json that can be read: {error}") from error
    if facts.get("format") != FORMAT:
        raise StorageError(f"{folder} was written by another release of xla_dynamo")
    for name in _OPERATORS:
        importlib.import_module(name)
    notes = _prepare(facts)
    held: dict[str, Any] = {"inputs": {}, "constants": {}}
    path = folder / "inputs.pt"
    if path.exists():
        where = None if torch.cuda.is_available() else "cpu"
        held = torch.load(path, weights_only=True, map_location=where)
    sizes = facts.get("sizes") or {name: hint for name, (hint, _, _) in facts["symbols"].items()}
    inputs: list[Any] = []
    random = []
    for index, given in enumerate(facts["inputs"]):
        if index in held["inputs"]:
            inputs.append(held["inputs"][index])
        elif (number := facts.get("numbers", {}).get(str(index))) is not None:
            inputs.append(number)
        else:
            inputs.append(saved_inputs.drawn(given, sizes, seed=index))
            random += [index] if "shape" in given else []
    if random:
        why = "larger than the limit" if facts.get("not_saved") else "the program was never called"
        notes.append(f"{len(random)} inputs are random ({why}): their values were not saved")
    return SavedProgram(lambda: graph(held["constants"]), facts, inputs, notes)


# The variables that `run.py` sets as the dumped process had them, with what their parts are
# separated by. Parts that write files are left out.
_AS_BEFORE: dict[Switch[Any], str] = {
    PASSES: ",",
    CPU_NUM_DEVICES: ",",
    XLA_FLAGS: " ",
    PJRT_NPROC: ",",
    NPROC: ",",
}
_DUMPS = re.compile(r" *(dump=|--xla_dump_)")


def _prepare(facts: Mapping[str, Any]) -> list[str]:
    """Make the process as the other one was; returns what is not so."""
    DUMP.put(None)
    for switch, apart in _AS_BEFORE.items():
        text = facts["environment"].get(switch.name)
        if text is not None and switch.text() is None:
            switch.put(apart.join(p for p in text.split(apart) if not _DUMPS.match(p)))
    notes = []
    for each in facts.get("passes", ()):
        names = {p.name for p in registered_passes()}
        if each["name"] not in names and each["module"] != "__main__":
            with contextlib.suppress(ImportError):
                importlib.import_module(each["module"])
        if each["name"] not in {p.name for p in registered_passes()}:
            notes.append(
                f"the pass {each['name']} of the module {each['module']} was registered, and is "
                "not here: put the module's folder into PYTHONPATH"
            )
    if facts["request"]["shardings"]:
        notes.append("the inputs were sharded over a mesh; here they are whole on one device")
    return notes
