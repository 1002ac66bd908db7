"""Which products pay as plans, and how a plan divides them: by processor family, as measured.

A family that is not in the table has not been measured, and its products are XLA's. Figures and
commands are in bench/RESULTS.md ("Products"); `python -m bench.products` measures a machine.
"""

from typing import NamedTuple

import torch

from xla_dynamo.runtime.cpu.features import family


class Choice(NamedTuple):
    """What was measured of a dtype on a family.

    Attributes:
        fewest: multiplications from which a plan pays.
        fewest_rows: rows from which threads share the rows and not the columns, where both factors
            come with a call.
        fewest_packed: rows from which a packed weight pays.
        fewest_packed_rows: rows from which threads share the rows, where the weight is packed.
        thin_stacks: whether it also pays for stacked products of one row each.
    """

    fewest: int
    fewest_rows: int
    fewest_packed: int
    fewest_packed_rows: int
    thin_stacks: bool


_NEVER = 1 << 62
# oneDNN 3.2 has no AMX kernel for a result with gaps, as a range of columns is, and for float32 its
# other kernel is the faster one.
AVX512 = {
    torch.float32: Choice(1 << 19, _NEVER, 4, 64, thin_stacks=False),
    torch.bfloat16: Choice(1 << 18, 64, 12, 16, thin_stacks=True),
}
CHOICES = {"intel avx512 amx": AVX512}


def are_measured() -> bool:
    """Whether this processor's family is in the table."""
    return family() in CHOICES


def choice(dtype: torch.dtype) -> Choice:
    """What to choose for a dtype, here or on the most similar family that is known."""
    return CHOICES.get(family(), AVX512)[dtype]


def pays(dtype: torch.dtype, stack: int, rows: int, inner: int, columns: int) -> bool:
    """Whether so many stacked products of these sizes are to be a plan."""
    known = choice(dtype)
    if columns == 1 or (rows == 1 and stack > 1 and not known.thin_stacks):
        return False
    return stack * rows * inner * columns >= known.fewest
