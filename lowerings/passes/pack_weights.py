"""Convolutions whose weights are packed: oneDNN gets them in its own layout, and not at each call.

`freeze` moves what depends on parameters alone out of a program. Where all that a convolution by
oneDNN takes beside its image is such a value, it gets a handle of the convolution instead (`pack`),
which is made when the parameters have changed (`frozen_inputs`). Until `call_packed` has written
the calls, a convolution is a custom call of `PACKED`, on an array of handles and an image
[batch, *spatial, channels].
"""

import dataclasses
import json
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import Value, dtype_of, rank_of, shape_of

PACKED = "xla_dynamo.packed_convolution"
_ONEDNN = "__onednn$convolution"


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A convolution that a program executes by a handle.

    Attributes:
        keys: the keys of the frozen values that it reads: its weight, and its bias if it has one
            (see `freeze.Cut`).
        form: JSON, which says what it computes (see `call_packed`).
    """

    keys: tuple[str, ...]
    form: str = ""


def is_packable(op: ir.Operation) -> bool:
    """Whether an operation is a convolution that oneDNN computes with a packed weight.

    It is one of images of two dimensions in float32 by a kernel [out, in / groups, *window].
    """
    if op.name != "stablehlo.custom_call":
        return False
    if ir.StringAttr(op.attributes["call_target_name"]).value != _ONEDNN:
        return False
    x, *others = op.operands
    config = _config(op)
    numbers = config["kernel"]["filter"]
    plain = numbers["output_feature_dim"] == "0" and numbers["input_feature_dim"] == "1"
    fusions = config.get("fusions", {"ops": []})["ops"]
    return (
        plain
        and rank_of(x) == 4
        and {str(dtype_of(v)) for v in op.operands} == {"torch.float32"}
        and fusions == ["BIAS"] * (len(others) - 1)
    )


def pack(op: ir.Operation, handles: Value, number: int) -> None:
    """Let a packable convolution read a handle, by this number, and its image."""
    given, window = _config(op), _config(op)["window"]
    config = {
        "number": number,
        "kernel": shape_of(op.operands[1]),
        "low": list(map(int, window["pad_left"])),
        "high": list(map(int, window["pad_right"])),
        "stride": list(map(int, window["strides"])),
        "dilation": list(map(int, window["window_dilations"])),
        "groups": int(given["feature_groups"]),
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
