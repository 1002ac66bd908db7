"""The name of what is compiled, which every log, report, dump and trace shows."""

import linecache
import os
import re

import torch

from xla_dynamo.graphs.source_lines import SourceLine, outermost_user_frame, source_line

_WHOLE_MODEL = re.compile(r"^L\['\w+'\]$")
_FORWARD = ("forward", "__call__")
_GENERATED = re.compile(r"^<.*>$")


def program_name(gm: torch.fx.GraphModule, kind: str) -> str:
    """A name of a graph's program, as "backward of LlamaForCausalLM" or "inference of f"."""
    return titled(kind, subject_of(gm))


def titled(kind: str, subject: str) -> str:
    """The name of what is made of a subject, which may be unknown ("")."""
    return f"{kind} of {subject}" if subject else kind


def subject_of(gm: torch.fx.GraphModule) -> str:
    """What a graph is made of: the model's class, else the outermost method or function.

    As "Net", "Net.encode", "f" or "lambda in model.py:41"; the class of a module of torch that is
    compiled itself; "" where nothing is known.
    """
    for node in gm.graph.nodes:
        modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        for path, kind in modules.values():
            if _WHOLE_MODEL.match(str(path)):
                return (kind if isinstance(kind, str) else kind.__qualname__).rpartition(".")[2]
            break
    for node in gm.graph.nodes:
        if line := outermost_user_frame(node.meta.get("stack_trace") or ""):
            return _of_line(line)
    for node in gm.graph.nodes:
        if line := source_line(node):  # torch's
            return _of_line(line)
    return ""


def _of_line(line: SourceLine) -> str:
    file = os.path.basename(line.file)
    if _GENERATED.match(line.function):  # a lambda, or the top of a script
        function = line.function.strip("<>")
        return (
            f"{file}:{line.line}" if function == "module" else f"{function} in {file}:{line.line}"
        )
    owner = _class_around(line)
    if line.function not in _FORWARD:
        return f"{owner}.{line.function}" if owner else line.function
    return owner or f"{line.function} in {file}"


def _class_around(line: SourceLine) -> str:
    """The class of the method that a line is in; "" of a function.

    By the indentation of `def` and `class`: parsing the file of a large model takes as long as
    lowering a small one.
    """
    depth = None
    for number in range(line.line, 0, -1):
        text = linecache.getline(line.file, number)
        begin = re.match(r"^(\s*)(?:async\s+)?(def|class)\s+(\w+)", text)
        if begin is None:
            continue
        indent, word, name = len(begin[1].expandtabs()), begin[2], begin[3]
        if depth is None:
            depth = indent if (word, name) == ("def", line.function) else None
        elif indent < depth:
            return name if word == "class" else ""
    return ""
