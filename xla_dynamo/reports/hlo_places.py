"""The user's lines and modules that each instruction of optimized HLO comes from."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from xla_dynamo.reports.hlo_text import Instruction, Module
from xla_dynamo.reports.library_costs import kernel_of

# What the kernels of `xla_dynamo.kernels` compute, and whose code does.
_KERNELS = {
    "attention": "torch scaled_dot_product_attention",
    "attention_gradients": "torch scaled_dot_product_attention backward",
    "convolution": "oneDNN convolution",
    "grouped_outer_product": "torch grouped product",
    "grouped_product": "torch grouped product",
    "int4_product": "torch int4 product",
    "integer_product": "torch int8 product",
    "matrix_product": "oneDNN matmul",
    "narrow_product": "product with narrow weights (own code)",
    "packed_convolution": "oneDNN convolution",
    "paged_attention": "attention to a paged cache (own code)",
    "planned_attention": "torch scaled_dot_product_attention",
    "planned_attention_gradients": "torch scaled_dot_product_attention backward",
    "planned_int4_product": "int4 product (own code)",
    "planned_integer_product": "torch int8 product",
    "planned_narrow_product": "product with narrow weights (own code)",
    "planned_paged_attention": "attention to a paged cache (own code)",
    "planned_product": "oneDNN matmul",
    "row_product": "product of few rows (own code)",
    "weight_gradient": "oneDNN convolution backward",
    "weight_layout": "oneDNN layout of weights",
}
_TARGETS = {
    "__onednn$matmul": "oneDNN matmul",
    "__onednn$convolution": "oneDNN convolution",
    "TopK": "XLA TopK",
}


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of the user's program.

    Attributes:
        file, line: where it is; "" and 0 of what has none: what optimizers compute.
        operators: the graph's names of what is computed there, "mm" say, one behind the other.
        module: the path of the module that it runs in, as "layers.0.mlp"; "" in none.
        phase: "backward" of the gradient of the line, "optimizer: AdamW.step" say, else "".
    """

    file: str
    line: int
    operators: str = ""
    module: str = ""
    phase: str = ""


def places_of(module: Module, notes: Mapping[str, Any]) -> dict[str, tuple[Place, ...]]:
    """For each instruction, by name, the places that it comes from.

    A fusion, or a loop, has those of all instructions inside it. What XLA adds, as a copy to
    another layout, has those of what reads it, or else of what it reads.

    Args:
        module: the program.
        notes: the `NodeNote` of each node of the graph, by its name; nodes that have none are
            where the text says, which tells of the process that compiled it.
    """
    known: dict[str, tuple[Place, ...]] = {}

    def own(one: Instruction) -> set[Place]:
        place = _place(one, module, notes)
        return set() if place is None else {place}

    for name, one in module.instructions.items():
        found = own(one)
        for inner in module.inside(one):
            found |= own(inner)
        known[name] = tuple(sorted(found))
    for body in module.computations.values():
        _fill(body, known)
    return known


def _fill(body: Iterable[Instruction], known: dict[str, tuple[Place, ...]]) -> None:
    """Give instructions without places those of their readers, else of their operands."""
    readers: dict[str, list[str]] = defaultdict(list)
    for one in body:
        for operand in one.operands:
            readers[operand].append(one.name)
    for one in reversed([*body]):
        if not known[one.name] and one.opcode not in ("parameter", "tuple"):
            known[one.name] = next((known[r] for r in readers[one.name] if known[r]), ())
    for one in body:
        if not known[one.name] and one.opcode not in ("parameter", "tuple"):
            given = (known.get(operand, ()) for operand in one.operands)
            known[one.name] = next(filter(None, given), ())


def _place(one: Instruction, module: Module, notes: Mapping[str, Any]) -> Place | None:
    name = one.attribute("op_name")
    frame = module.frames.get(one.attribute("stack_frame_id"))
    if (note := notes.get(name)) is not None and (note.line or note.phase or note.path):
        line = note.line
        file, number = (line.file, line.line) if line and line.is_users else ("", 0)
        if not file and not note.phase and not note.path and line is not None:
            file, number = line.file, line.line  # torch's, where nobody else's is known
        return Place(file, number, name, note.module, note.phase)
    if frame is not None:
        file, number, function = frame
        return Place(file, number, name or function, "" if function == name else function)
    return Place("", 0, name) if name else None


def kind_of(one: Instruction) -> str:
    """What an instruction is, for people: its opcode, or the call of a library."""
    if one.opcode != "custom-call":
        return "XLA fusion" if one.opcode == "fusion" else f"XLA {one.opcode}"
    target = one.attribute("custom_call_target")
    return _KERNELS.get(kernel_of(one)) or _TARGETS.get(target) or f"call of {target}"
