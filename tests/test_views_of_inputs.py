"""Results that are views of inputs lie where eager's lie, whatever the input's place in memory.

At dynamic sizes AOTAutograd reads that off the tensors we return. Cold: every case is traced anew.
"""

import pytest
import torch
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

from tests.compiling import compiled, compiled_anew

VIEWS = {
    "select": lambda x, n: x.select(0, n),
    "select from the end": lambda x, n: x.select(-1, -n),
    "slice": lambda x, n: x[n:],
    "every second": lambda x, n: x[n::2],
    "all but the last": lambda x, n: x[:, :-n],
    "transpose": lambda x, n: x.transpose(0, n),
    "diagonal": lambda x, n: x.diagonal(n),
    "unbind": lambda x, n: x.unbind(1)[n],
    "split": lambda x, n: x.split(n)[-1],
    "chunk": lambda x, n: x.chunk(2)[n],
    "unfold": lambda x, n: x.unfold(0, n, n),
    "unsqueeze": lambda x, n: x.unsqueeze(n),
    "squeeze": lambda x, n: x[:n].squeeze(0),
    "view": lambda x, n: x[n].view(2, -1),
    "unflatten": lambda x, n: x[:, n].unflatten(0, (2, -1)),
    "bits": lambda x, n: x[n].view(torch.int32),
    "several": lambda x, n: x[n:, n::2].t().select(0, n),
}
PLACES = {
    "of its own": lambda x: x.clone(),
    "columns first": lambda x: x.t().contiguous().t(),
    "with gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "behind another row": lambda x: torch.cat([x[:1], x])[1:],
    "every second row": lambda x: torch.cat([x, x])[::2],
}


def where_it_lies(view, x):
    return (
        view.size(),
        view.stride(),
        view.data_ptr() - x.data_ptr(),
        view.is_conj(),
        view.resolve_conj().tolist(),
    )


def views_of(f, x):
    """Where the views lie that two calls return, and what is left in x."""
    found = []
    for _ in range(2):
        view, *others = f(x, 1)
        view.add_(1)  # must be seen in x
        found.append((where_it_lies(view, x), x.tolist(), [o.tolist() for o in others]))
    return found


def assert_views_lie_as_in_eager(f, x, place=lambda x: x.clone(), dynamic=True):
    expected = views_of(f, place(x))
    assert views_of(compiled_anew(f, dynamic=dynamic), place(x)) == expected


@pytest.mark.every(6)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_changed_input(view, place, dynamic):
    def f(x, n):
        y = VIEWS[view](x, n)
        y.mul_(2)
        return y, y + 1

    assert_views_lie_as_in_eager(f, torch.arange(24.0).view(4, 6), PLACES[place], dynamic)


@pytest.mark.parametrize("change", [True, False])
def test_other_meanings_of_the_same_bytes(change):
    def of_complex(x, n):
        y = torch.view_as_complex(x[n:].unflatten(1, (-1, 2)))
        return ((y.mul_(2) if change else y),)

    def conjugate(x, n):
        y = x[n:].conj()[:n]
        return ((y.mul_(2j) if change else y),)

    numbers = torch.arange(24.0).view(4, 6)
    assert_views_lie_as_in_eager(of_complex, numbers)
    assert_views_lie_as_in_eager(conjugate, torch.complex(numbers, numbers + 1))


def test_another_place_without_another_trace():
    """Dynamo does not guard storage offsets."""

    def f(x, n):
        y = x[n:]
        y.mul_(2)
        return (y,)

    base = torch.arange(32.0)
    run = compiled_anew(f, dynamic=True)
    for offset in (0, 5, 16):
        x = base[offset : offset + 8]
        (view,) = run(x, 1)
        assert view.data_ptr() == x.data_ptr() + view.element_size()


@pytest.mark.parametrize("dynamic", [None, True])
def test_beside_gradients(dynamic):
    def f(x, weight, n):
        y = x[n:]
        y.mul_(2)
        return y, (y * weight).sum()

    found = []
    for g in (f, compiled(f, dynamic=dynamic)):
        base = torch.arange(24.0).view(4, 6)
        x, weight = base[1:], torch.ones(6, requires_grad=True)
        view, loss = g(x, weight, 1)
        loss.backward()
        found.append((where_it_lies(view, x), loss.item(), weight.grad.tolist(), base.tolist()))
    assert found[0] == found[1]


def test_around_an_operator_in_torch():
    def f(x, n):
        y = x[n:]
        y.mul_(len(x.nonzero()))
        return (y,)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_views_lie_as_in_eager(f, torch.arange(24.0).view(4, 6), PLACES["behind another row"])


def test_torch_still_says_what_is_a_view():
    names = {"tokens", "output_info", "static_input_indices"}
    assert names <= ViewAndMutationMeta.__dataclass_fields__.keys(), (
        "see xla_dynamo/dynamo/aot_metadata.py"
    )
    assert hasattr(OutputType, "alias_of_input"), "see xla_dynamo/dynamo/aot_metadata.py"
