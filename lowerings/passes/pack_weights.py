"""Convolutions whose weights are packed: oneDNN gets them in its own layout, and not at each call.

`freeze` moves what depends on parameters alone out of a program. Where all that a convolution by
oneDNN takes beside its image is such a value, it gets handles of it instead (`pack`), which are
made when the parameters have changed (`frozen_inputs`). Until `call_packed` has written the calls,
a convolution is a custom call of `PACKED`, on an array of handles and an image
[batch, *spatial, channels].
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.cpu_thresholds import FEWEST_WITH_PACKED_WEIGHT
from xla_dynamo.lowerings.builders.values import Value, dtype_of, numel_of, rank_of, shape_of

PACKED = "xla_dynamo.packed_convolution"
# The name under which `Target.libraries` has convolutions of torch's with packed weights.
TORCH_PACKED = "torch_packed"
_ONEDNN = "__onednn$convolution"


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A frozen value that a program reads by a handle.

    Attributes:
        key: the key of the value (see `freeze.Cut`).
        window: of the weight of a convolution what it is packed for: padding, stride, dilation,
            the number of groups and the shape of the image; () for a value that stays as it is.
    """

    key: str
    window: tuple[Any, ...] = ()


def is_packable(op: ir.Operation) -> bool:
    """Whether an operation is a convolution that torch computes with a packed weight.

    It is one of images of two dimensions in float32, with the same padding on both sides, by a
    kernel [out, in / groups, *window], with many multiplications.
    """
    if op.name != "stablehlo.custom_call":
        return False
    if ir.StringAttr(op.attributes["call_target_name"]).value != _ONEDNN:
        return False
    x, kernel, *bias = op.operands
    # Each element of the result has one product for each of its channel's elements of the kernel.
    multiplications = numel_of(op.results[0]) * numel_of(kernel) // max(shape_of(kernel)[0], 1)
    if multiplications < FEWEST_WITH_PACKED_WEIGHT:
        return False
    config = _config(op)
    window, numbers = config["window"], config["kernel"]["filter"]
    plain = numbers["output_feature_dim"] == "0" and numbers["input_feature_dim"] == "1"
    fusions = config.get("fusions", {"ops": []})["ops"]
    return (
        plain
        and rank_of(x) == 4
        and {str(dtype_of(v)) for v in op.operands} == {"torch.float32"}
        and window["pad_left"] == window["pad_right"]
        and fusions == ["BIAS"] * len(bias)
    )


def window_of(op: ir.Operation) -> tuple[Any, ...]:
    """What the weight of a packable convolution is packed for (see `Packed`)."""
    config, window = _config(op), _config(op)["window"]
    batch, *spatial, channels = shape_of(op.operands[0])
    lists = [window[name] for name in ("pad_left", "strides", "window_dilations")]
    return (
        *(tuple(map(int, numbers)) for numbers in lists),
        int(config["feature_groups"]),
        (batch, channels, *spatial),
    )


def pack(op: ir.Operation, handles: Value, numbers: Sequence[int]) -> None:
    """Let a packable convolution read the values of handles, by these numbers, and no others."""
    padding, stride, dilation, groups, _ = window_of(op)
    config = {
        "handles": list(numbers),
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
    }
    with ir.InsertionPoint(op), op.location:
        new = hlo.CustomCallOp(
            [op.results[0].type],
            [handles, op.operands[0]],
            PACKED,
            backend_config=ir.StringAttr.get(json.dumps(config)),
        )
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()


def _config(op: ir.Operation) -> Any:
    """The configuration of a convolution by oneDNN."""
    return json.loads(ir.StringAttr(op.attributes["backend_config"]).value)["onednn_conv_config"]
