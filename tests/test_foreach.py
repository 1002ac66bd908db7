"""Operators over lists of tensors are compiled, on torch's own samples."""

import pytest
import torch
from torch.testing._internal import common_methods_invocations as database

from tests.compiling import compiled, compiled_whole
from xla_dynamo.decompositions.foreach import foreach_decompositions

KINDS = ("unary", "binary", "pointwise", "reduce", "other")
SAMPLES = {op.name: op for kind in KINDS for op in getattr(database, f"foreach_{kind}_op_db")}
IN_PLACE = [f"{name}_" for name in SAMPLES if hasattr(torch.ops.aten, f"{name}_")]


def call(name, sample):
    """The operator's results, and what it leaves in copies of the sample's tensors."""
    tensors = [t.clone() for t in sample.input]
    return getattr(torch.ops.aten, name)(tensors, *sample.args, **sample.kwargs), tensors


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [*SAMPLES, *IN_PLACE])
def test_against_eager(name):
    op = SAMPLES[name.removesuffix("_")]
    run = compiled_whole(call)
    compared = 0
    for sample in op.sample_inputs("cpu", torch.float32, num_input_tensors=[2]):
        sample.kwargs.pop("disable_fastpath", None)  # for torch's tests on CUDA
        try:
            expected = call(name, sample)
        except RuntimeError:
            continue  # complex numbers written into real tensors, say
        torch._dynamo.reset()
        actual = run(name, sample)
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-5, atol=1e-5)
        compared += 1
    assert compared


def test_sum_of_powers():
    """The one that torch's database leaves out."""
    x = torch.randn(5)
    run = compiled(torch.ops.aten._foreach_powsum)
    torch.testing.assert_close(run([x, x], 3)[1], x.abs().pow(3).sum())


def test_every_operator_comes_apart():
    untested = {op._schema.name.removeprefix("aten::") for op in foreach_decompositions()}
    assert untested - set(SAMPLES) == {"_foreach_powsum"}
