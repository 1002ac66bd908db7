"""The notes of passes: what whoever binds a rewritten module to torch's tensors has to know."""

import dataclasses
from collections.abc import Mapping

from xla_dynamo.lowerings.kernels import PackedKernel


@dataclasses.dataclass(frozen=True, slots=True)
class Notes:
    """What passes have done to a module that its signature does not say.

    Each pass fills the fields that it answers for. Arguments and results are known by their index,
    which later passes leave as it is.

    Attributes:
        takes_negative_zero: whether `main` has another argument behind the others, an f32[], for
            which the caller passes -0.0 (see `contraction_barriers`).
        permutations: by the index of a result of `main` that is returned permuted, how to
            transpose it back (see `result_permutations`).
        forms: of each handle of a kernel with packed weights, by its number, what it computes (see
            `call_packed`).
    """

    takes_negative_zero: bool = False
    permutations: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    forms: tuple[PackedKernel, ...] = ()

    def joined(self, other: "Notes") -> "Notes":
        """These notes and those of another pass, which has filled other fields."""
        names = [field.name for field in dataclasses.fields(self)]
        filled = {name: value for name in names if (value := getattr(other, name))}
        assert not any(getattr(self, name) for name in filled), "two passes answer for one field"
        return dataclasses.replace(self, **filled)
