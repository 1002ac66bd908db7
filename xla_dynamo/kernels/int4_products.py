"""Products with weights in int4, as torch packs them for AVX-512, by machine code of ours."""

import dataclasses
from typing import Any, ClassVar, Self

import torch

from xla_dynamo.kernels.library_calls import python_kernel
from xla_dynamo.kernels.narrow_products import NarrowCall, Place, PlannedNarrowCall
from xla_dynamo.lowerings.builders.build import cast, reduce
from xla_dynamo.lowerings.builders.dtypes import dtype_name
from xla_dynamo.lowerings.builders.shapes import reshape
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.runtime.cpu import int4_products

SCALES = (torch.float32, torch.bfloat16)
CAPABILITY = "AVX512"  # what torch calls the processors that pack weights so


@python_kernel
@dataclasses.dataclass(frozen=True)
class Int4Product(NarrowCall):
    """x @ weight.T for float32 rows x [rows, inner] and a packed weight [columns, inner / 2].

    Attributes:
        group: how many elements of the inner size share a scale and a zero.
        dtype: of the pairs of scale and zero [groups, columns, 2].
    """

    name = "int4_product"
    together: ClassVar[int] = 64

    group: int
    dtype: torch.dtype

    def check(self) -> None:
        """Columns come in vectors of 16, and groups are whole."""
        super().check()
        if self.columns % 16 or self.group < 1 or self.inner % self.group or self.inner % 2:
            self.refuse(f"{self.columns} columns, {self.inner} rows of a weight in {self.group}s")
        if self.dtype not in SCALES:
            self.refuse(f"the scales are in {self.dtype}")

    @classmethod
    def accept(
        cls, ctx: Context, x: Value, weight: Value, scales: Value, *, group: int
    ) -> Self | None:
        (rows, inner), columns, dtype = shape_of(x), shape_of(weight)[0], dtype_of(scales)
        known = torch.backends.cpu.get_cpu_capability() == CAPABILITY
        if not known or not cls.pays(x, columns):
            return None
        return cls(rows, inner, columns, group, dtype if dtype in SCALES else torch.float32)

    def emit(self, ctx: Context, *operands: Any) -> Value:
        x, weight, scales = operands
        x = cast(x, torch.float32)
        groups = [self.rows, self.inner // self.group, self.group]
        sums = reduce(reshape(x, groups), [2], "sum")
        return self.written(ctx, x, sums, weight, cast(scales, self.dtype))

    def function(self) -> Any:
        """The function for the scales' dtype."""
        return int4_products.function(dtype_name(self.dtype))

    def arguments(self, share: range) -> tuple[list[Place], list[int]]:
        """The function takes whole operands, and from which to which column it computes."""
        places: list[Place] = [(number, 0) for number in range(5)]
        return places, [self.rows, self.inner, self.columns, self.group, share.start, share.stop]


@register
@dataclasses.dataclass(frozen=True)
class PlannedInt4Product(PlannedNarrowCall):
    """The same in XLA's threads."""

    name = "planned_int4_product"
    replaces = Int4Product.name
    kernel = Int4Product

    call: Int4Product
