"""What XLA cannot run, and why: each row is a line in the docs and two tests.

One must fail, with `fallback="error"`; one must pass, with the operator in eager torch between
compiled parts. The tables are by the form in which operators are called: see `op_forms.FORMS`.
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


# What torch's newer releases do is no limitation there.
_TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
_F32, _I64, _C64 = torch.float32, torch.int64, torch.complex64
_FLOATS = (_F32, torch.float64, torch.bfloat16)
_REAL = (_F32, _I64, torch.float64, torch.bfloat16, torch.int32, torch.bool)
_EVERY = (*_REAL, _C64)
# The dtypes of the sweep.
DTYPES = {
    "values": _EVERY,
    "gradients": (_F32, _C64),
    "in-place": _EVERY,
    "out": _EVERY,
    "literals": _REAL,
    "special": _FLOATS,
}

_BY_VALUE = (
    "the size of the result depends on the values of a tensor; an XLA program has fixed sizes, so "
    "the graph must be cut at this operator"
)
_NUMBER = "reads a number from a tensor (item), on which the rest of the graph may depend"
_OPAQUE = "an opaque Python operator of torch.nn, whose loop over chunks Dynamo does not see"
_NO_GRADIENT_RULE = "the gradient has no rule: it runs in eager torch"

# At these Dynamo may cut the graph by itself: of one_hot, where the classes are counted.
CUT_BY_DYNAMO = {"nn.functional.one_hot"}
_VALUES = [
    Limitation("argwhere", _EVERY, _BY_VALUE),
    Limitation("bincount", (_I64, torch.int32), _BY_VALUE),
    Limitation("combinations", _EVERY if _TORCH < (2, 14) else (), _BY_VALUE),
    Limitation("masked_select", _EVERY, _BY_VALUE),
    Limitation("nonzero", _EVERY, _BY_VALUE),
    Limitation("repeat_interleave", _EVERY, _BY_VALUE + " (repeats given as a tensor)"),
    Limitation("unique", _REAL, _BY_VALUE),
    Limitation("unique_consecutive", _REAL, _BY_VALUE),
    Limitation("__getitem__", _EVERY, _BY_VALUE + " (a boolean mask as index)"),
    Limitation("nn.functional.one_hot", (_I64,), _BY_VALUE + " (num_classes=-1)"),
    Limitation("item", _REAL, _NUMBER),
    Limitation("narrow", _EVERY, _NUMBER + " (the start given as a tensor)"),
    Limitation("tensor_split", _EVERY, _NUMBER + " (the places given as a tensor)"),
    Limitation("chalf", _EVERY, "StableHLO has no complex numbers of two float16"),
    Limitation("nn.functional.linear_cross_entropy.chunked", _FLOATS, _OPAQUE),
    Limitation("nn.functional.linear_cross_entropy.chunked_none", _FLOATS, _OPAQUE),
]
_WITHOUT_GRADIENT = frozenset({"argwhere", "item", "nonzero", "unique", "unique_consecutive"})
# Dynamo knows the number that is read.
_OF_KNOWN_NUMBERS = frozenset({"item", "narrow"})
LIMITATIONS: dict[str, list[Limitation]] = {
    "values": _VALUES,
    "gradients": [
        *(row for row in _VALUES if row.op not in _WITHOUT_GRADIENT),
        Limitation(
            "index_fill", (_F32, _C64), _BY_VALUE + " (a 0-d input: its gradient asks for unique)"
        ),
        Limitation(
            "index_put", (_F32, _C64), _BY_VALUE + " (the gradient in the values written by a mask)"
        ),
        Limitation("_segment_reduce.lengths", (_F32,), _NO_GRADIENT_RULE),
        Limitation("_segment_reduce.offsets", (_F32,), _NO_GRADIENT_RULE),
    ],
    "in-place": [],
    "out": [
        Limitation("native_batch_norm", _FLOATS, "it changes its running statistics in place"),
    ],
    "special": [row for row in _VALUES if row.op == "chalf"],
    "literals": [row for row in _VALUES if row.op not in _OF_KNOWN_NUMBERS],
}

# Operators that Dynamo does not trace as one graph (`fullgraph=True` fails with `aot_eager` too):
# they are tested in the pieces that Dynamo makes, and must be right.
_BREAKS = frozenset(
    {
        # a truth value that depends on data
        "equal",
        # Dynamo does not trace resizing
        "resize_", "resize_as_",
        # sparse tensors
        "to_sparse",
    }
)  # fmt: skip
# A truth value that depends on data.
_BREAKS_OF_NUMBERS = _BREAKS | {"corrcoef", "cov"}
_BREAKS_OF_FLOATS = _BREAKS_OF_NUMBERS | frozenset(
    {
        # a truth value or a size that depends on data
        "allclose", "linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss",
        "nn.functional.gaussian_nll_loss",
        # sparse tensors
        "sparse.mm.reduce", "sparse.sampled_addmm",
    }
)  # fmt: skip
# Not for half types at all.
_WIDE = frozenset(
    {
        "linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss",
        "sparse.sampled_addmm",
    }
)  # fmt: skip
# Not for complex numbers, and a complex number that depends on data.
_OF_REALS = frozenset(
    {"nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss", "sparse.mm.reduce"}
)
_OF_VALUES: dict[torch.dtype, frozenset[str]] = {
    _F32: _BREAKS_OF_FLOATS,
    torch.float64: _BREAKS_OF_FLOATS,
    torch.bfloat16: _BREAKS_OF_FLOATS - _WIDE,
    _C64: _BREAKS_OF_FLOATS - _OF_REALS | {"item"},
    _I64: _BREAKS_OF_NUMBERS,
    torch.int32: _BREAKS_OF_NUMBERS,
    torch.bool: _BREAKS,
}
_OF_GRADIENTS = frozenset(
    {
        "corrcoef", "cov", "linalg.lstsq", "linalg.lstsq.grad_oriented", "nn.functional.ctc_loss",
        "nn.functional.gaussian_nll_loss", "sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse",
    }
)  # fmt: skip
# Dynamo does not trace changes of a tensor's sizes and strides.
_IN_PLACE = frozenset(
    {
        "as_strided", "as_strided.partial_views", "resize_", "resize_as_", "squeeze",
        "squeeze.multiple", "t", "transpose", "unsqueeze",
    }
)  # fmt: skip
# Sizes that depend on values.
_OUT = frozenset({"masked_select", "nonzero"})
GRAPH_BREAKS: dict[str, dict[torch.dtype, frozenset[str]]] = {
    "values": _OF_VALUES,
    "gradients": {
        _F32: _OF_GRADIENTS,
        # The gradient of a complex SVD checks that the loss does not depend on the phases.
        _C64: _OF_GRADIENTS - _OF_REALS - {"to_sparse"}
        | {"linalg.svd", "pca_lowrank", "svd", "svd_lowrank"},
    },
    "in-place": dict.fromkeys(_EVERY, _IN_PLACE),
    "out": {
        **dict.fromkeys(_EVERY, _OUT),
        **dict.fromkeys((_F32, torch.float64, _C64), _OUT | {"linalg.lstsq"}),
    },
    "literals": _OF_VALUES,
    "special": dict.fromkeys(_FLOATS, frozenset()),
}

# Operators that eager torch runs on GPUs alone. They count neither way.
NOT_ON_CPU = frozenset(
    {
        "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
        "jiterator_binary_return_by_ref", "jiterator_unary",
    }
)  # fmt: skip

# Operators of a form that AOTAutograd cannot make functional, so that no backend gets them.
UNSUPPORTED = {"in-place": frozenset(f"polygamma.polygamma_n_{n}" for n in range(5))}

_LOST = "AOTAutograd loses the write into `out`: `aot_eager` leaves it as it was, too"
# Where eager and compiled code differ, and stay so: by form and operator, the dtypes and why.
DIFFERENCES: dict[str, dict[str, tuple[tuple[torch.dtype, ...], str]]] = {
    "out": {
        "linalg.matrix_rank": (_EVERY, _LOST),
        "linalg.matrix_rank.hermitian": (_EVERY, _LOST),
    },
    "special": {
        "__rdiv__": (
            (_F32,),
            "eager multiplies by the reciprocal, which is subnormal: zero in compiled code",
        ),
        "special.airy_ai": ((_F32,), "eager's NaN at the least number, where the limit is 0"),
        "special.zeta": ((_F32,), "terms that are subnormal are zero in compiled code"),
    },
}


# Modules of torch's database that XLA cannot run whole, and why.
MODULE_LIMITATIONS = {"nn.LinearCrossEntropyLoss": _OPAQUE}

# Those that Dynamo does not trace as one graph: a truth value or a size depends on data, or torch
# wants `torch._dynamo.config.allow_rnn` for it.
MODULE_GRAPH_BREAKS = frozenset({"nn.CTCLoss", "nn.GRU", "nn.GaussianNLLLoss", "nn.LSTM", "nn.RNN"})


_VALUES_OF_A_STEP = (
    "only values tell, which are not there when the call is recorded; the program goes on with a "
    "defined number or leaves the element out, as XLA does, where eager raises"
)
# What eager refuses on the CPU and the 'xla' device does not: tests/lazy/test_refused_calls.py.
UNCHECKED_ON_THE_DEVICE = dict.fromkeys(
    (
        "an index beyond the end (index, gather, take, index_select, index_put_, scatter, put)",
        "an index beyond the table (embedding, embedding_bag)",
        "a class beyond the classes (one_hot, nll_loss, cross_entropy, multi_margin_loss)",
        "a number that is no probability (multinomial, binary_cross_entropy, poisson, normal)",
        "too few elements for a mask (masked_scatter)",
    ),
    _VALUES_OF_A_STEP,
)

_REFLECTED = "Dynamo calls the method of a number as if it were a tensor's, with every backend"
_INDICES = "indices are not compared with sizes when the program runs; XLA leaves such elements out"
# Error inputs of the database, by number, that eager refuses and compiled code computes.
INPUTS_NOT_REFUSED: dict[str, tuple[tuple[int, ...], str]] = {
    **dict.fromkeys(
        ("__radd__", "__rmul__", "__rand__", "__ror__", "__rxor__"), ((0, 1), _REFLECTED)
    ),
    "gather": ((4,), _INDICES),
    "scatter": ((3,), _INDICES),
    "scatter_add": ((3,), _INDICES),
}
# The same of dtypes that an operator does not support.
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_TRUSTS = "its kernel takes its arguments' word for sizes, so it is not run with small tensors"
DTYPES_NOT_REFUSED: dict[str, tuple[tuple[torch.dtype, ...], str]] = {
    **dict.fromkeys(
        ("_segment_reduce.lengths", "_segment_reduce.offsets"),
        ((*_INTEGERS, torch.bool, _C64, torch.complex128), _TRUSTS),
    ),
    "max_pool2d_with_indices_backward": (_INTEGERS, _TRUSTS),
    "nn.functional.conv2d": (
        _INTEGERS[1:],
        "a dilated window larger than small tensors are, so that they do not tell",
    ),
    "nn.functional.max_pool1d": (
        _INTEGERS,
        "without gradients torch takes a kernel of its own, which a trace does not meet",
    ),
}


def limitation(op: str, dtype: torch.dtype, form: str = "values") -> Limitation | None:
    """The row of an operator and dtype, if it has one."""
    rows = [row for row in LIMITATIONS[form] if row.op == op and dtype in row.dtypes]
    return rows[0] if rows else None
