"""Convolutions by the oneDNN that jaxlib brings for x86, and that XLA:CPU runs itself.

A custom call of XLA's own target (xla/service/cpu/onednn_convolution.cc) runs in XLA's threads and
writes into XLA's memory. Its configuration is the JSON form of onednn_config.proto. A call that
oneDNN refuses ends the process, so there is no specification of such a call.
"""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.library_calls import (
    LARGEST_IN_ONEDNN,
    ONEDNN_LIBRARIES,
    library_call,
    numbers,
)
from xla_dynamo.lowerings.builders.convolution_window import Window
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import Value, dtype_of, numel_of, shape_of
from xla_dynamo.lowerings.kernels import Kernel, register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN_PACKED, TORCH

# Multiplications below which a call costs more than it gains: `python -m bench.forms`, with and
# without `--dtype bfloat16`.
FEWEST_IN_CONVOLUTION = 1 << 19


@register
@dataclasses.dataclass(frozen=True)
class OneDNNConvolution(Kernel):
    """A convolution of images [batch, channel, *spatial], with the channels innermost in memory.

    Attributes:
        image: the shape of the image.
        kernel: that of the kernel.
        result: that of the result.
        kernel_dims: the dimensions of the kernel that are those of output and input channels.
        stride: of the window, one number for each spatial dimension.
        low: the padding before the image, likewise.
        high: the padding behind it, likewise.
        dilation: likewise.
        groups: of channels.
        dtypes: of image and kernel, and of the result.
        bias: whether a bias is added.
    """

    name = "convolution"
    target = "__onednn$convolution"
    takes_images = True
    libraries: ClassVar = ONEDNN_LIBRARIES

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    kernel_dims: tuple[int, int]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtypes: tuple[torch.dtype, torch.dtype]
    bias: bool

    def check(self) -> None:
        """It is one that oneDNN (3.x) gets right.

        Its kernels for bfloat16, and some for float32, read beyond the image where the result has
        one element in a strided dimension, where all that some window sees is padding, and where an
        image of three dimensions is thinner than the window. tests/lowerings/test_onednn.py has
        examples.

        Without AVX-512, what convolves each channel of one dimension by itself multiplies matrices
        in threads that threads of its own wait for, and XLA has one state for both: it crashes, or
        hangs.
        """
        shapes, rank = (self.image, self.kernel, self.result), len(self.result)
        sizes = [*itertools.chain(*shapes)]
        if not 3 <= rank <= 5 or {*map(len, shapes)} != {rank} or min(sizes) < 1:
            self.refuse(f"the shapes are {shapes}")
        window, steps = (
            (self.stride, self.low, self.high, self.dilation),
            self.stride + self.dilation,
        )
        if {*map(len, window)} != {rank - 2} or min(steps) < 1 or {*self.kernel_dims} != {0, 1}:
            self.refuse(f"the window is {window}, and the kernel's channels are {self.kernel_dims}")
        given, made = self.dtypes
        if given not in self.libraries or made not in (given, torch.float32):
            self.refuse(f"the dtypes are {self.dtypes}")
        if max(map(math.prod, shapes)) > LARGEST_IN_ONEDNN:
            self.refuse("oneDNN counts in 32 bits")
        out, inner = (self.kernel[d] for d in self.kernel_dims)
        divided = self.image[1] == inner * self.groups and out % self.groups == 0
        if self.result[:2] != (self.image[0], out) or not divided:
            self.refuse(f"a kernel {self.kernel} in {self.groups} groups on images {self.image}")
        if rank == 3 and inner == 1 < self.image[1]:
            self.refuse("each channel of one dimension would be convolved by itself")
        thin = False
        spatial = zip(*(shape[2:] for shape in shapes), *window, strict=True)
        for n, k, out, stride, low, high, dilation in spatial:
            reach = (k - 1) * dilation + 1
            thin = thin or n < reach
            if out != (n + low + high - reach) // stride + 1 or (out == 1 and stride > 1):
                self.refuse(f"a result of {out} elements, one for {stride} of the image")
            if not (0 <= low < reach and 0 <= high < reach):
                self.refuse("the window fits into the padding")
            places = itertools.product(range(out), range(k))
            if not any(0 <= i * stride + j * dilation - low < n for i, j in places):
                self.refuse("windows see nothing but padding")
        if rank == 5 and self.dtypes[0] is torch.bfloat16 and (thin or inner < 4):
            self.refuse("the image is too thin, or has too few channels")

    @classmethod
    def accept(
        cls,
        ctx: Context,
        x: Value,
        kernel: Value,
        bias: Value | None,
        *,
        shape: Sequence[int],
        dtype: torch.dtype,
        window: Window,
        kernel_dims: tuple[int, int],
        groups: int,
    ) -> Self | None:
        given, padding = dtype_of(x), window.padding
        if ctx.trains and TORCH not in ctx.libraries and given is torch.float32:
            return None  # weight gradients are XLA's own, and have the channels elsewhere
        # `pack_weights` makes calls that cost little of those on images of two dimensions.
        may_pack = ONEDNN_PACKED in ctx.libraries and not ctx.trains and len(shape) == 4
        fewest = 0 if may_pack and dtype is torch.float32 else FEWEST_IN_CONVOLUTION
        if set(window.image_dilation) != {1} or 0 in shape:
            return None
        if math.prod(shape) * numel_of(kernel) // shape[1] < fewest:
            return None
        with contextlib.suppress(LoweringError):
            return cls(
                image=shape_of(x),
                kernel=shape_of(kernel),
                result=tuple(shape),
                kernel_dims=kernel_dims,
                stride=tuple(window.stride),
                low=tuple(low for low, _ in padding),
                high=tuple(high for _, high in padding),
                dilation=tuple(window.dilation),
                groups=groups,
                dtypes=(given, dtype),
                bias=bias is not None,
            )
        return None

    def emit(self, ctx: Context, *operands: Any) -> Value:
        rank, given = len(self.result), [x for x in operands if x is not None]
        orders = [channels_last(rank), range(rank), [0]][: len(given)]
        type_, config = tensor_type(list(self.result), self.dtypes[1]), self.configuration()
        return library_call(self.target, config, given, orders, [type_], orders[:1])[0]

    def configuration(self) -> ir.Attribute:
        """The configuration that XLA reads."""
        rank = len(self.result)
        places, (out, inner) = numbers(range(1, rank - 1)), numbers(self.kernel_dims)
        image = {"data": {"batch_dim": "0", "feature_dim": str(rank - 1), "spatial_dims": places}}
        features = {"input_feature_dim": inner, "output_feature_dim": out}
        window = {
            "pad_left": numbers(self.low),
            "pad_right": numbers(self.high),
            "strides": numbers(self.stride),
            "window_dilations": numbers(self.dilation),
        }
        config: dict[str, Any] = {
            "dims": str(rank),
            "feature_groups": str(self.groups),
            "input": image,
            "kernel": {"filter": {**features, "spatial_dims": numbers(range(2, rank))}},
            "output": image,
            "window": window,
        }
        if self.bias:
            config["fusions"] = {"ops": ["BIAS"]}
        return ir.StringAttr.get(json.dumps({"onednn_conv_config": config}))

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self:
        """The specification of a call that `emit` has written."""
        text = ir.StringAttr(op.attributes["backend_config"]).value
        config = json.loads(text)["onednn_conv_config"]
        features, window = config["kernel"]["filter"], config["window"]

        def places(name: str) -> tuple[int, ...]:
            return tuple(map(int, window[name]))

        x, kernel, *bias = op.operands
        return cls(
            image=_channels_first(shape_of(x)),
            kernel=shape_of(kernel),
            result=_channels_first(shape_of(op.results[0])),
            kernel_dims=(int(features["output_feature_dim"]), int(features["input_feature_dim"])),
            stride=places("strides"),
            low=places("pad_left"),
            high=places("pad_right"),
            dilation=places("window_dilations"),
            groups=int(config["feature_groups"]),
            dtypes=(dtype_of(x), dtype_of(op.results[0])),
            bias=bool(bias),
        )


def _channels_first(shape: Sequence[int]) -> tuple[int, ...]:
    batch, *spatial, channels = shape
    return batch, channels, *spatial
