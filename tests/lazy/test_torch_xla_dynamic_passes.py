"""Passes of PyTorch/XLA over programs with an open size leave what they compute as it is."""

import pytest
import torch

import xla_dynamo
from xla_dynamo.torch_xla.forms import dynamic_passes as passes

aten = torch.ops.aten
N = torch.export.Dim("n", min=2)


class Of(torch.nn.Module):
    """A module of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


CASES = {
    "select": (lambda x: aten.select.int(x, 1, 2), [(5, 4, 3)], ["decompose_dynamic_shape_select"]),
    "select as a dynamic view": (
        lambda x: aten.select.int(x, 1, 2),
        [(5, 4, 3)],
        ["decompose_dynamic_shape_select", "replace_dynamic_view_with_xla_op"],
    ),
    "split": (
        lambda x: aten.split_with_sizes.default(x, [1, 2, 3], -1)[1],
        [(5, 6)],
        ["decompose_split_with_sizes"],
    ),
    "unsqueeze": (
        lambda x: aten.unsqueeze.default(x, -1),
        [(5, 4)],
        ["dynamic_unsqueeze_to_view", "replace_dynamic_view_with_xla_op"],
    ),
    "expand": (
        lambda x: aten.sin.default(x[:1]).expand(x.shape[0], 4),
        [(5, 4)],
        ["replace_dynamic_expand_with_xla_op"],
    ),
    "a multiple": (
        lambda x: x.view(x.shape[0] * 4, 3),
        [(5, 4, 3)],
        ["replace_dynamic_view_with_xla_op"],
    ),
}
GONE = {
    "select": "aten.select",
    "select as a dynamic view": "aten.view",
    "split": "getitem",
    "unsqueeze": "aten.view",
    "expand": "aten.expand",
    "a multiple": "aten.view",
}


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name):
    xla_dynamo.device()
    function, shapes, names = CASES[name]
    given = [torch.randn(shape) for shape in shapes]
    open_sizes = (({0: N},) * len(given),)
    program = torch.export.export(Of(function), tuple(given), dynamic_shapes=open_sizes)
    for one in names:
        getattr(passes, one)(program.graph_module)
    program.graph_module.graph.eliminate_dead_code()
    program.graph_module.graph.lint()
    program.graph_module.recompile()
    assert GONE[name] not in program.graph_module.code
    for count in (5, 3):
        others = [torch.randn(count, *shape[1:]) for shape in shapes]
        torch.testing.assert_close(program.module()(*others), function(*others))


def test_indices_are_one_dimension():
    weight, indices = torch.randn(20, 8), torch.randint(0, 15, (5, 4))
    program = torch.export.export(
        Of(aten.embedding.default), (weight, indices), dynamic_shapes=((None, {0: N}),)
    )
    passes.flatten_embedding_indices_tensor(program.graph_module)
    passes.replace_dynamic_view_with_xla_op(program.graph_module)
    program.graph_module.recompile()
    assert program.graph_module.code.count("xla.dynamic_view") == 2
    torch.testing.assert_close(program.module()(weight, indices), weight[indices])


def test_norms():
    x, weight, bias = torch.randn(5, 4, 3), torch.randn(3), torch.randn(3)
    layer = (x, [3], weight, bias, 1e-5)
    expected = passes.native_layer_norm_pattern(*layer)
    torch.testing.assert_close(passes.native_layer_norm_impl(*layer), expected)
    group = (x, torch.randn(4), torch.randn(4), 5, 4, 3, 4, 1e-5)
    torch.testing.assert_close(
        passes.native_group_norm_impl(*group), passes.native_group_norm_pattern(*group)
    )
    w, b = group[1:3]
    for function, decompose, tensors in (
        (
            lambda x, w, b: passes.native_layer_norm_pattern(x, [3], w, b, 1e-5),
            passes.decompose_dynamic_native_layer_norm,
            (x, weight, bias),
        ),
        (
            lambda x, w, b: passes.native_group_norm_pattern(x, w, b, 5, 4, 3, 4, 1e-5),
            passes.decompose_dynamic_native_group_norm,
            (x, w, b),
        ),
    ):
        program = torch.export.export(Of(function), tensors)
        decompose(program.graph_module)
        program.graph_module.recompile()
        assert "native" not in program.graph_module.code
        torch.testing.assert_close(program.module()(*tensors), function(*tensors))


def test_sizes_that_no_pass_takes():
    program = torch.export.export(
        Of(lambda x: aten.select.int(x, 0, 1)), (torch.ones(5, 4),), dynamic_shapes=(({0: N},),)
    )
    with pytest.raises(ValueError, match=r"select: the dimensions \[0\]"):
        passes.decompose_dynamic_shape_select(program.graph_module)
    program = torch.export.export(
        Of(lambda x: x.view(x.shape[0] * x.shape[1])),
        (torch.ones(5, 4),),
        dynamic_shapes=(({0: N, 1: torch.export.Dim("m", min=2)},),),
    )
    with pytest.raises(ValueError, match="neither a size"):
        passes.replace_dynamic_view_with_xla_op(program.graph_module)
