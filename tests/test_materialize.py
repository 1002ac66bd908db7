"""Values that several fusions read are materialized, and loops do not grow with a model's depth."""

import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F

from tests.comparison import compare_with_exact
from tests.compiling import assert_matches_eager, compiled, compiled_anew, watched
from xla_dynamo.lowerings.passes import materialize


@pytest.fixture(autouse=True)
def large(cold, monkeypatch):
    """So many elements are not few."""
    monkeypatch.setattr(materialize, "FEW", 256)


class Block(torch.nn.Module):
    """A residual sum that is normalized, as in BERT."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x))))


def executables_of(f, *args, trains=False):
    run, built = watched(f)
    result = run(*args)
    if trains:
        result.sum().backward()
    return built


def once(built):
    return built.stablehlo.count("call @once")


def widest(built):
    """The most arrays, as large as its result, that a loop reads."""
    sizes = {
        found[1]: math.prod(map(int, filter(None, found[2].split(","))))
        for found in re.finditer(r"%([\w.\-]+) = \w+\[([\d,]*)\]", built.hlo)
    }
    loops = re.finditer(r"%([\w.\-]+) = \S+ fusion\((.*?)\), kind=kLoop", built.hlo)
    return max(
        sum(sizes[x] >= sizes[loop[1]] >= 256 for x in re.findall(r"%([\w.\-]+)", loop[2]))
        for loop in loops
    )


@pytest.mark.parametrize("trains", [False, True])
def test_loops_read_as_much_in_a_deeper_model(trains):
    torch.manual_seed(0)
    x = torch.randn(2, 16, 32)
    reads = []
    for depth in (3, 7):
        model = torch.nn.Sequential(*[Block() for _ in range(depth)])
        with torch.set_grad_enabled(trains):
            built = executables_of(model, x, trains=trains)
        assert len(built) == 1 + trains
        assert not any(re.search(r"\[2,16,32\]\S* copy\(", each.hlo) for each in built)
        reads.append([widest(each) for each in built])
    assert reads[0] == reads[1]


def test_a_program_of_few_elements_grows_no_faster_than_its_model():
    torch.manual_seed(0)
    lengths = []
    for depth in (3, 6, 12):
        model = torch.nn.Sequential(*[Block() for _ in range(depth)])
        built = executables_of(model, torch.randn(1, 4, 32), trains=True)
        assert once(built[1]) > 0
        lengths.append(sum(len(each.hlo.splitlines()) for each in built))
    assert lengths[2] - lengths[1] < 2.2 * (lengths[1] - lengths[0])


def test_gradients():
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*[Block() for _ in range(4)]), torch.randn(2, 16, 32)

    def gradients(f, model, dtype):
        torch.autograd.backward(f(x.to(dtype)).square().sum())
        return [p.grad for p in model.parameters()]

    wide, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    actual = gradients(compiled(model), model, torch.float32)
    exact = gradients(wide, wide, torch.float64)
    compare_with_exact(exact, gradients(eager, eager, torch.float32), actual)


def two(n=16):
    return torch.randn(n, n), torch.randn(n, n)


def assert_materializes(f, *args, times):
    """Compare with eager, and see how many values are materialized."""
    run, built = watched(f)
    assert_matches_eager(run, *args)
    (executable,) = built
    assert once(executable) == times


def test_what_is_reduced_twice_is_made_once():
    assert_materializes(lambda x, y: ((z := x + y).sum(0), z.amax(1)), *two(), times=1)


def test_what_is_returned_and_reduced_is_made_once():
    assert_materializes(lambda x, y: (z := x * y, z.sum(1)), *two(), times=1)


def test_what_is_read_twice_to_make_one_value_is_not_made_for_itself():
    def f(x, y):
        z = x + y
        return (z * torch.tanh(z) + z).sum(1)

    assert_materializes(f, *two(), times=0)


def test_what_only_products_read_is_not_made_for_itself():
    assert_materializes(lambda x, y: ((z := x + y) @ x, z @ y), *two(), times=0)


def test_what_is_made_of_one_array_is_not_made_for_itself():
    assert_materializes(lambda x: ((z := x.exp()).sum(0), z.sum(1)), two()[0], times=0)


def test_little_is_left_alone():
    assert_materializes(lambda x, y: ((z := x + y).sum(0), z.sum(1)), *two(8), times=0)


def test_inputs_that_are_changed():
    def f(x, y):
        x.add_(y)
        return x.sum(0), x.sum(1), x

    assert_materializes(f, *two(), times=1)


def test_empty():
    assert_materializes(
        lambda x, y: ((z := x + y).sum(0), z.sum(1)), *(t[:0] for t in two()), times=0
    )


def test_branches_read_it_too():
    def f(x, y):
        z = x + y
        return torch.cond(x.sum() > 0, lambda z: z.sum(0), lambda z: z.sum(1), (z,)), z.amax(1)

    assert_materializes(f, *two(), times=1)


def heat(x, steps):
    for _ in range(steps):
        around = [torch.roll(x, shift, dim) for shift in (1, -1) for dim in (0, 1)]
        x = x + 0.1 * (sum(around) - 4 * x)
    return x


@pytest.mark.parametrize("size", [12, 40])
def test_a_step_of_a_stencil_is_not_computed_at_every_neighbour(size):
    """Each would compute the one before five times, and that one the one before five times."""
    x = torch.randn(size, size, dtype=torch.float64)
    (built,) = executables_of(lambda x: heat(x, 10), x)
    assert once(built) >= 4
    assert_matches_eager(compiled_anew(heat), x, 10)


def test_a_stencil_of_what_little_work_makes_is_one_loop():
    assert_materializes(
        lambda x: torch.roll(z := x.exp() * 2, 1, 0) + torch.roll(z, 1, 1), two()[0], times=0
    )
