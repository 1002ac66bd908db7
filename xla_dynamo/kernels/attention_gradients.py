"""The gradients of torch's fused attention for the CPU."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import torch

from xla_dynamo.kernels.attention import HEADS_LAST, AttentionCall
from xla_dynamo.kernels.library_calls import python_kernel
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.table import Context
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.torch_shares import alone

aten = torch.ops.aten


@python_kernel
@dataclasses.dataclass(frozen=True)
class AttentionGradients(AttentionCall):
    """The gradients of query, key and value.

    Operands are the gradient of the output, query, key, value, the output, the logarithms of the
    sums and, last, the mask.
    """

    name = "attention_gradients"

    @classmethod
    def accept(cls, ctx: Context, *operands: Any, **settings: Any) -> Self | None:
        grad, query, key, value, output, _sums, mask = operands
        return cls.of(ctx, (query, key, value, grad, output), mask, **settings)

    def emit(self, ctx: Context, *operands: Any) -> list[Value]:
        """Their gradients, from that of the output and from both results of `Attention`."""
        types = [x.type for x in operands[1:4]]
        return self.call_on(ctx, operands[:-1], operands[-1], types, [HEADS_LAST] * 3)

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute a range."""
        inputs = (self.query, self.key, self.value)
        shapes = (self.output, *inputs, self.output)
        with alone():
            given = [self.at(share, *pair) for pair in zip(operands, shapes, strict=False)]
            sums = self.at(share, operands[5], self.sums, torch.float32)
            gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *given, sums, dropout_p=0.0, **self.settings(share, operands)
            )
            for address, shape, gradient in zip(results, inputs, gradients, strict=True):
                self.at(share, address, shape).copy_(gradient)
