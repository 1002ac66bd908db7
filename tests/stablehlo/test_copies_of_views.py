"""Every operator of ATen that copies where another makes a view: exported, and compiled."""

import pytest
import torch

from tests.comparison import compare
from tests.stablehlo.exporting import Function, exported
from xla_dynamo.lowerings import find_rule
from xla_dynamo.torch_private import all_operator_names

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)
COMPLEX = torch.randn(2, 3, dtype=torch.complex64)
# The arguments of each, by its name as torch registers it.
ARGUMENTS = {
    "_conj_copy": (COMPLEX,),
    "_neg_view_copy": (X,),
    "_reshape_alias_copy": (X, [6, 4], [4, 1]),
    "alias_copy": (X,),
    "as_strided_copy": (X, [3, 2], [1, 4], 2),
    "detach_copy": (X,),
    "diagonal_copy": (X, 1, 0, 2),
    "expand_copy": (X, [5, 2, 3, 4]),
    "lift_fresh_copy": (X,),
    "narrow_copy": (X, 2, 1, 2),
    "permute_copy": (X, [2, 0, -2]),
    "select_copy.int": (X, -1, 2),
    "slice_copy.Tensor": (X, 2, 0, 4, 3),
    "split_copy.Tensor": (X, 3, 2),
    "split_with_sizes_copy": (X, [1, 2], 1),
    "squeeze_copy": (X[:1],),
    "squeeze_copy.dim": (X[:1], 0),
    "squeeze_copy.dims": (X[:1, :, :1], [0, 2]),
    "t_copy": (X[0],),
    "transpose_copy.int": (X, 0, -1),
    "unbind_copy.int": (X, 1),
    "unfold_copy": (X, 2, 2, 1),
    "unsqueeze_copy": (X, -1),
    "view_as_complex_copy": (torch.randn(3, 2),),
    "view_as_real_copy": (COMPLEX,),
    "view_copy": (X, [4, -1]),
    "view_copy.dtype": (X, torch.int32),
}
# Of sparse, of jagged and of dual tensors, which no program has, and torch's own tests.
WITHOUT = {
    "_fw_primal_copy", "_indices_copy", "_make_dual_copy", "_nested_get_values_copy",
    "_nested_view_from_buffer_copy", "_nested_view_from_jagged_copy", "_sparse_broadcast_to_copy",
    "_test_autograd_multiple_dispatch_view_copy", "_values_copy", "ccol_indices_copy",
    "col_indices_copy", "crow_indices_copy", "indices_copy", "row_indices_copy", "values_copy",
}  # fmt: skip


def overload(name):
    packet, _, rest = name.partition(".")
    return getattr(getattr(aten, packet), rest or "default")


def copies_of_views():
    """Their names, by the operators that make the views."""
    for name in all_operator_names():
        packet, _, rest = name.removeprefix("aten::").partition(".")
        view = getattr(aten, packet.removesuffix("_copy"), None)
        if not name.startswith("aten::") or not packet.endswith("_copy") or view is None:
            continue
        if rest != "out" and (rest or "default") in view.overloads():
            returns = getattr(view, rest or "default")._schema.returns
            if any(result.alias_info for result in returns):
                yield name.removeprefix("aten::")


def test_all_are_here():
    assert {*copies_of_views()} <= {*ARGUMENTS, *WITHOUT}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_exported(name):
    x, *rest = ARGUMENTS[name]
    op = overload(name)
    expected = op(x, *rest)
    results = exported(Function(lambda x: op(x, *rest)), x)(x)
    compare(expected, results if isinstance(expected, torch.Tensor) else list(results), values=True)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_compiled(name):
    x, *rest = ARGUMENTS[name]
    op = overload(name)
    compiled = torch.compile(lambda x: op(x, *rest), backend="openxla", fullgraph=True)
    compare(op(x, *rest), compiled(x), values=True)
    assert all(r.data_ptr() != x.data_ptr() for r in torch.utils._pytree.tree_leaves(compiled(x)))


def test_a_view_and_its_copy_have_one_rule():
    assert find_rule(aten.split_copy.Tensor) is find_rule(aten.split.Tensor) is not None
    assert find_rule(aten.view_copy.dtype) is find_rule(aten.view.dtype) is not None
