"""The forms of a matrix product as calls, which are timed to choose among them."""

from typing import Any

import torch

from xla_dynamo.kernels.library_calls import script_calls
from xla_dynamo.kernels.onednn_product import OneDNNProduct
from xla_dynamo.kernels.planned_product import PlannedProduct, Product
from xla_dynamo.kernels.product_choices import COLUMNS, FORMS, ROWS, XLA, Choice, Sizes
from xla_dynamo.kernels.trials import Call, trial
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.cpu.products import multiply_and_sum

_PACKED = "packed, "  # before the name of a form, where the second factor is a packed weight
# Another form than the one that similar products take has to be faster by this much.
_MARGIN = 0.97


def factors(sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Random factors, as they come with a call; torch's own generator is not asked."""
    generator = torch.Generator().manual_seed(0)
    dtype, stack, m, k, n, turn_x, turn_y = sizes
    lead = (stack,) if stack > 1 else ()
    shapes = (k, m) if turn_x else (m, k), (n, k) if turn_y else (k, n)
    x, y = (torch.randn(*lead, *s, generator=generator, dtype=torch.float32) for s in shapes)
    return x.to(dtype), y.to(dtype)


def forms_of(sizes: Sizes) -> dict[str, Call]:
    """Calls of a product in each form; those with a packed weight unless products are stacked.

    Raises:
        OneDNNError: oneDNN cannot compute it.
    """
    x, y = factors(sizes)
    stack = x.shape[:-2]
    product = OneDNNProduct(tuple(stack), *sizes[2:], (sizes.dtype, sizes.dtype), False)
    form = PlannedProduct(product)

    def planned(*given: Any) -> Any:
        made = tensor_type([*stack, sizes.rows, sizes.columns], sizes.dtype)
        return script_calls(0, given, [made])[0]

    forms = {XLA: trial(lambda x, y: _by_xla(sizes, x, y), [x, y])}
    for by in (ROWS, COLUMNS):
        forms[by] = trial(planned, [x, y], [Product(form, by=by)])
        if not stack:
            forms[_PACKED + by] = trial(planned, [x], [Product(form, y, by=by)])
    return forms


def _by_xla(sizes: Sizes, x: Any, y: Any) -> Any:
    last = build.rank_of(x) - 1
    if sizes.rows == 1 and sizes.dtype.itemsize < 4 and not sizes.transpose_x:
        swap = [*range(last - 1), last, last - 1]
        y = build.transpose(y, swap) if sizes.transpose_y else y
        return multiply_and_sum(x, y, sizes.dtype)
    contract = [last - sizes.transpose_x], [last - (not sizes.transpose_y)]
    batch = list(range(last - 1))
    return build.dot_general(x, y, contract, (batch, batch), sizes.dtype)


def choice_of(seconds: dict[str, float], known: Choice | None = None) -> Choice:
    """The fastest forms by the seconds of a call; the known ones where they are about as fast."""
    plain = _best({form: seconds[form] for form in FORMS if form in seconds}, known and known.plain)
    packed = {form: seconds[_PACKED + form] for form in FORMS if _PACKED + form in seconds}
    return Choice(plain, _best({XLA: seconds[plain], **packed}, known and known.packed))


def _best(seconds: dict[str, float], known: str | None) -> str:
    best = min(seconds, key=seconds.__getitem__)
    if known in seconds and seconds[best] > _MARGIN * seconds[known]:
        return known
    return best
