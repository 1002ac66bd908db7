"""Products with weights of 8 bits: PyTorch/XLA's `quantized_matmul` and `XlaQuantizedLinear`."""

import torch
import torch.nn.functional as F
from torch import nn

from xla_dynamo.torch_xla.kernels.operators import operator


def _check(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None,
    block_size: int,
) -> None:
    """Raise ValueError unless the weight and what scales it fit the input and each other."""
    size = x.shape[-1]
    if w.dtype != torch.int8:
        raise ValueError(f"a quantized weight is of int8, and not {w.dtype}")
    expected: tuple[int, ...]
    if block_size == -1:
        expected, of_scaler = (scaler.shape[0], size), tuple(w.shape[:1])
    elif size % block_size:
        raise ValueError(f"blocks of {block_size} do not divide the input's size, {size}")
    else:
        expected = (size // block_size, block_size, scaler.shape[-1])
        of_scaler = (size // block_size, w.shape[-1])
    if tuple(w.shape) != expected or tuple(scaler.shape) != of_scaler:
        raise ValueError(
            f"the weight is {tuple(w.shape)} and its scaler {tuple(scaler.shape)}, where an input "
            f"of size {size} asks for "
            + (
                "[outputs, inputs] and [outputs]"
                if block_size == -1
                else f"[inputs / {block_size}, {block_size}, outputs] and "
                f"[inputs / {block_size}, outputs]"
            )
        )
    if zero_point is not None and zero_point.shape != scaler.shape:
        raise ValueError(
            f"zero_point is {tuple(zero_point.shape)}, and the scaler {tuple(scaler.shape)}"
        )


@operator(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, "
    "int? block_size=-1, bool? int4_weight=False, bool? quantize_activation=False) -> Tensor"
)
def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int | None = -1,
    int4_weight: bool | None = False,
    quantize_activation: bool | None = False,
) -> torch.Tensor:
    """The product of an input and a quantized weight: x @ (w * scaler - zero_point).T.

    Args:
        x: [..., inputs].
        w: int8[outputs, inputs], or int8[inputs / block_size, block_size, outputs] in blocks.
        scaler: [outputs], or [inputs / block_size, outputs] in blocks.
        zero_point: the same, what is subtracted from the scaled weight; None for 0.
        block_size: how many inputs share a scale; -1 for all.
        int4_weight: whether the weight's values have four bits; they are one byte each.
        quantize_activation: whether the input is quantized, too, to int8 with a scale for each row.

    Returns:
        [..., outputs].

    Raises:
        ValueError: the sizes or dtypes do not fit, or blocks come with a quantized input.
    """
    block = -1 if block_size is None else block_size
    _check(x, w, scaler, zero_point, block)
    if block != -1:
        if quantize_activation:
            raise ValueError("quantize_activation has no blocks: leave block_size at -1")
        return _in_blocks(x, w, scaler, zero_point, block)
    if not quantize_activation:
        made = F.linear(x, w.to(x.dtype)) * scaler
        return made if zero_point is None else made - x.sum(-1, keepdim=True) * zero_point
    rows, scale = _quantized(x)
    made = torch.ops.aten._int_mm(rows.reshape(-1, x.shape[-1]), w.t()) * scaler
    made = made.reshape(*x.shape[:-1], -1)
    if zero_point is not None:
        made = made - rows.to(zero_point.dtype).sum(-1, keepdim=True) * zero_point
    return made * scale


def _in_blocks(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None,
    block_size: int,
) -> torch.Tensor:
    blocks = x.unflatten(-1, (-1, block_size))
    made = torch.einsum("sn,...sn->...n", scaler, torch.einsum("scn,...sc->...sn", w.to(x), blocks))
    return made if zero_point is None else made - blocks.sum(-1) @ zero_point


def _quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of int8, and their scales [..., 1] of x's dtype."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = torch.where(scale == 0, 1, scale)  # a row of zeros
    return torch.round(x / scale).to(torch.int8), scale.to(x.dtype)


@operator(
    "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None, "
    "Tensor? quant_block_size=None, bool quantize_activation=False, int? batch_block_size=None, "
    "int? out_block_size=None, int? in_block_size=None) -> Tensor"
)
def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: torch.Tensor | None = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """`quantized_matmul` of rows, in the dtype of the input.

    Args:
        x: [rows, inputs].
        w: int8[outputs, inputs].
        scalar: [outputs].
        zero_point: [outputs], or None for 0.
        quant_block_size: None; blocks have another form in `quantized_matmul`.
        quantize_activation: whether the input is quantized, too.
        batch_block_size: not used, for a kernel on TPU.
        out_block_size: not used, for a kernel on TPU.
        in_block_size: not used, for a kernel on TPU.

    Returns:
        [rows, outputs], of x's dtype.

    Raises:
        ValueError: the sizes or dtypes do not fit, or there is a `quant_block_size`.
    """
    if quant_block_size is not None:
        raise ValueError("quantized_matmul_int8 has no blocks: call quantized_matmul")
    made = quantized_matmul(x, w, scalar, zero_point, quantize_activation=quantize_activation)
    return made.to(x.dtype)


class XlaQuantizedLinear(nn.Module):
    """A linear layer without bias whose weight is quantized.

    Attributes:
        weight: int8, as `quantized_matmul` takes it.
        weight_scaler: its scales.
        zero_point: what is subtracted, or None.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ) -> None:
        """Take the sizes, and what `quantized_matmul` takes; the weight is 0 at first."""
        super().__init__()
        self.input_dim, self.output_dim, self.is_symmetric = input_dim, output_dim, is_symmetric
        self.block_size, self.int4_weight = block_size, int4_weight
        self.quantize_activation = quantize_activation
        self.register_buffer("weight", torch.zeros(output_dim, input_dim, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(output_dim))
        zeros = None if is_symmetric else torch.zeros(output_dim)
        self.register_buffer("zero_point", zeros)

    def load_quantized_weight(
        self,
        weight: torch.Tensor,
        weight_scaler: torch.Tensor,
        zero_point: torch.Tensor | None = None,
    ) -> None:
        """Take a weight, its scales and its zero points.

        Raises:
            ValueError: the sizes or dtypes do not fit.
        """
        _check(torch.empty(self.input_dim), weight, weight_scaler, zero_point, self.block_size)
        self.weight, self.weight_scaler, self.zero_point = weight, weight_scaler, zero_point

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product of [..., inputs] and the weight."""
        return quantized_matmul(
            x,
            self.weight,
            self.weight_scaler,
            self.zero_point,
            self.block_size,
            self.int4_weight,
            self.quantize_activation,
        )
