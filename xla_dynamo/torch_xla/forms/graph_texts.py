"""Texts of what would compute tensors: ATen operators, StableHLO, HLO. Nothing is executed."""

import collections
import hashlib
import itertools
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.lazy.contents import cell_of
from xla_dynamo.lazy.pending_graphs import PendingGraph, pending_graph
from xla_dynamo.stablehlo.modules import artifact_of, module_of
from xla_dynamo.switches.pytorch_xla import HLO_DEBUG, SAVE_GRAPH_FMT
from xla_dynamo.torch_private import OpOverload, schema
from xla_dynamo.xla_builder.builder import Builder, Handle
from xla_dynamo.xla_builder.computations import Computation, computation_of_module, module_bytes
from xla_dynamo.xla_builder.op import mkop
from xla_dynamo.xla_builder.shapes import Shape, type_name_of
from xla_dynamo.xla_builder.user_computation import xla_computation_as_func

Node: TypeAlias = torch.fx.Node
Tensors: TypeAlias = Sequence[torch.Tensor]


def get_stablehlo(tensors: Tensors | None = None) -> str:
    """The graph that would compute tensors, as the text of StableHLO; nothing is executed.

    Args:
        tensors: the outputs; with None or none, all that is pending.

    If the environment variable XLA_HLO_DEBUG is 1, operations have the user's lines as locations.
    """
    module = pending_graph(tensors or None).module
    return module.operation.get_asm(enable_debug_info=HLO_DEBUG.get())


def get_stablehlo_bytecode(tensors: Tensors | None = None) -> bytes:
    """The same as a portable artifact of StableHLO."""
    return artifact_of(pending_graph(tensors or None).module)


def computation_of(graph: PendingGraph, name: str = "IrToHlo") -> Computation:
    """The computation of a pending graph."""
    return computation_of_module(name, module_bytes(graph.module))


def get_xla_tensors_hlo(tensors: Tensors) -> str:
    """The graph that would compute tensors, as the text of HLO."""
    return str(computation_of(pending_graph(tensors)).hlo().as_hlo_text())


def get_xla_tensors_hlo_proto(tensors: Tensors) -> bytes:
    """The graph that would compute tensors, as a serialized HloModuleProto."""
    return bytes(computation_of(pending_graph(tensors)).hlo().as_serialized_hlo_module_proto())


def get_graph_hash(tensors: Tensors) -> bytes:
    """16 bytes that graphs have in common which differ in tensors and changing numbers alone.

    They are those of one process.
    """
    key = str(pending_graph(tensors).key).encode()
    return hashlib.md5(key, usedforsecurity=False).digest()


# --- ATen ---------------------------------------------------------------------------------------


class _Line:
    """A line of the text: an operator with operands, which are other lines.

    Attributes:
        operands: the numbers of the lines, as texts.
        attributes: what else the operator is given, as "name=value".
    """

    def __init__(self, name: str, shape: str, operands: list[str], attributes: list[str]) -> None:
        self.name, self.shape = name, shape
        self.operands, self.attributes = operands, attributes

    def __str__(self) -> str:
        more = "".join(f", {a}" for a in [f"xla_shape={self.shape}", *self.attributes])
        return f"{self.shape} {self.name}({', '.join(self.operands)}){more}"


class _Lines:
    """The lines of a graph, in their order."""

    def __init__(self, graph: PendingGraph) -> None:
        self.lines: list[_Line] = []
        self._graph = graph
        self._names: dict[Node, str] = {}
        nodes = graph.gm.graph.nodes
        placeholders = graph.gm.graph.find_nodes(op="placeholder")
        further = placeholders[len(graph.values) :]
        self._numbers = further[0] if further and _is_of_numbers(graph) else None
        for node in nodes:
            if node.op == "call_function":
                self._call(node)
        outputs: Any = graph.gm.graph.output_node().args[0]
        for number, node in enumerate(outputs):
            name = self._name_of(node)
            line = self.lines[int(name[1:].partition(".")[0])]
            line.attributes.append(f"ROOT={number}")

    def _add(self, name: str, shape: str, operands: list[str], attributes: list[str]) -> str:
        self.lines.append(_Line(name, shape, operands, attributes))
        return f"%{len(self.lines) - 1}"

    def _name_of(self, node: Node) -> str:
        """The line of a node; of an input it is written when the input is first read."""
        if node not in self._names:
            where = ["device=xla:0"]
            self._names[node] = self._add("xla::device_data", _shape(node), [], where)
        return self._names[node]

    def _call(self, node: Node) -> None:
        source = node.args[0] if node.args else None
        number = self._number(node)
        if number is not None:
            self._names[node] = self._add("prim::Constant", _shape(node), [], [f"value={number}"])
        elif isinstance(source, torch.fx.Node) and node.name.startswith("getitem"):
            self._names[node] = f"{self._name_of(source)}.{node.args[1]}"
        elif isinstance(source, torch.fx.Node) and _copies_a_result(node):
            self._names[node] = self._name_of(source)
        elif isinstance(node.target, OpOverload):
            self._operator(node, node.target)
        else:  # of random numbers, with a key and an operator
            op, *rest = node.args[1:]
            operands = [self._name_of(n) for n in _nodes((source, rest, node.kwargs))]
            name = schema(op).name if isinstance(op, OpOverload) else str(node.target)
            self._names[node] = self._add(name, _shape(node), operands, [f"args={rest}"])

    def _number(self, node: Node) -> float | None:
        """The changing number that a node selects."""
        if self._numbers is None or node.args[:1] != (self._numbers,):
            return None
        return float(self._graph.others[0][node.args[2]])

    def _operator(self, node: Node, op: OpOverload) -> None:
        operands: list[str] = []
        attributes: list[str] = []
        arguments = schema(op).arguments
        given = {a.name: value for a, value in zip(arguments, node.args, strict=False)}
        for argument in reversed(arguments):  # numbers come first, as PyTorch/XLA writes them
            value = {**given, **node.kwargs}.get(argument.name)
            if value is None:
                continue
            if nodes := list(_nodes(value)):
                operands[:0] = [self._name_of(n) for n in nodes]
            elif str(argument.type) in ("Tensor", "number") and not isinstance(value, list):
                told = _shape_of((), torch.tensor(value).dtype)
                operands.insert(0, self._add("prim::Constant", told, [], [f"value={value}"]))
            else:
                attributes.insert(0, f"{argument.name}={value}")
        place = _location(node)
        attributes += [f"location={place}"] if place else []
        self._names[node] = self._add(schema(op).name, _shape(node), operands, attributes)


def _is_of_numbers(graph: PendingGraph) -> bool:
    return bool(graph.others) and graph.others[0].dtype is torch.float64


def _copies_a_result(node: Node) -> bool:
    """Whether a node is the copy that every output of the device is."""
    is_copy = node.target is torch.ops.aten.clone.default
    return is_copy and all(user.op == "output" for user in node.users)


def _nodes(value: Any) -> Iterator[Node]:
    found: list[Node] = []
    torch.fx.map_arg(value, found.append)
    return iter(found)


def _location(node: Node) -> str:
    """The user's line, as "function@file:line"."""
    lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    if not places:
        return ""
    file, line, function = (part.strip() for part in places[-1].split(",", 2))
    name = os.path.basename(file.removeprefix("File ").strip('"'))
    return f"{function.removeprefix('in ')}@{name}:{line.removeprefix('line ')}"


def _shape(node: Node) -> str:
    fake = node.meta.get("val")
    if isinstance(fake, torch.Tensor):
        return _shape_of(tuple(fake.shape), fake.dtype)
    parts = [x for x in fake or () if isinstance(x, torch.Tensor)]
    return f"({', '.join(_shape_of(tuple(x.shape), x.dtype) for x in parts)})"


def _shape_of(sizes: Sequence[int], dtype: torch.dtype) -> str:
    layout = "{" + ",".join(map(str, reversed(range(len(sizes))))) + "}" if sizes else ""
    return f"{type_name_of(dtype)}[{','.join(map(str, sizes))}]{layout}"


def get_xla_tensors_text(tensors: Tensors) -> str:
    """The graph that would compute tensors, a line for each operator of ATen.

    It is what is lowered: functional, and decomposed where an operator has no rule of its own.
    """
    lines = _Lines(pending_graph(tensors)).lines
    told = "".join(f"  %{number} = {line}\n" for number, line in enumerate(lines))
    return f"IR {{\n{told}}}\n"


def get_xla_tensors_dot(tensors: Tensors) -> str:
    """The graph that would compute tensors, for Graphviz."""
    lines = _Lines(pending_graph(tensors)).lines
    told = ["digraph G {"]
    for number, line in enumerate(lines):
        label = "\\n".join([line.name, line.shape, *line.attributes]).replace('"', "'")
        told.append(f'  node{number} [label="{label}"]')
    for number, line in enumerate(lines):
        for operand in line.operands:
            source = operand[1:].partition(".")[0]
            told.append(f"  node{source} -> node{number}")
    return "\n".join([*told, "}", ""])


def get_xla_tensor_shape_type(tensor: torch.Tensor) -> str:
    """XLA's name of a tensor's element type."""
    return type_name_of(tensor.dtype)


def get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """What a tensor of the 'xla' device is: pending, with its last operator, or computed."""
    if tensor.device.type != "xla":
        return "Not a XLATensor\n"
    value = cell_of(tensor).value
    shape = _shape_of(tuple(tensor.shape), tensor.dtype)
    lines = [f"Device: {tensor.device}", f"XLA Shape: {shape}"]
    if value.record is None:
        lines += ["IR: None", f"XLAData:\n  Data Shape: {shape}"]
    else:
        lines += [f"IR: {_Lines(pending_graph([tensor])).lines[-1]}", "XLAData: None"]
    return "\n".join(["XLATensor {", *lines, "Tensor on host: None", "}", ""])


# --- files --------------------------------------------------------------------------------------

_FORMATS = {
    "text": get_xla_tensors_text,
    "dot": get_xla_tensors_dot,
    "hlo": get_xla_tensors_hlo,
    "stablehlo": get_stablehlo,
}
_numbers: dict[Any, Iterator[int]] = collections.defaultdict(itertools.count)
_lock = threading.Lock()


def save_tensors_graph(save_dir: str | os.PathLike[str], name: str, tensors: Tensors) -> None:
    """Write the graph that would compute tensors to `save_dir/name-thread-number.format`.

    The environment variable SAVE_GRAPH_FMT has the format: "text" (the default), "dot", "hlo" or
    "stablehlo".

    Raises:
        OptionError: it is another one.
    """
    form = SAVE_GRAPH_FMT.get()
    text = _FORMATS[form](tensors)
    thread = threading.current_thread().ident
    with _lock:
        number = next(_numbers[thread, name])
    (pathlib.Path(save_dir) / f"{name}-{thread}-{number}.{form}").write_text(text)


# --- of the extension in C++ --------------------------------------------------------------------


def get_stablehlo_of_extension(
    tensors: Tensors, device: Any = "", devices: Sequence[Any] = (), emit_bytecode: bool = False
) -> bytes:
    """The graph that would compute tensors, as bytes: a portable artifact, or text."""
    return get_stablehlo_bytecode(tensors) if emit_bytecode else get_stablehlo(tensors).encode()


def run_stablehlo(bytecode: bytes, args: Tensors) -> list[torch.Tensor]:
    """The results of a module of StableHLO, as a portable artifact, for tensors."""
    module = module_bytes(module_of(bytecode))
    return xla_computation_as_func(computation_of_module("stablehlo", module))(args)


def user_computation(opname: str, inputs: Tensors, computation: Computation) -> list[torch.Tensor]:
    """The results of a computation for tensors."""
    return xla_computation_as_func(computation, opname)(inputs)


def op_create(builder: Builder, opname: str, operands: Sequence[Handle], args: Any) -> Handle:
    """What `mkop` makes, without the `Op` around it."""
    return mkop(opname, operands, **{**args, "builder": builder}).op


def op_param(builder: Builder, param_no: int, shape: Any) -> Handle:
    """What `mkparam` makes, without the `Op` around it."""
    return builder.parameter(param_no, Shape(shape))


def op_build(name: str, op: Handle) -> Computation:
    """The computation that returns a value of a builder."""
    return op.builder.build(name, op.value)
