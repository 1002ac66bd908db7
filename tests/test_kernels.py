"""The table of kernels, and specifications that are written as text, read back and refused."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from xla_dynamo import kernels
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.attention import Attention
from xla_dynamo.kernels.convolution_weight_gradient import WeightGradient
from xla_dynamo.kernels.grouped_products import GroupedProduct
from xla_dynamo.kernels.onednn_product import OneDNNProduct
from xla_dynamo.lowerings.kernels import KERNELS, call, register
from xla_dynamo.lowerings.target import LIBRARIES
from xla_dynamo.runtime.cpu import foreign_calls

SHAPE = (2, 4, 8, 16)
FLOATS = (torch.float32, torch.float32)
SPECIFICATIONS = (
    Attention(SHAPE, SHAPE, SHAPE, None, *FLOATS, False, 0.5),
    Attention(SHAPE, SHAPE, SHAPE, (1, 1, 1, 8), *FLOATS, True, None),
    WeightGradient(2, (2, 8, 9), (2, 4, 7), (4, 8, 3), (1,), (0,), (1,), 1, torch.bfloat16),
    GroupedProduct(6, 4, 5, 3, (0, 2, 1), torch.float64, torch.int32),
    OneDNNProduct((2, 3), 4, 5, 6, False, True, FLOATS, True),
)
each = pytest.mark.parametrize("given", SPECIFICATIONS, ids=lambda s: type(s).__name__)


@each
def test_specifications_are_read_as_they_were_written(given):
    read = type(given).read(given.text())
    assert read == given
    assert hash(read) == hash(given)


@each
def test_texts_of_other_fields_are_refused(given):
    text = given.text()
    more, other = text[:-1] + ', "more": 1}', text.replace('": ', 's": ', 1)
    for wrong in ("", "1", "{}", "[" * 100_000, more, other):
        with pytest.raises(LoweringError, match=f"is no call of {type(given).__name__}"):
            type(given).read(wrong)


WRONG = {
    "values for other keys": (0, {"value": (2, 4, 7, 16)}),
    "queries that keys do not divide": (0, {"query": (2, 6, 8, 16)}),
    "a mask of two dimensions": (1, {"mask": (8, 8)}),
    "a mask for other scores": (1, {"mask": (1, 1, 4, 8)}),
    "another rank": (2, {"stride": (1, 1)}),
    "more parts than images": (2, {"parts": 3}),
    "groups that are not there": (2, {"groups": 2}),
    "no permutation": (3, {"order": (0, 1, 1)}),
    "more than oneDNN counts": (4, {"columns": 1 << 31}),
    "nothing": (4, {"rows": 0}),
    "less than nothing": (4, {"rows": -4}),
    "dtypes that it does not take": (4, {"dtypes": (torch.float64, torch.float64)}),
    "other dtypes": (4, {"dtypes": (torch.float32, torch.float64)}),
}


@pytest.mark.parametrize(("number", "others"), WRONG.values(), ids=WRONG)
def test_what_a_kernel_cannot_compute_has_no_specification(number, others):
    with pytest.raises(LoweringError, match="is none"):
        dataclasses.replace(SPECIFICATIONS[number], **others)


def test_a_call_that_is_none_is_an_error_where_it_runs():
    with pytest.raises(LoweringError, match="is no call of Attention"):
        foreign_calls._kernel_of(b"attention:{}")


def test_names_and_libraries():
    assert {kernel.__module__ for kernel in KERNELS.values()} == {
        f"xla_dynamo.kernels.{name}" for name in kernels.KERNELS
    }
    known = frozenset().union(*LIBRARIES.values())
    assert all(set().union(*k.libraries.values()) <= known for k in KERNELS.values())
    with pytest.raises(ValueError, match="there is a kernel 'attention' already"):
        register(Attention)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_rules_get_nothing_where_there_is_no_kernel(platform):
    """On another platform, without its libraries, or where no such kernel is registered."""
    context = SimpleNamespace(platform=platform, libraries=frozenset())
    value = SimpleNamespace(type=SimpleNamespace())
    assert call(context, "nothing", value) is None
