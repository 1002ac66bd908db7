"""Make the program of a dump as small as it can be while it fails in the same way."""

import contextlib
import copy
import dataclasses
import importlib.util
import io
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import minifier

from xla_dynamo.dumps import saved_inputs
from xla_dynamo.dumps.program_dump import ProgramDump
from xla_dynamo.errors import StorageError
from xla_dynamo.execution.dumped_graph import written_request
from xla_dynamo.graphs.request import Request
from xla_dynamo.lowerings.passes.bisection import Bisection, bisect
from xla_dynamo.reproduction.run import check, expected_of
from xla_dynamo.reproduction.saved_program import SavedProgram, read_program

_WRONG = "gives wrong results"


@dataclasses.dataclass(frozen=True, slots=True)
class Minified:
    """A small program that fails as the large one does.

    Attributes:
        failure: how both fail, in words.
        nodes: how many operators the large program has, and the small one.
        folder: the dump of the small program, with a `run.py`.
        bisection: which pass makes the small program fail; None where the process dies.
    """

    failure: str
    nodes: tuple[int, int]
    folder: pathlib.Path
    bisection: Bisection | None

    def __str__(self) -> str:
        before, after = self.nodes
        told = (
            f"the program {self.failure} with {after} of {before} operators: {self.folder}/run.py"
        )
        return told if self.bisection is None else f"{told}\n{self.bisection}"


def minify(
    run_py: pathlib.Path,
    folder: pathlib.Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Minified | None:
    """Make a program that fails small, by torch's minifier.

    What fails is a program whose results are not eager's, one that raises, or one whose process
    dies. The small one fails in the same way: it raises an error of the same class, say. It has the
    sizes of the saved inputs, and is taken as one of inference, whose inputs all may change.

    Args:
        run_py: of the dump.
        folder: for the small program; by default "minified" beside `run.py`.
        tell: is told of each step.

    Returns:
        What was made; None if the program does not fail.

    Raises:
        StorageError: the dump cannot be read, the folder has something, or the program fails only
            as it is: with dynamic sizes, say.
    """
    run_py = run_py.resolve()
    folder = folder or run_py.parent / "minified"
    if folder.exists() and any(folder.iterdir()):
        raise StorageError(f"{folder} has something: give minify another folder")
    program = read_program(_graph_class(run_py), run_py.parent)
    tell(f"running {run_py}")
    failure = _death(run_py) or _failure(program)
    if failure is None:
        return None
    tell(f"the program {failure}")
    search = _Search(program, failure)
    gm, inputs = search.run(tell)
    small = search.program_of(gm, inputs)
    bisection = None if search.dies else bisect(lambda: _failure(small))
    _write(small, folder)
    return Minified(failure, (search.before, _size(gm)), folder, bisection)


class _Search:
    """Programs that have some of the operators of another."""

    def __init__(self, program: SavedProgram, failure: str) -> None:
        self._program, self._failure = program, failure
        self.dies = failure.startswith("dies")
        self.before = 0

    def program_of(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> SavedProgram:
        """A graph and its inputs as a program like the one of the dump."""
        known = self._program.request
        request = Request(known.options, kind=known.kind, trains=known.trains)
        facts = {
            **self._program.facts,
            "title": f"{self._program.facts['title']}, made small",
            "request": written_request(request),
            "inputs": [saved_inputs.written(value) for value in inputs],
            "symbols": {},
        }
        return SavedProgram(lambda: _plain(gm), facts, list(inputs), [])

    def run(
        self, tell: Callable[[str], None]
    ) -> tuple[torch.fx.GraphModule, Sequence[torch.Tensor]]:
        gm, inputs = _plain(self._program.graph(is_static=True)), self._program.copies()
        self.before = _size(gm)
        if not self._fails(gm, inputs):
            raise StorageError(
                "the program fails only as it is: with its dynamic sizes, its strides, or as part "
                "of training. It cannot be made smaller"
            )

        def smaller(found: torch.fx.GraphModule, found_inputs: Sequence[Any]) -> None:
            tell(f"{_size(found)} of {self.before} operators")

        # What it says is for who debugs the minifier.
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return minifier(gm, inputs, self._fails, smaller, skip_offload=True, skip_sanity=True)

    def _fails(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
        program = self.program_of(gm, inputs)
        if not self.dies:
            return _failure(program) == self._failure
        with tempfile.TemporaryDirectory() as folder:
            _write(program, pathlib.Path(folder))
            return _death(pathlib.Path(folder) / "run.py") == self._failure


def _failure(program: SavedProgram) -> str | None:
    """How a program fails, in words that do not depend on its size; None if it does not."""
    try:
        expected = expected_of(program)
    except Exception:  # what is no program of eager's proves nothing
        return None
    try:
        difference, _ = check(program, expected)
    except Exception as error:  # a pass, a rule and XLA may raise anything
        return f"raises {type(error).__name__}"
    return _WRONG if difference.wrong else None


def _death(run_py: pathlib.Path) -> str | None:
    """How a process that runs a program dies, in words; None if it does not."""
    ended = subprocess.run([sys.executable, str(run_py)], capture_output=True, check=False)
    return None if ended.returncode >= 0 else f"dies by signal {-ended.returncode}"


def _graph_class(run_py: pathlib.Path) -> type[torch.nn.Module]:
    """The class of the graph in a `run.py`.

    Raises:
        StorageError: there is no such file, or it has no graph.
    """
    spec = importlib.util.spec_from_file_location("dumped_graph", run_py)
    if not run_py.is_file() or spec is None or spec.loader is None:
        raise StorageError(f"{run_py} is not the run.py of a dump")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.Graph
    except (Exception, SystemExit) as error:
        raise StorageError(f"{run_py} has no graph that can be read: {error}") from error


def _plain(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of a graph, whose nodes have no values of other calls."""
    made = copy.deepcopy(gm)
    for node in made.graph.nodes:
        node.meta = {}
    return made


def _size(gm: torch.fx.GraphModule) -> int:
    return sum(node.op == "call_function" for node in gm.graph.nodes)


def _write(program: SavedProgram, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dump = ProgramDump(folder)
    dump.note_registered(program.facts.get("passes", ()))
    dump.begin(program.graph(), program.facts["title"], program.facts["request"])
    dump.add_inputs(program.inputs)
    if dump.failed:
        raise StorageError(f"the small program cannot be written into {folder}: see the log")
