"""Names of `torch_xla.experimental.xla_dynamic_reshape_ops`, and the library of operators `xla`."""

from collections.abc import Callable, Sequence

import torch

# Others have made the namespace; all that a process defines in it lives as long as this.
XLA_LIB = torch.library.Library("xla", "FRAGMENT")


def dynamic_expand(
    input: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
) -> torch.Tensor:
    """An expanded copy of a tensor, one of whose sizes is that of another tensor.

    Args:
        input: a tensor that expands to the result's shape.
        size: the result's shape, of which the size in `target_dim` is not used.
        src_tensor: the other tensor.
        src_dim: the dimension of the other tensor whose size is taken.
        target_dim: the dimension of the result that has it.
    """
    sizes = list(size)
    sizes[target_dim] = src_tensor.shape[src_dim]
    return input.expand(sizes).clone(memory_format=torch.contiguous_format)


def dynamic_view(
    input: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: float,
) -> torch.Tensor:
    """A reshaped copy of a tensor, one of whose sizes is a multiple of that of another tensor.

    Args:
        input: a tensor of as many elements as the result.
        size: as for `dynamic_expand`.
        src_tensor: likewise.
        src_dim: likewise.
        target_dim: likewise.
        mul_scaler: a whole number by which the size is multiplied.
    """
    sizes = list(size)
    sizes[target_dim] = src_tensor.shape[src_dim] * int(mul_scaler)
    return input.reshape(sizes).clone(memory_format=torch.contiguous_format)


_OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "dynamic_expand(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim)"
    " -> Tensor": dynamic_expand,
    "dynamic_view(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim, "
    "float mul_scaler) -> Tensor": dynamic_view,
}
for _schema, _function in _OPERATORS.items():
    XLA_LIB.define(_schema)
    for _key in ("CompositeExplicitAutograd", "Meta"):
        XLA_LIB.impl(_schema.partition("(")[0], _function, _key)
