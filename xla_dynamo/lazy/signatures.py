"""Read from an operator's schema which of its arguments and results are views, written, or new."""

import functools
from typing import Any

import torch

from xla_dynamo.torch_private import OpOverload, schema

aten = torch.ops.aten

# Their results share the operand's memory, though their schemas do not say so.
_SHARE_MEMORY = frozenset(
    {
        aten._unsafe_view.default, aten._reshape_alias.default, aten.lift_fresh.default,
        aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default,
    }
)  # fmt: skip
# Operators that ours are recorded as, by what scripts look for.
_COUNTED_AS = {"_native_batch_norm_legit": "native_batch_norm"}
_NOT_TENSORS = ("bool", "int", "float", "number", "Scalar", "SymInt", "str")


class Signature:
    """The schema of an operator, in the terms of recording.

    Attributes:
        op: the overload.
        name: as PyTorch/XLA counts it where torch runs it: aten::add.
        counted: as PyTorch/XLA counts it where XLA does: xla::add, for aten::add_ too.
        is_view: its results show the elements of its first argument.
        changes_sizes: it only changes sizes and strides of its first argument (transpose_).
        written: the arguments that it writes, as (position, name).
        results: of each result, the name of the argument that it is, or None for a new tensor.
        draws: its results are random.
        takes_generator: it has an argument for a random generator.
        by_value: a result is a number, so it must be known at once; or there is no result, and the
            operator is a check, which must raise at once.
    """

    def __init__(self, op: OpOverload) -> None:
        arguments, returns = schema(op).arguments, schema(op).returns
        aliases = {a.name: a.alias_info for a in arguments if a.alias_info is not None}
        self.op, self.name = op, schema(op).name
        self.positions = {a.name: position for position, a in enumerate(arguments)}
        self.written = [(self.positions[n], n) for n, info in aliases.items() if info.is_write]
        self.changes_sizes = torch.Tag.inplace_view in op.tags
        returns_alias = any(r.alias_info is not None for r in returns)
        self.is_view = (returns_alias and bool(aliases) and not self.written) or op in _SHARE_MEMORY
        self.results = [self._argument_of(r, aliases) for r in returns]
        self.takes_generator = "generator" in self.positions
        self.draws = self.takes_generator or torch.Tag.nondeterministic_seeded in op.tags
        only_checks = not returns and not self.written
        self.by_value = only_checks or any(str(r.type) in _NOT_TENSORS for r in returns)
        self.counted = f"xla::{self._functional_name()}"

    def _functional_name(self) -> str:
        """The operator's name without that of a namespace; that of its form which only reads."""
        name = self.name.rpartition("::")[2]
        other = f"{name}_copy" if self.is_view else name.removesuffix("_")
        other = _COUNTED_AS.get(other, other)
        return other if hasattr(aten, other) else name

    @staticmethod
    def _argument_of(result: Any, aliases: dict[str, Any]) -> str | None:
        if result.alias_info is None or not result.alias_info.is_write:
            return None
        same = [n for n, i in aliases.items() if i.before_set == result.alias_info.before_set]
        return same[0] if same else None

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call has for an argument; None if it leaves it out."""
        position = self.positions[name]
        return args[position] if position < len(args) else kwargs.get(name)


@functools.cache
def signature_of(op: OpOverload) -> Signature:
    """The signature of an overload."""
    return Signature(op)
