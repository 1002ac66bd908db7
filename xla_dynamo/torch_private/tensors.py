"""Private attributes of torch's tensors."""

import operator
from collections.abc import Callable

import torch
from torch.autograd import forward_ad

# How often a tensor has been changed in place. Inference tensors have no such number.
version_of = operator.attrgetter("_version")


def storage_id(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage, which its views share; fake tensors have one, too."""
    return tensor.untyped_storage()._cdata


def number_of_storage(storage: torch.UntypedStorage) -> int:
    """The address of torch's own record of a storage, which no other that lives has."""
    return storage._cdata


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return tensor._is_view()


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is one of autograd's zeros, which have no memory."""
    return tensor._is_zerotensor()


def has_gradient_hooks(parameter: torch.Tensor) -> bool:
    """Whether something is to run when a tensor's gradient is known."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)  # type: ignore[attr-defined]


def call_after_backward(function: Callable[[], object]) -> None:
    """Have a function called when the backward that runs here is over. Hooks may ask for it."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # type: ignore[attr-defined]


def is_function_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for another inside a transform of torch.func, such as vmap."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # type: ignore[attr-defined]


def in_forward_mode() -> bool:
    """Whether a level of forward-mode automatic differentiation is entered."""
    return forward_ad._current_level >= 0


def is_conjugated_or_negated(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are not those in its memory."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd knows a tensor as a view of, or itself."""
    return tensor if tensor._base is None else tensor._base
