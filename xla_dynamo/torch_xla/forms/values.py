"""Names of `torch_xla.utils.utils` for values: trees, data generators, what ends with a value."""

import copy
import shutil
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from xla_dynamo.torch_private import pytree

T = TypeVar("T")
_UNSET: Any = object()
_WHOLE = (
    torch.Tensor,
    type,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
)


class Cleaner:
    """Calls a function when it is collected."""

    def __init__(self, func: Callable[[], Any]) -> None:
        """Take the function."""
        self.func = func

    def __del__(self) -> None:
        self.func()


class LazyProperty(Generic[T]):
    """A value that is made at its first use."""

    def __init__(self, gen_fn: Callable[[], T]) -> None:
        """Take the function that makes the value."""
        self._make: Callable[[], T] | None = gen_fn
        self._value: T = _UNSET

    @property
    def value(self) -> T:
        """The value, which the first call makes."""
        if self._make is not None:
            self._value, self._make = self._make(), None
        return self._value


class TmpFolder:
    """A folder that goes when this is collected, or when the process ends.

    Attributes:
        name: its path.
    """

    def __init__(self) -> None:
        """Make the folder."""
        self.name = tempfile.mkdtemp()
        self.cleaner = weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)


class SampleGenerator:
    """A loader that gives the same data so many times, in place of a data set."""

    def __init__(self, data: Any, sample_count: int) -> None:
        """Take the data, and how many times it comes."""
        self._data, self._count, self._given = data, sample_count, 0

    def __len__(self) -> int:
        """How many times it comes."""
        return self._count

    def __iter__(self) -> Iterator[Any]:
        """Go through it, from the start each time."""
        return SampleGenerator(self._data, self._count)

    def __next__(self) -> Any:
        """The data once more."""
        if self._given >= self._count:
            raise StopIteration
        self._given += 1
        return self._data

    next = __next__


class FnDataGenerator:
    """A loader of batches that one function makes, with targets that another computes of them."""

    def __init__(
        self,
        func: Callable[[Any], Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        """Take what the batches are made by.

        Args:
            func: gives the target of a batch.
            batch_size: the first size of a batch.
            gen_tensor: gives a batch, of its sizes, as `torch.rand` does.
            dims: the other sizes of a batch; (1,) unless given.
            count: how many batches come.
        """
        self._target, self._make, self._count = func, gen_tensor, count
        self._sizes = (batch_size, *(dims or (1,)))
        self._given = 0

    def __len__(self) -> int:
        """How many batches come."""
        return self._count

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Make batches anew, from the first."""
        size, *dims = self._sizes
        return FnDataGenerator(self._target, size, self._make, dims, self._count)

    def __next__(self) -> tuple[Any, Any]:
        """A batch and its target."""
        if self._given >= self._count:
            raise StopIteration
        self._given += 1
        batch = self._make(*self._sizes)
        return batch, self._target(batch)

    next = __next__


class DataWrapper:
    """A data structure of your own whose tensors loaders move to the device.

    A subclass says which tensors those are, and makes the structure of the moved ones.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let whatever maps a function over the tensors of a tree know the subclass."""
        super().__init_subclass__(**kwargs)
        pytree.register_pytree_node(
            cls,
            lambda wrapper: (wrapper.get_tensors(), wrapper),
            lambda tensors, wrapper: wrapper.from_tensors(list(tensors)),
        )

    def get_tensors(self) -> list[torch.Tensor]:
        """The tensors of the CPU that go to the device.

        Raises:
            NotImplementedError: the subclass does not say which.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method get_tensors")

    def from_tensors(self, tensors: list[torch.Tensor]) -> Any:
        """The structure of tensors on the device, in the order of `get_tensors`.

        Raises:
            NotImplementedError: the subclass does not say how.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method from_tensors")


def as_list(t: Any) -> Any:
    """A list with a value in it; a list or a tuple as it is."""
    return t if isinstance(t, tuple | list) else [t]


def for_each_instance(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> None:
    """Call a function with each selected value of a tree of containers and of objects' attributes.

    Args:
        value: the tree, which may have cycles; each object is visited once.
        select_fn: tells whether the function is called with a value; if not, its parts are visited.
        fn: the function.
    """
    seen: dict[int, Any] = {}

    def visit(one: Any) -> None:
        if id(one) in seen:
            return
        seen[id(one)] = one  # held, so that no other value gets its id
        if select_fn(one):
            fn(one)
            return
        for part in _parts(one):
            visit(part)

    visit(value)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, DataWrapper):
        return list(value.get_tensors())
    return list(_attributes(value).values())


def for_each_instance_rewrite(
    value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]
) -> Any:
    """A copy of a tree in which selected values are replaced by what a function makes of them.

    Containers, and objects with attributes, are copied; what is neither is the same in the copy.
    Unlike PyTorch/XLA's, tuples stay tuples.

    Args:
        value: the tree. Cycles through lists, dictionaries, sets and objects stay cycles.
        select_fn: tells whether a value is replaced; if not, its parts are visited.
        fn: makes the new value, once for each object.
    """
    made: dict[int, tuple[Any, Any]] = {}  # with the old value, so that none gets its id

    def keep(old: Any, new: Any) -> Any:
        made[id(old)] = (old, new)
        return new

    def copy_of(one: Any) -> Any:
        if id(one) in made:
            return made[id(one)][1]
        if select_fn(one):
            return keep(one, fn(one))
        if isinstance(one, dict):
            new = keep(one, _emptied(one))
            for key, part in one.items():
                new_key = copy_of(key)  # before its value, as `for_each_instance` does
                new[new_key] = copy_of(part)
            return new
        if isinstance(one, set):
            new = keep(one, set())
            new.update(map(copy_of, one))
            return new
        if isinstance(one, list):
            new = keep(one, [])
            new.extend(map(copy_of, one))
            return new
        if isinstance(one, tuple):
            parts = map(copy_of, one)
            return keep(one, type(one)(*parts) if hasattr(one, "_fields") else tuple(parts))
        if isinstance(one, DataWrapper):
            return keep(one, one.from_tensors([copy_of(t) for t in one.get_tensors()]))
        attributes = _attributes(one)
        new = keep(one, copy.copy(one) if attributes else one)
        for name, part in attributes.items():
            new.__dict__[name] = copy_of(part)
        return new

    return copy_of(value)


def _emptied(found: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary of the same kind, with its attributes, without entries."""
    new = copy.copy(found)
    new.clear()
    return new


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object; none of what is more than its attributes, as a tensor."""
    return {} if isinstance(value, _WHOLE) else getattr(value, "__dict__", {})


def shape(inputs: Any) -> list[int]:
    """The sizes of lists in lists.

    Raises:
        ValueError: lists beside each other differ in size.
    """
    if not isinstance(inputs, list | tuple):
        return []
    found = [shape(part) for part in inputs]
    if any(other != found[0] for other in found):
        raise ValueError(f"the parts of a list have the sizes {found}, which are not all the same")
    return [len(inputs), *(found[0] if found else [])]


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """What is in tuples and lists, of any depth, as one tuple."""
    if not isinstance(inputs, list | tuple):
        return (inputs,)
    return tuple(one for part in inputs for one in flatten_nested_tuple(part))


def list_copy_append(ilist: Sequence[Any], item: Any) -> list[Any]:
    """A new list of what is in a sequence, and of an item behind."""
    return [*ilist, item]
