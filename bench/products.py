"""Which form of a matrix product is the fastest on this machine: what `product_choices` is made of.

`python -m bench.products [--dtype bfloat16]` prints µs a product, all forms in turn: eager torch,
torch's product with packed weights, XLA's own, and plans of ours whose threads share the rows or
the columns, with plain and with packed weights. `--write` puts the fastest forms of a larger list
into the table of this processor's family, `xla_dynamo/kernels/product_choices.json`.

A processor can stand in for another: `--family 'intel avx2'` with ONEDNN_MAX_CPU_ISA=AVX2,
ATEN_CPU_CAPABILITY=avx2 and XLA_FLAGS=--xla_cpu_max_isa=AVX2.
"""

import argparse
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.timing import positive, set_threads
from xla_dynamo.kernels import product_choices
from xla_dynamo.kernels.libraries import can_execute_packed
from xla_dynamo.kernels.product_choices import Sizes
from xla_dynamo.kernels.product_forms import choice_of, factors, forms_of
from xla_dynamo.kernels.trials import median_seconds
from xla_dynamo.runtime.cpu.features import family
from xla_dynamo.runtime.cpu.onednn import OneDNNError

# Stack, rows, inner size and columns; the second factor is the transpose of weights.
PRODUCTS = [
    (1, 1, 768, 3072),
    (1, 1, 4096, 4096),
    (1, 8, 768, 3072),
    (1, 32, 768, 3072),
    (1, 197, 192, 768),
    (1, 256, 768, 768),
    (1, 256, 768, 3072),
    (1, 256, 3072, 768),
    (1, 1024, 1024, 1024),
    (24, 128, 64, 128),
    (48, 197, 64, 197),
]
# Those that the table has: weights from small to large by few and many rows, columns of one, and
# attention's products.
_WEIGHTS = [
    (32, 32), (64, 256), (256, 64), (192, 768), (768, 192), (768, 768), (768, 3072), (3072, 768),
    (4096, 4096), (1024, 32000), (768, 16), (16, 768),
]  # fmt: skip
_ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024]
_STACKS, _STACKED = [4, 12, 48], [(1, 64, 128), (1, 128, 64), (16, 32, 16), (32, 64, 32),
    (128, 64, 128), (128, 128, 64), (197, 64, 197), (512, 64, 512), (512, 512, 64)]  # fmt: skip
_DTYPES = ("float32", "bfloat16")


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--write", action="store_true", help="write the table of the family")
    parser.add_argument("--family", default=family(), help="as which --write takes this machine")
    options = parser.parse_args()
    set_threads(options.threads)
    if not can_execute_packed():
        parser.error("there is no library of oneDNN's own here")
    if options.write:
        _write(options.family)
    else:
        _print(getattr(torch, options.dtype))


def _print(dtype: torch.dtype) -> None:
    table = Table(title=f"{dtype}: µs a product")
    for number, product in enumerate(PRODUCTS):
        sizes = Sizes(dtype, *product)
        times = median_seconds(peers(sizes) | forms_of(sizes), rounds=9, seconds=0.05)
        if not number:
            for column in ("", *times):
                table.add_column(column, justify="right" if column else "left")
        names = [str(column.header) for column in table.columns[1:]]
        name = " x ".join(map(str, product[product[0] == 1 :]))
        table.add_row(name, *(f"{times[k] * 1e6:.0f}" if k in times else "" for k in names))
    Console().print(table)


def peers(sizes: Sizes) -> dict[str, Callable[[], object]]:
    """The product by torch."""
    x, weight = factors(sizes)
    if sizes.stack > 1:
        return {"eager": lambda: x @ weight.mT}
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, sizes.rows)
    linear = torch.ops.mkldnn._linear_pointwise
    return {
        "eager": lambda: F.linear(x, weight),
        "torch, packed": lambda: linear(x, packed, None, "none", [], ""),
    }


def _write(name: str) -> None:
    tables = json.loads(product_choices.TABLE.read_text())
    tables[name] = {dtype: _rows(getattr(torch, dtype)) for dtype in _DTYPES}
    product_choices.TABLE.write_text(_as_text(dict(sorted(tables.items()))))


def _rows(dtype: torch.dtype) -> list[list[int | str]]:
    """Sizes, and the fastest forms of each product of the list."""
    found = []
    for sizes in track([Sizes(dtype, *sizes) for sizes in _listed()], str(dtype)):
        with contextlib.suppress(OneDNNError):  # it has no kernel for this dtype on this processor
            found.append([*sizes[1:5], *choice_of(median_seconds(forms_of(sizes)))])
    return found


def _listed() -> Iterator[Sequence[int]]:
    for rows, (inner, columns) in itertools.product(_ROWS, _WEIGHTS):
        if rows * columns <= 1 << 22:
            yield 1, rows, inner, columns
    yield from ((1, rows, 768, 1) for rows in (1, 16, 256))
    for stack, sizes in itertools.product(_STACKS, _STACKED):
        yield stack, *sizes


def _as_text(tables: Mapping[str, Mapping[str, Sequence[Sequence[int | str]]]]) -> str:
    """JSON with a line for each product."""
    families = []
    for name, by_dtype in tables.items():
        dtypes = [
            f'    "{dtype}": [\n      ' + ",\n      ".join(map(json.dumps, rows)) + "\n    ]"
            for dtype, rows in by_dtype.items()
        ]
        families.append(f'  "{name}": {{\n' + ",\n".join(dtypes) + "\n  }")
    return "{\n" + ",\n".join(families) + "\n}\n"


if __name__ == "__main__":
    main()
