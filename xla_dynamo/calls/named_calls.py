"""Calls of programs that `torch.profiler` shows under the programs' names."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xla_dynamo.graphs.node_notes import module_path
from xla_dynamo.graphs.source_lines import outermost_user_frame
from xla_dynamo.torch_private import is_profiling

Call = Callable[[list[Any]], list[Any]]
PREFIX = "xla_dynamo: "
COMPILATION = f"{PREFIX}compilation"
_nothing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def named(call: Call, name: str) -> Call:
    """The same call, an event of torch's profiler where one runs; else it costs 0.1 us."""
    title = PREFIX + name

    def named_call(args: list[Any]) -> list[Any]:
        if not is_profiling():
            return call(args)
        with torch.profiler.record_function(title):
            return call(args)

    return named_call


def program_name(gm: torch.fx.GraphModule, kind: str) -> str:
    """A name of a graph's program, as "backward of LlamaForCausalLM" or "inference of f"."""
    for node in gm.graph.nodes:
        modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        if modules:
            path, made = next(iter(modules.values()))
            if not module_path(path):  # the model itself, and not a part of it
                return f"{kind} of {made if isinstance(made, str) else made.__name__}"
        if (trace := node.meta.get("stack_trace")) and (line := outermost_user_frame(trace)):
            file = f" in {os.path.basename(line.file)}" if line.function == "forward" else ""
            return f"{kind} of {line.function}{file}"
    return kind


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let torch's profiler show that something is compiled in this block."""
    with torch.profiler.record_function(COMPILATION) if is_profiling() else _nothing:
        yield
