"""What is known of a value's dimensions in a bounded program: which elements are the graph's.

A dimension is made of *atoms*, in row-major order: [batch, sequence] reshaped to one dimension
has the two atoms. An atom is static; or dynamic, and then only its first `extent` positions have
elements of the graph, and what stands in the others is arbitrary; or uniform, as made by a
broadcast: all positions have the same elements, so that it agrees with any atoms of its size.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeAlias

from xla_dynamo.lowerings.bounded.extents import Extent, Refused, Sizes, is_dynamic


@dataclasses.dataclass(frozen=True, slots=True)
class Atom:
    """A part of a dimension.

    Attributes:
        sizes: its size in each variant.
        extent: how many positions have elements of the graph; None for a static or uniform one.
        uniform: whether all positions have the same elements.
    """

    sizes: Sizes
    extent: Extent | None = None
    uniform: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Whether the size is not the same in all variants."""
        return is_dynamic(self.sizes)


Dim: TypeAlias = tuple[Atom, ...]
Dims: TypeAlias = tuple[Dim, ...]


def dim_sizes(dim: Dim) -> Sizes:
    """The size of a dimension in each variant; () is 1 in all, for which an empty tuple stands."""
    return tuple(math.prod(each) for each in zip(*(a.sizes for a in dim), strict=True))


def static_dim(sizes: Sizes) -> Dim:
    """A dimension of a static size."""
    return (Atom(sizes),)


def uniform_dim(sizes: Sizes) -> Dim:
    """A dimension along which a value does not change; static if the size is."""
    return (Atom(sizes, None, is_dynamic(sizes)),)


def is_free(dim: Dim) -> bool:
    """Whether some atom of a dimension is dynamic, a uniform one included."""
    return any(atom.is_dynamic for atom in dim)


def simplified(atoms: Sequence[Atom]) -> Dim:
    """Atoms with neighbors joined that are both static, or both uniform."""
    found: list[Atom] = []
    for atom in atoms:
        if set(atom.sizes) == {1} and len(atoms) > 1:
            continue
        last = found[-1] if found else None
        alike = last is not None and last.uniform == atom.uniform
        if last is not None and alike and last.extent is None and atom.extent is None:
            sizes = tuple(a * b for a, b in zip(last.sizes, atom.sizes, strict=True))
            found[-1] = Atom(sizes, None, atom.uniform)
        else:
            found.append(atom)
    return tuple(found) or (Atom((1,) * len(atoms[0].sizes)),)


def joined(dims: Sequence[Dim]) -> Dim:
    """The dimension of a result that is computed element by element.

    Raises:
        Refused: the operands' elements of the graph stand at different positions.
    """
    shaped = [d for d in dims if not (len(d) == 1 and d[0].uniform)]
    if not shaped:
        return dims[0]
    first, *others = shaped
    for other in others:
        if other == first:
            continue
        if [a.sizes for a in other] != [a.sizes for a in first]:
            raise Refused("it combines sizes that were merged in different ways")
        first = tuple(map(_joined_atoms, first, other))
    return first


def _joined_atoms(a: Atom, b: Atom) -> Atom:
    if a == b or b.uniform:
        return a
    if a.uniform:
        return b
    raise Refused("it combines two dynamic dimensions that are not known to be equal")


def regrouped(dims: Dims, wanted: Sequence[Sizes]) -> Dims:
    """The dimensions of a reshape.

    Raises:
        Refused: it merges or splits a dynamic dimension in a way that is not followed.
    """
    atoms = [atom for dim in dims for atom in dim if set(atom.sizes) != {1}]
    found: list[Dim] = []
    for sizes in wanted:
        taken: list[Atom] = []
        rest = sizes
        while set(rest) != {1}:
            if not atoms:
                raise Refused("it reshapes a dynamic dimension in an unknown way")
            atom = atoms.pop(0)
            if _divides(atom.sizes, rest):
                taken.append(atom)
                rest = _quotient(rest, atom.sizes)
                continue
            # A part of an atom: the others are left for the next dimensions.
            if atom.extent is not None or not _divides(rest, atom.sizes):
                raise Refused("it splits or merges a dynamic dimension in an unknown way")
            left = _quotient(atom.sizes, rest)
            if not atom.uniform and (is_dynamic(rest) or is_dynamic(left)):
                raise Refused("it splits or merges a dynamic dimension in an unknown way")
            taken.append(Atom(rest, None, is_dynamic(rest)))
            atoms.insert(0, Atom(left, None, is_dynamic(left)))
            rest = (1,) * len(rest)
        found.append(simplified(taken) if taken else static_dim(sizes))
    if atoms:
        raise Refused("it reshapes a dynamic dimension in an unknown way")
    return tuple(found)


def _divides(part: Sizes, whole: Sizes) -> bool:
    return all(n % d == 0 for d, n in zip(part, whole, strict=True))


def _quotient(whole: Sizes, part: Sizes) -> Sizes:
    return tuple(n // d for n, d in zip(whole, part, strict=True))
