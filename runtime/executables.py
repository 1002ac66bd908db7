"""Compile StableHLO modules by PJRT, and translate its errors."""

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.mlir import ir

from xla_dynamo.errors import CompileError
from xla_dynamo.runtime import forks, metrics
from xla_dynamo.runtime.cpu.host_memory import give_back_memory, keep_freed_memory_for
from xla_dynamo.runtime.jaxlib_private import (
    Buffer,
    LoadedExecutable,
    compile_and_load,
    compile_options,
    executor,
    result_tilings,
)
from xla_dynamo.runtime.mesh import Tiling
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.processes import job
from xla_dynamo.runtime.saved_executables import digest_of_module, saved_executable
from xla_dynamo.runtime.xla_options import refused, with_defaults


def _compile(
    module: ir.Module, placement: Placement, given: Mapping[str, Any], written_as: str
) -> tuple[LoadedExecutable, bool]:
    """The executable of a module, and whether the disk cache had it."""
    platform, devices = placement.platform, placement.devices
    everywhere = placement.replicas or devices
    while True:
        debug_options = with_defaults(platform, given, len(everywhere))
        saved = saved_executable(module, placement, debug_options, written_as)
        if saved is not None and (loaded := saved.load()) is not None:
            return loaded, True
        options = compile_options(debug_options, devices, placement.replicas)
        try:
            key = digest_of_module(module) if saved is None else saved.key
            with _named(module, key[:16]):
                loaded = compile_and_load(module, everywhere, options)
        except (jax.errors.JaxRuntimeError, ValueError, TypeError) as error:
            if not refused(platform, given, error, len(everywhere)):
                raise CompileError(
                    f"PJRT could not compile for {placement.device}: {error}"
                ) from error
        else:
            if saved is not None:
                saved.save(loaded)
            return loaded, False


@contextlib.contextmanager
def _named(module: ir.Module, name: str) -> Iterator[None]:
    """Give a module a name in this block, by which traces tell the runs of its executable.

    Programs of one structure have the same names of instructions. An executable in the disk cache
    keeps its name, and processes of one job must give one program one name: so it is made of the
    key there, or else of the module.
    """
    attributes, given = module.operation.attributes, None
    if "sym_name" in attributes:
        given = attributes["sym_name"]
    with module.context:
        attributes["sym_name"] = ir.StringAttr.get(f"main.{name}")
    try:
        yield
    finally:
        if given is None:
            del attributes["sym_name"]
        else:
            attributes["sym_name"] = given


_USERS_LINE = re.compile(r'"([^"]+\.py)":(\d+)')
# Held while a partitioned program runs. A device that waits for the others in a collective holds a
# thread of the client's: were two such programs to run at once, each would wait for threads that
# the other holds, and XLA ends the process when it notices.
_in_turn = threading.Lock()


def check_sameness(placement: Placement, about: str, same: bytes) -> None:
    """Let the processes of a partitioned program tell each other what must be equal in all.

    Raises:
        ProcessError: it is not, or a process is gone, silent or late.
    """
    here = job.joined()
    if here is not None and len(placement.processes) > 1 and not placement.replicas:
        here.agree(about, same, placement.processes)


@contextlib.contextmanager
def taking_turns(processes: tuple[int, ...], about: str, same: bytes) -> Iterator[None]:
    """Run a partitioned program in this block, when no other runs and all its processes have come.

    Args:
        processes: their ranks.
        about: what runs, for people.
        same: what must be equal in all processes.

    Raises:
        ProcessError: a process is gone, silent or late, or has come to something else.
    """
    with _in_turn:
        if len(processes) == 1:
            yield
            return
        here = job.joined()
        assert here is not None
        here.agree(about, same, processes)
        try:
            with here.watched():
                yield
        except jax.errors.JaxRuntimeError as error:
            raise here.explain(error) from error


def _one_at_a_time(
    execute: Callable[[Sequence[Buffer]], list[list[Buffer]]],
    processes: tuple[int, ...],
    module: ir.Module,
) -> Callable[[Sequence[Buffer]], list[list[Buffer]]]:
    """The call of a program of several devices, which returns when all are done."""
    about, same = "", b""
    if len(processes) > 1:
        digest = digest_of_module(module)
        about, same = f"the program {digest[:12]}{_line_of(module)}", digest.encode()

    def alone(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
        with taking_turns(processes, about, same):
            results = execute(buffers)
            for shards in results:
                for shard in shards:
                    shard.block_until_ready()
        return results

    return alone


def _line_of(module: ir.Module) -> str:
    """Where the user's code is that the last operation of a module comes from, if that is known."""
    functions = [op for op in module.body.operations if "main" in str(op.attributes["sym_name"])]
    *_, last = functions[0].regions[0].blocks[0].operations
    makers = [operand.owner for operand in last.operands]
    given = [str(op.location) for op in makers if not isinstance(op, ir.Block)]
    found = [_USERS_LINE.search(text) for text in given]
    return next((f" ({one[1]}:{one[2]})" for one in found if one), "")


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a call of an executable, as XLA counts it.

    Attributes:
        flops: floating-point operations, those in calls of libraries (oneDNN) not included.
        bytes_accessed: read and written by the program's operations, fused ones once.
        argument_bytes, result_bytes: of the arguments and the results.
        temporary_bytes: what is needed beside them while it runs.
    """

    flops: float = 0.0
    bytes_accessed: float = 0.0
    argument_bytes: int = 0
    result_bytes: int = 0
    temporary_bytes: int = 0


# By the ids of PJRT's executables, which take no weak references: each new one takes off what had
# its id before.
_notes: dict[int, tuple[str, Mapping[str, Any]]] = {}
_MOST_NOTES = 1024


def text_and_notes(loaded: Any) -> tuple[str, str, Mapping[str, Any]]:
    """The optimized HLO of PJRT's executable, and what `Executable.note` was given for it."""
    return _text_of(loaded), *_notes.get(id(loaded), ("", {}))


def _text_of(loaded: Any) -> str:
    return "\n\n".join(module.to_string() for module in loaded.hlo_modules())


class Executable:
    """A program compiled for the devices of a placement.

    Attributes:
        placement: where it runs.
        compile_seconds: how long PJRT took.
        was_saved: whether it comes from the disk cache.
    """

    __slots__ = ("_loaded", "_tilings", "compile_seconds", "execute", "placement", "was_saved")

    def __init__(
        self,
        module: ir.Module,
        placement: Placement,
        xla_options: Mapping[str, Any] | None = None,
        written_as: str = "",
        tilings: Sequence[Tiling] | None = None,
    ) -> None:
        """Compile a module whose public function is `main`.

        Args:
            module: the module.
            placement: where it runs.
            xla_options: the user's.
            written_as: its digest, if it was read from a file and had another text before.
            tilings: how each result lies over the devices of the placement, if the module is what
                each of them computes, as a replica among the others. Else XLA partitions it.

        Raises:
            CompileError: PJRT refused the module or an XLA option.
        """
        if forks.forked:
            raise CompileError(forks.MESSAGE)
        start = time.perf_counter()
        everywhere = placement
        if tilings is not None:
            everywhere = dataclasses.replace(
                placement, devices=(placement.device,), replicas=placement.devices
            )
        self._loaded, self.was_saved = _compile(module, everywhere, xla_options or {}, written_as)
        _notes.pop(id(self._loaded), None)  # of one that is gone
        self.placement, self._tilings = placement, tilings
        self.compile_seconds = time.perf_counter() - start
        self.execute: Callable[[Sequence[Buffer]], list[list[Buffer]]] = executor(self._loaded)
        if len(placement.devices) > 1 or placement.replicas:
            self.execute = _one_at_a_time(self.execute, placement.processes, module)
        metrics.add_time("CompileTime", self.compile_seconds)
        metrics.increment("CreateCompileHandles")
        if self.compile_seconds > 1:
            give_back_memory()
        if placement.platform == "cpu":
            memory = self._loaded.get_compiled_memory_stats()
            made = memory.output_size_in_bytes - memory.alias_size_in_bytes
            keep_freed_memory_for(self.execute, memory.temp_size_in_bytes + made)

    def cost(self) -> Cost:
        """The cost of a call; zero where the platform does not count it."""
        try:
            analysis = self._loaded.cost_analysis()
            memory = self._loaded.get_compiled_memory_stats()
        except jax.errors.JaxRuntimeError:
            return Cost()
        return Cost(
            analysis.get("flops", 0.0),
            analysis.get("bytes accessed", 0.0),
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes,
            memory.temp_size_in_bytes,
        )

    def result_tilings(self) -> list[Tiling]:
        """How each result lies over the devices of a placement of several."""
        if self._tilings is not None:
            return list(self._tilings)
        return result_tilings(self._loaded, len(self.placement.devices))

    def note(self, name: str, nodes: Mapping[str, Any]) -> None:
        """Keep a name of the program, and what is known of the graph's nodes, by their names."""
        if len(_notes) >= _MOST_NOTES:
            living = set(map(id, self._loaded.client.live_executables()))
            for known in list(_notes):
                if known not in living:
                    _notes.pop(known, None)
        _notes[id(self._loaded)] = name, nodes

    def memory_stats(self) -> Any:
        """Jaxlib's `CompiledMemoryStats`; None where the platform does not count them."""
        try:
            return self._loaded.get_compiled_memory_stats()
        except jax.errors.JaxRuntimeError:
            return None

    def text_and_notes(self) -> tuple[str, str, Mapping[str, Any]]:
        """The optimized HLO, and what `note` was given."""
        return text_and_notes(self._loaded)

    def hlo_text(self) -> str:
        """The optimized HLO that the platform runs."""
        return _text_of(self._loaded)
