"""The folder of one program: graphs, modules behind each pass, HLO, inputs, and `run.py`.

What fails while it is written is a warning in the log "xla_dynamo", and the program goes on.
"""

import functools
import json
import logging
import os
import pathlib
import platform
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch

from xla_dynamo.dumps import graph_code, saved_inputs
from xla_dynamo.errors import StorageError
from xla_dynamo.switches import given, ours
from xla_dynamo.torch_private import unset_fake_temporarily

log = logging.getLogger("xla_dynamo")
FORMAT = 1
_VERSIONS = ("xla-dynamo", "torch", "jax", "jaxlib", "numpy")

_RUN = '''\
"""{title}

    python run.py   # exit status: 0 if it gives eager torch's results, else 1

The values of the inputs are in inputs.pt; of those that are not, random ones are drawn.
"""

{imports}

from xla_dynamo.reproduction import main


{classes}


if __name__ == "__main__":
    main(Graph, __file__)
'''


def folder_of_dumps(option: str | None) -> str | None:
    """The folder that programs are dumped into, by an option or the environment; None if not."""
    return option or ours.DUMP.get() or None


def _guarded(write: Callable[..., None]) -> Callable[..., None]:
    """A method that gives up after the first failure: the program is more than its dump."""

    @functools.wraps(write)
    def guarded(self: "ProgramDump", *args: Any, **kwargs: Any) -> None:
        if self.failed:
            return
        try:
            with unset_fake_temporarily():
                write(self, *args, **kwargs)
        except Exception as error:  # whatever a graph, a file system or a value may cause
            self.failed = True
            told = f"{type(error).__name__}: {error}"
            log.warning("the dump in %s is not complete: %s", self.folder, told[:500])

    return guarded


class ProgramDump:
    """The dump of one program.

    Attributes:
        folder: where it is.
        failed: whether writing has failed.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Write into a folder that exists."""
        self.folder, self.failed = folder, False
        self._lock = threading.Lock()
        self._modules, self._executables, self._has_inputs = 0, 0, False
        self._facts: dict[str, Any] = {}
        self._constants: dict[str, torch.Tensor] = {}

    @_guarded
    def begin(
        self,
        gm: torch.fx.GraphModule,
        title: str,
        request: Mapping[str, Any],
        dynamo_graph: str | None = None,
    ) -> None:
        """Write the graphs, the facts and `run.py`, with random inputs for now.

        Args:
            gm: the ATen graph, which nobody has changed yet.
            title: what the program is.
            request: what it is compiled with, as JSON has it.
            dynamo_graph: the code of the graph that it was made of.
        """
        values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
        self._facts |= {
            "format": FORMAT,
            "title": title,
            "request": request,
            "inputs": [saved_inputs.written(value) for value in values],
            "symbols": saved_inputs.symbols_of(values),
            "versions": versions(),
            "environment": given(),
            "process": {"pid": os.getpid(), "argv": sys.argv},
        }
        if dynamo_graph:
            self.write("dynamo_graph.py.txt", dynamo_graph)
        readable = gm.print_readable(print_output=False, include_stride=True, include_device=True)
        self.write("aten_graph.py.txt", readable)
        self._write_facts()
        try:
            code = graph_code.code_of(gm)
        except StorageError as error:
            self.write("run.py", f"raise SystemExit({f'it cannot run alone: {error}'!r})\n")
            return
        self._constants = code.constants
        text = _RUN.format(title=title, imports=code.imports, classes=code.classes)
        self.write("run.py", text)
        if self._constants:
            self._write_tensors({})

    def note_registered(self, passes: Sequence[Mapping[str, Any]]) -> None:
        """Take the users' passes: name, module and identity of each."""
        self._facts["passes"] = list(passes)

    @_guarded
    def note_graph(self, name: str) -> None:
        """Take the name that the log, `explain` and `profile` have for the graph."""
        self._facts["graph"] = name
        self._write_facts()

    def observer(self) -> Callable[[str, Any], None]:
        """A function that writes a module as lowered, and behind each pass that changes it."""
        with self._lock:
            self._modules += 1
            number = self._modules
        before, count = "", 0

        def observe(name: str, module: Any) -> None:
            nonlocal before, count
            text = str(module)
            if text != before:
                safe = re.sub(r"[^\w.-]", "_", name)
                self.try_write(f"stablehlo-{number}/{count:02}-{safe}.mlir", text)
            before, count = text, count + 1

        return observe

    @_guarded
    def add_executable(self, hlo: Callable[[], str], about: str) -> None:
        """Write the optimized HLO of one executable of the program."""
        with self._lock:
            self._executables += 1
            number = self._executables
        self.write(f"hlo-{number}.txt", f"// {about}\n{hlo()}")

    @_guarded
    def add_inputs(self, args: Sequence[Any], again: bool = False) -> None:
        """Save the inputs of the first call, or, `again`, of one that failed."""
        with self._lock:
            if self._has_inputs and not again:
                return
            self._has_inputs = True
        limit = ours.DUMP_MEGABYTES.get() * 2**20
        kept: dict[int, Any] = {}
        used, storages = 0, set[int]()
        is_tensor = {i: a for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
        for index, value in sorted(is_tensor.items(), key=lambda one: one[1].numel()):
            tensor = value.detach()
            if tensor.device.type == "xla":
                tensor = tensor.cpu()
            storage = tensor.untyped_storage()
            size = 0 if storage.data_ptr() in storages else storage.nbytes()
            if used + size > limit:
                self._facts["inputs"][index] |= saved_inputs.statistics(tensor)
                continue
            used += size
            storages.add(storage.data_ptr())
            kept[index] = tensor
        if missing := sorted(set(is_tensor) - set(kept)):
            self._facts["not_saved"] = missing
            log.warning(
                "the dump in %s has no values of %d inputs, which are larger than %d MiB together "
                "(%s): random ones take their place",
                *(self.folder, len(missing), limit >> 20, ours.DUMP_MEGABYTES.name),
            )
        self._facts["numbers"] = {
            str(i): a for i, a in enumerate(args) if isinstance(a, bool | int | float)
        }
        self._facts["sizes"] = saved_inputs.sizes_of(
            self._facts["inputs"], args, self._facts["symbols"]
        )
        self._write_facts()
        self._write_tensors(kept)

    @_guarded
    def add_error(self, error: BaseException) -> None:
        """Write what compiling or running the program has raised."""
        self._facts["error"] = [type(error).__name__, str(error).strip().partition("\n")[0]]
        self.write("error.txt", "".join(traceback.format_exception(error)))
        self._write_facts()

    @_guarded
    def try_write(self, name: str, text: str) -> None:
        """Write a file."""
        self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """Write a file whole, or not at all if the process is killed meanwhile."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)

    def _write_facts(self) -> None:
        self.write("program.json", json.dumps(self._facts, indent=1, default=str))

    def _write_tensors(self, kept: Mapping[int, torch.Tensor]) -> None:
        part = self.folder / f"inputs.pt.{os.getpid()}.part"
        torch.save({"inputs": kept, "constants": self._constants}, part)
        part.replace(self.folder / "inputs.pt")


def new_dump(root: str, kind: str, name: str) -> ProgramDump | None:
    """Make a folder that no other process or thread has; None, and a warning, if there is none."""
    base = pathlib.Path(root)
    try:
        base.mkdir(parents=True, exist_ok=True)
        taken = (re.match(r"\d+", each.name) for each in base.iterdir())
        number = max((int(n[0]) for n in taken if n), default=0) + 1
        safe = re.sub(r"[^\w.-]+", "_", f"{kind}-{name}" if name else kind)[:80]
        while True:
            # Two processes that see the same number: making a folder fails for one of them.
            claimed = base / f".{number:04}"
            try:
                claimed.mkdir()
            except FileExistsError:
                number += 1
                continue
            folder = base / f"{number:04}-{safe}"
            if not any(base.glob(f"{number:04}-*")):
                claimed.rename(folder)
                return ProgramDump(folder)
            claimed.rmdir()
            number += 1
    except OSError as error:
        log.warning("no program can be dumped into %s: %s", root, error)
        return None


@functools.cache
def versions() -> dict[str, str]:
    """The versions of what a program depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
