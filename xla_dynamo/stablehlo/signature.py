"""The signature of an exported program, as data: what goes in, what comes out, in which form.

Written to a folder as JSON, and read without torch.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from xla_dynamo.stablehlo.trees import Tree

# How a module's arguments are named in a signature.
WEIGHT, INPUT, SEED, NEGATIVE_ZERO = "weight", "input", "seed", "negative_zero"
ARGUMENT_KINDS = (WEIGHT, INPUT, SEED, NEGATIVE_ZERO)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A size: the sum of `factor * product of the named dimensions`.

    Attributes:
        terms: pairs of the dimensions' names and the factor.
    """

    terms: tuple[tuple[tuple[str, ...], int], ...]

    @classmethod
    def of(cls, number: int) -> "Size":
        """The size that is always this number."""
        return cls((((), number),) if number else ())

    @property
    def number(self) -> int | None:
        """The number, if it depends on no dimension."""
        return self.at({}) if all(not names for names, _ in self.terms) else None

    @property
    def name(self) -> str | None:
        """The dimension that it is, if it is one and nothing else."""
        (names, factor), *others = self.terms or [((), 0)]
        return names[0] if len(names) == 1 and factor == 1 and not others else None

    def at(self, dimensions: Mapping[str, int]) -> int:
        """The number where the dimensions are these."""
        return sum(n * math.prod(dimensions[name] for name in names) for names, n in self.terms)

    def __str__(self) -> str:
        written = []
        for names, factor in sorted(self.terms, key=lambda term: -len(term[0])):
            factors = [str(factor)] if factor != 1 or not names else []
            written.append("*".join([*factors, *names]))
        return " + ".join(written).replace("+ -", "- ") or "0"


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
    """A named dimension, which each call may choose.

    Attributes:
        name: the name, as given to `torch.export.Dim`.
        low: the least size.
        high: the largest one; None for no end.
    """

    name: str
    low: int
    high: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """The shape and the dtype of a tensor.

    Attributes:
        shape: its sizes.
        dtype: NumPy's name of its dtype: "float32", "bfloat16".
    """

    shape: tuple[Size, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the module's `main`.

    Attributes:
        kind: "weight", a tensor in weights.safetensors; "input", a leaf of the call's inputs;
            "seed", a fresh random u64[1]; "negative_zero", the number -0.0.
        name: the weight's name; the number of the leaf, as text; else "".
        spec: its shape and dtype.
    """

    kind: str
    name: str
    spec: TensorSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the inputs or the outputs.

    Attributes:
        kind: "tensor"; "constant", a value that is the same in each call; "size", an int.
        spec: of a tensor, the shape and dtype.
        result: of a tensor among the outputs, the number of the module's result.
        value: of a constant, the value: None, a bool, an int, a float or text.
        size: of a size, what it is.
    """

    kind: str
    spec: TensorSpec | None = None
    result: int | None = None
    value: bool | int | float | str | None = None
    size: Size | None = None

    def __str__(self) -> str:
        return {"tensor": str(self.spec), "size": str(self.size)}.get(self.kind, repr(self.value))


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A weight or an input that takes the value of a result when a call is over.

    Attributes:
        kind: "weight" or "input".
        name: the weight's name, or the number of the leaf, as text.
        result: the number of the module's result.
    """

    kind: str
    name: str
    result: int


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """What a caller of an exported module has to know.

    Attributes:
        platform: the PJRT platform whose forms the lowering chose: "cpu", "cuda", "tpu".
        dimensions: the named dimensions that a call chooses; () for a program of fixed sizes.
        arguments: the arguments of `main`, in their order.
        inputs: the leaves of the inputs, in the order of `input_tree`.
        outputs: the leaves of the outputs, in the order of `output_tree`.
        changes: what is written back.
        results: the shapes and dtypes of the results of `main`.
        input_tree: the pair of positional and keyword arguments.
        output_tree: what a call returns.
        custom_calls: the targets of custom calls in the module, which a process that runs it must
            have registered.
    """

    platform: str
    dimensions: tuple[Dimension, ...]
    arguments: tuple[Argument, ...]
    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    changes: tuple[Change, ...]
    results: tuple[TensorSpec, ...]
    input_tree: Tree
    output_tree: Tree
    custom_calls: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranges = [
            f"{d.name} from {d.low}" + (f" to {d.high}" if d.high is not None else "")
            for d in self.dimensions
        ]
        where = f" where {', '.join(ranges)}" if ranges else ""
        taken = ", ".join(map(str, self.inputs))
        return f"({taken}) -> ({', '.join(map(str, self.outputs))}){where}"

    def weights(self) -> dict[str, TensorSpec]:
        """The weights that the module takes, by name."""
        return {a.name: a.spec for a in self.arguments if a.kind == WEIGHT}

    def to_json(self) -> dict[str, Any]:
        """The signature as JSON has it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: Any) -> "Signature":
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        signature = cls(
            platform=_text(given["platform"]),
            dimensions=tuple(
                Dimension(
                    _text(d["name"]),
                    _whole(d["low"]),
                    None if d["high"] is None else _whole(d["high"]),
                )
                for d in given["dimensions"]
            ),
            arguments=tuple(
                Argument(_text(a["kind"]), _text(a["name"]), _spec(a["spec"]))
                for a in given["arguments"]
            ),
            inputs=tuple(map(_leaf, given["inputs"])),
            outputs=tuple(map(_leaf, given["outputs"])),
            changes=tuple(
                Change(_text(c["kind"]), _text(c["name"]), _whole(c["result"]))
                for c in given["changes"]
            ),
            results=tuple(map(_spec, given["results"])),
            input_tree=Tree.from_json(given["input_tree"]),
            output_tree=Tree.from_json(given["output_tree"]),
            custom_calls=tuple(map(_text, given["custom_calls"])),
        )
        signature.check()
        return signature

    def check(self) -> None:
        """Raise ValueError unless the parts fit each other."""
        known = {d.name for d in self.dimensions}
        specs = [a.spec for a in self.arguments] + list(self.results)
        specs += [leaf.spec for leaf in (*self.inputs, *self.outputs) if leaf.spec is not None]
        sizes = [size for spec in specs for size in spec.shape]
        sizes += [leaf.size for leaf in self.outputs if leaf.size is not None]
        used = {name for size in sizes for names, _ in size.terms for name in names}
        if not used <= known:
            raise ValueError(f"sizes depend on {sorted(used - known)}, which are no dimensions")
        if any(a.kind not in ARGUMENT_KINDS for a in self.arguments):
            raise ValueError(f"an argument is none of {ARGUMENT_KINDS}")
        told = {n.name for leaf in self.inputs if leaf.spec for n in leaf.spec.shape}
        if not known <= told:
            raise ValueError(f"no input tells the dimensions {sorted(known - told)}")
        leaves = [a.name for a in self.arguments if a.kind == INPUT]
        leaves += [change.name for change in self.changes if change.kind == INPUT]
        if any(not 0 <= int(name) < len(self.inputs) for name in leaves):
            raise ValueError("an argument is an input that the tree of inputs has not")
        weights = self.weights()
        if any(c.kind != INPUT and c.name not in weights for c in self.changes):
            raise ValueError("a weight changes that no argument is")
        taken = [leaf.result for leaf in self.outputs if leaf.kind == "tensor"]
        taken += [change.result for change in self.changes]
        if any(result is None or not 0 <= result < len(self.results) for result in taken):
            raise ValueError("an output is a result that the module has not")
        if self.input_tree.leaves() != len(self.inputs):
            raise ValueError("the tree of inputs has another number of leaves")
        if self.output_tree.leaves() != len(self.outputs):
            raise ValueError("the tree of outputs has another number of leaves")


def sizes_of_call(signature: Signature, shapes: Sequence[tuple[int, ...] | None]) -> dict[str, int]:
    """The dimensions of a call, by name, told by the shapes of its inputs; None for no tensor.

    Raises:
        ValueError: the shapes are not those of the signature.
    """
    found: dict[str, int] = {}
    for leaf, shape in zip(signature.inputs, shapes, strict=True):
        if leaf.spec is not None and shape is not None and len(shape) == len(leaf.spec.shape):
            for size, n in zip(leaf.spec.shape, shape, strict=True):
                if size.name is not None:
                    found.setdefault(size.name, n)
    for number, (leaf, shape) in enumerate(zip(signature.inputs, shapes, strict=True)):
        if leaf.spec is None or shape is None:
            continue
        known = all(name in found for size in leaf.spec.shape for t, _ in size.terms for name in t)
        wanted = tuple(size.at(found) for size in leaf.spec.shape) if known else None
        if shape != wanted:
            at = ", ".join(f"{name} = {n}" for name, n in found.items())
            raise ValueError(
                f"{signature.input_tree.path(number)} has shape {list(shape)}, and the program "
                f"takes {leaf.spec}" + (f" with {at}" if at else "")
            )
    for dimension in signature.dimensions:
        n, high = found[dimension.name], dimension.high
        if n < dimension.low or (high is not None and n > high):
            allowed = f"from {dimension.low}" + ("" if high is None else f" to {high}")
            raise ValueError(f"the dimension {dimension.name!r} is {n}, and may be {allowed}")
    return found


def _size(given: Any) -> Size:
    return Size(tuple((tuple(map(_text, names)), _whole(n)) for names, n in given["terms"]))


def _spec(given: Any) -> TensorSpec:
    return TensorSpec(tuple(map(_size, given["shape"])), _text(given["dtype"]))


def _leaf(given: Any) -> Leaf:
    kind, value = _text(given["kind"]), given["value"]
    if kind not in ("tensor", "constant", "size") or not isinstance(
        value, bool | int | float | str | None
    ):
        raise ValueError(f"a leaf is {given!r}")
    spec = None if given["spec"] is None else _spec(given["spec"])
    size = None if given["size"] is None else _size(given["size"])
    result = None if given["result"] is None else _whole(given["result"])
    if (kind == "tensor") != (spec is not None) or (kind == "size") != (size is not None):
        raise ValueError(f"a leaf is {given!r}")
    return Leaf(kind, spec, result, value, size)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value
