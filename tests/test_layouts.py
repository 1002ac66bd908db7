"""Which strided tensors cross into XLA as they are, which permuted, and which copied."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.compiling import compiled
from xla_dynamo.lowerings.builders.strides import is_row_major, row_major_order
from xla_dynamo.memory.restriding import preparation, restriding
from xla_dynamo.programs.layouts import input_layout, output_layout

shapes = st.lists(st.integers(0, 4), max_size=4)


@given(shapes, st.randoms())
def test_every_permutation_of_a_dense_tensor_has_an_order(shape, random):
    dims = list(range(len(shape)))
    random.shuffle(dims)
    tensor = torch.empty(shape).permute(dims)
    order = row_major_order(tensor.shape, tensor.stride())
    assert order is not None
    assert tensor.permute(order).is_contiguous()


@given(shapes)
def test_row_major_agrees_with_torch(shape):
    tensor = torch.empty(shape)
    assert is_row_major(tensor.shape, tensor.stride()) == tensor.is_contiguous()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(4, 6)[:, ::2],
        torch.empty(3, 1).expand(3, 4),
        torch.empty(10).as_strided((4, 3), (2, 1)),
    ],
)
def test_tensors_that_are_not_dense_are_copied(tensor):
    prepare = preparation(input_layout(tensor))
    assert prepare is not None
    assert prepare(tensor).is_contiguous()


def test_dense_tensors_are_not_copied():
    image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    layout = input_layout(image)
    assert layout.permutation == (0, 2, 3, 1)
    assert preparation(layout)(image).data_ptr() == image.data_ptr()
    assert preparation(input_layout(torch.empty(2, 3))) is None


@pytest.mark.parametrize(
    "promised",
    [
        torch.empty(2, 3, 4),
        torch.empty(2, 3, 4).permute(2, 0, 1),
        torch.empty(3, 1).expand(3, 4),
        torch.empty(1).expand(2, 3),
        torch.empty(4, 6)[:, ::2],
        torch.empty(0, 3).t(),
        torch.empty(1, 3, 1).as_strided((1, 3, 1), (7, 1, 9)),
    ],
)
def test_outputs_have_the_promised_strides(promised):
    layout = output_layout(promised)
    array = torch.randn(promised.shape)
    for dim in layout.unexpanded:
        array = array.narrow(dim, 0, 1)
    crossing = array.permute(layout.permutation).contiguous()
    result = restriding(layout.restride)(crossing) if layout.restride else crossing
    assert result.shape == promised.shape
    live = [d for d in range(promised.ndim) if promised.shape[d] > 1 and promised.numel()]
    assert [result.stride(d) for d in live] == [promised.stride(d) for d in live]


def test_results_without_elements_have_torchs_strides():
    f = compiled(lambda x: x + 1)
    for shape in ((3, 0), (0, 3), (2, 0, 3), (0,)):
        x = torch.empty(shape)
        assert f(x).stride() == (x + 1).stride()


@pytest.mark.parametrize(("shifts", "dims"), [(1, ()), (-9, 1), ((1, 2), (0, 2)), (0, 0)])
@pytest.mark.parametrize(
    "x",
    [
        torch.arange(320.0).view(2, 8, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(30.0).view(5, 6, 1).permute(2, 1, 0),
        torch.arange(3.0).view(3, 1, 1).expand(3, 4, 2),
        torch.empty(3, 0, 2),
    ],
)
def test_what_is_rolled_has_the_strides_of_eager(x, shifts, dims):
    rolled = compiled(torch.roll)(x, shifts, dims)
    expected = torch.roll(x, shifts, dims)
    assert torch.equal(rolled, expected)
    assert rolled.stride() == expected.stride()
