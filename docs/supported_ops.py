"""Write docs/supported-ops.md from the lowering table.

`make docs` runs it; `tests/test_structure.py` fails when what it would write is not what is there.
"""

import importlib
import pathlib

import torch

from tests.limitations import (
    DTYPES,
    GRAPH_BREAKS,
    LIMITATIONS,
    NOT_ON_CPU,
    Limitation,
    limitation,
)
from tests.op_database import full_name, operators
from xla_dynamo.lowerings import FAMILIES
from xla_dynamo.lowerings.builders.dtypes import SUPPORTED_DTYPES, dtype_name
from xla_dynamo.lowerings.table import REGISTERED_IN, TABLE
from xla_dynamo.torch_private import OpOverload, all_operator_names, schema

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "supported-ops.md"


def by_family() -> dict[str, list[str]]:
    """The names of the overloads with a rule, by the file the rule is in."""
    families: dict[str, list[str]] = {family.__name__: [] for family in FAMILIES}
    for op in TABLE:
        family = families.get(REGISTERED_IN[op])
        if family is not None:  # not a user's, nor that of functions of JAX
            family.append(op)
    return {family: sorted(names) for family, names in families.items()}


def core_overloads() -> list[OpOverload]:
    """Every ATen overload that this PyTorch tags `core`."""
    ops = []
    for name in all_operator_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(torch.ops.aten, packet):
            ops.append(getattr(getattr(torch.ops.aten, packet), overload or "default", None))
    return sorted((op for op in ops if op is not None and torch.Tag.core in op.tags), key=str)


def purpose(family: str) -> str:
    """The first line of a family file's docstring."""
    return (importlib.import_module(family).__doc__ or "").strip().splitlines()[0].rstrip(".")


def counts() -> str:
    """The first line: how many families, overloads, and core overloads of PyTorch have rules."""
    families = [names for names in by_family().values() if names]
    core = core_overloads()
    covered = sum(str(op) in TABLE for op in core)
    return (
        f"{sum(map(len, families))} overloads in {len(families)} families of operators have a "
        f"rule, {covered} of the {len(core)} that PyTorch tags `core` among them (the others are "
        "sizes, or run in torch). Torch's decompositions rewrite the rest of ATen into these."
    )


def _file(family: str) -> str:
    """The link to a family's file."""
    return "../" + family.removeprefix("xla_dynamo.").replace(".", "/") + ".py"


def summary() -> list[str]:
    """The table of families: a line for each file of rules."""
    lines = ["| family | operators | overloads |", "|---|---|---:|"]
    lines += [
        f"| [{family.rpartition('.')[2]}]({_file(family)}) | {purpose(family)} | {len(names)} |"
        for family, names in by_family().items()
        if names
    ]
    return lines


def coverage() -> list[str]:
    """The rows of the table that says how the database runs, and the sum of the first form's."""

    def count(form: str, dtype: torch.dtype) -> tuple[int, int, int]:
        names = [n for op in operators(dtype, form) if (n := full_name(op)) not in NOT_ON_CPU]
        limited = sum(limitation(name, dtype, form) is not None for name in names)
        breaks = len(GRAPH_BREAKS[form][dtype] & set(names))
        return len(names), limited, breaks

    values = {dtype_name(dtype): count("values", dtype) for dtype in DTYPES["values"]}
    rows = {**values, "all": tuple(map(sum, zip(*values.values(), strict=True)))}
    for dtype in DTYPES["gradients"]:
        rows[f"gradients, {dtype_name(dtype)}"] = count("gradients", dtype)
    return [
        f"| {name} | {n} | {n - limited - breaks} ({(n - limited - breaks) / n:.1%}) | {limited} "
        f"| {breaks} |"
        for name, (n, limited, breaks) in rows.items()
    ]


def _rows(table: list[Limitation]) -> list[str]:
    lines = ["| operator | dtypes | why |", "|---|---|---|"]
    for row in sorted(table, key=lambda row: row.op):
        names = ", ".join(map(dtype_name, row.dtypes))
        lines.append(f"| `{row.op}` | {names} | {row.reason} |")
    return lines


def page() -> str:
    """The page of all operators and all limitations."""
    dtypes = ", ".join(f"`{dtype_name(d)}`" for d in SUPPORTED_DTYPES)
    lines = [
        "# Supported operators",
        "",
        "Written by `make docs` from the lowering table and `tests/limitations.py`; do not edit.",
        "",
        counts(),
        "",
        f"Dtypes: {dtypes}.",
        "",
        "## Torch's operator database",
        "",
        "Every sample input of every operator of `op_db` that runs on the CPU is compared with "
        "eager: values, dtypes, shapes, strides (`make test-all`; `make test` takes a few samples "
        "at float32 and int64). All of them pass; this is how they run.",
        "",
        "| | operators | compiled whole | partly in eager torch | in pieces, as Dynamo breaks the "
        "graph |",
        "|---|---:|---:|---:|---:|",
        *coverage(),
        "",
        "## Limitations",
        "",
        "Operators of the database that XLA cannot run whole, at some dtypes. Torch runs them "
        "between compiled parts. Each row is a test that must fail under "
        '`options={"fallback": "error"}`, and one that must pass without.',
        "",
        *_rows(LIMITATIONS["values"]),
        "",
        "And those whose gradients it cannot (at float32 and complex64):",
        "",
        *_rows([r for r in LIMITATIONS["gradients"] if r not in LIMITATIONS["values"]]),
    ]
    lines += ["", "## Families", "", *summary()]
    without = [op for op in core_overloads() if str(op) not in TABLE]
    lines += ["", "## Core overloads without a rule of their own", ""]
    lines += [f"- `{op}`: {_why_not(op)}" for op in without] or ["None."]
    for family, names in by_family().items():
        if names:
            lines += ["", f"## {family}", "", purpose(family) + ".", ""]
            lines += [f"- `{name}`" for name in names]
    return "\n".join(lines) + "\n"


def _why_not(op: OpOverload) -> str:
    name = schema(op).name.removeprefix("aten::")
    if name.startswith("sym_"):
        return "a size of the graph, which lowering knows as a number"
    if "out" in op._overloadname or name.endswith("_"):
        return "AOTAutograd makes it functional"
    return "what it gives depends on the values of a tensor: torch runs it between compiled parts"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
