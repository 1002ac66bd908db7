"""What XLA cannot run, and why: each row is a line in the docs and two tests.

One must fail, with `fallback="error"`; one must pass, with the operator in eager torch between
compiled parts.
"""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Limitation:
    """An operator of torch's database that is not compiled whole at some dtypes.

    Attributes:
        op: the name in `op_db`, with ".variant" where it has one.
        dtypes: where it fails; elsewhere it must pass.
        reason: what stands in the way, for the person who would lift it.
    """

    op: str
    dtypes: tuple[torch.dtype, ...]
    reason: str


_F32, _I64 = torch.float32, torch.int64

_BY_VALUE = (
    "the size of the result depends on the values of a tensor; an XLA program has fixed sizes, so "
    "the graph must be cut at this operator"
)
_NUMBER = "reads a number from a tensor (item), on which the rest of the graph may depend"

LIMITATIONS: list[Limitation] = [
    Limitation("argwhere", (_F32, _I64), _BY_VALUE),
    Limitation("bincount", (_I64,), _BY_VALUE),
    Limitation("combinations", (_F32, _I64), _BY_VALUE),
    Limitation("masked_select", (_F32, _I64), _BY_VALUE),
    Limitation("nonzero", (_F32, _I64), _BY_VALUE),
    Limitation("repeat_interleave", (_F32, _I64), _BY_VALUE + " (repeats given as a tensor)"),
    Limitation("unique", (_F32, _I64), _BY_VALUE),
    Limitation("unique_consecutive", (_F32, _I64), _BY_VALUE),
    Limitation("__getitem__", (_F32, _I64), _BY_VALUE + " (a boolean mask as index)"),
    Limitation("nn.functional.one_hot", (_I64,), _BY_VALUE + " (num_classes=-1)"),
    Limitation("item", (_F32, _I64), _NUMBER),
    Limitation("narrow", (_F32, _I64), _NUMBER + " (the start given as a tensor)"),
    Limitation("tensor_split", (_F32, _I64), _NUMBER + " (the places given as a tensor)"),
    Limitation("chalf", (_F32, _I64), "StableHLO has no complex numbers of two float16"),
    Limitation(
        "nn.functional.linear_cross_entropy.chunked",
        (_F32,),
        "an opaque Python operator of torch.nn, whose loop over chunks Dynamo does not see",
    ),
    Limitation(
        "nn.functional.linear_cross_entropy.chunked_none",
        (_F32,),
        "an opaque Python operator of torch.nn, whose loop over chunks Dynamo does not see",
    ),
]


# Operators that torch itself cannot compile with fullgraph=True (`backend="aot_eager"` fails on
# every sample too), or that eager does not run on the CPU. They count neither way.
_STOPS = frozenset(
    {
        # a truth value that depends on data
        "allclose", "corrcoef", "cov", "equal",
        # Dynamo does not trace resizing
        "resize_", "resize_as_",
        # sparse tensors
        "to_sparse",
        # for GPUs alone
        "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
        "jiterator_binary_return_by_ref", "jiterator_unary",
    }
)  # fmt: skip
_STOPS_OF_FLOATS = frozenset(
    {
        # a size that depends on data
        "linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss",
        "nn.functional.gaussian_nll_loss",
        # sparse tensors
        "sparse.mm.reduce", "sparse.sampled_addmm",
    }
)  # fmt: skip
_FLOATS_ALONE = frozenset({"allclose"})
TORCH_STOPS: dict[torch.dtype, frozenset[str]] = {
    _F32: _STOPS | _STOPS_OF_FLOATS,
    _I64: _STOPS - _FLOATS_ALONE,
}


# Operators whose gradients at float32 are not compiled whole: those of the rows above, and some.
_NO_GRADIENT_RULE = "the gradient has no rule: it runs in eager torch"
_WITHOUT_GRADIENT = frozenset({"argwhere", "item", "nonzero", "unique", "unique_consecutive"})
GRADIENT_LIMITATIONS: list[Limitation] = [
    *(r for r in LIMITATIONS if _F32 in r.dtypes and r.op not in _WITHOUT_GRADIENT),
    Limitation("index_fill", (_F32,), _BY_VALUE + " (a 0-d input: its gradient asks for unique)"),
    Limitation("index_put", (_F32,), _BY_VALUE + " (the gradient in the values written by a mask)"),
    Limitation("_segment_reduce.lengths", (_F32,), _NO_GRADIENT_RULE),
    Limitation("_segment_reduce.offsets", (_F32,), _NO_GRADIENT_RULE),
]

# Operators whose gradients torch itself cannot compile with fullgraph=True.
GRADIENT_TORCH_STOPS = frozenset(
    {
        "corrcoef", "cov", "linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss",
        "nn.functional.gaussian_nll_loss", "sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse",
    }
)  # fmt: skip
