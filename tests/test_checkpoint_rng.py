"""The backward sees the numbers that the forward drew: saved, or drawn again from their key."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tests.compiling import compiled_whole
from xla_dynamo.dynamo import joint_partitioner
from xla_dynamo.graphs.nodes import run_and_save_rng_state, run_with_rng_state

ROWS, COLUMNS = 4, 50
both = pytest.mark.parametrize("rng", ["xla", "torch"])


def assert_one_mask(fn, rng="xla", dtype=torch.float32, calls=2):
    """`fn` is a product of its input with random numbers: its gradient at ones is its value."""
    f = compiled_whole(fn, rng=rng)
    results = []
    for call in range(calls):
        x = torch.ones(ROWS, COLUMNS, dtype=dtype, requires_grad=True)
        y = f(x)
        torch.manual_seed(1000 + call)  # changes nothing for this backward
        state = torch.get_rng_state()
        y.sum().backward()
        assert torch.equal(state, torch.get_rng_state())
        torch.testing.assert_close(x.grad, y.detach())
        results.append(y.detach())
    assert not torch.equal(*results[:2]), "two calls differ"


def replayed(fn, **kwargs):
    kwargs = {"use_reentrant": False, **kwargs}
    return lambda x: checkpoint(fn, x, **kwargs)


@pytest.fixture
def cuts(monkeypatch):
    """The forward and backward graphs made during a test."""
    made, cut = [], joint_partitioner.forward_backward

    def watched(*args, **kwargs):
        made.append(cut(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr("xla_dynamo.backend.forward_backward", watched)
    return made


def targets(gm):
    return [node.target for node in gm.graph.nodes]


# --- checkpointed regions ----------------------------------------------------------------------


@both
@pytest.mark.parametrize("preserve_rng_state", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_dropouts_inside_and_around(rng, use_reentrant, preserve_rng_state):
    inner = replayed(
        lambda y: F.dropout(F.dropout(y * 2, 0.5) * 3, 0.2),
        use_reentrant=use_reentrant,
        preserve_rng_state=preserve_rng_state,
    )
    assert_one_mask(lambda x: F.dropout(inner(F.dropout(x, 0.1)), 0.1) * torch.rand(50), rng)


@both
def test_regions_in_a_row_and_nested(rng):
    one = replayed(lambda y: F.dropout(y, 0.5))
    assert_one_mask(lambda x: one(one(x)), rng)
    assert_one_mask(replayed(lambda y: one(F.dropout(y, 0.2)) * torch.rand(50)), rng)


def test_draws_are_compiled_and_drawn_again(cuts, split_graphs):
    assert_one_mask(replayed(lambda y: F.dropout(y.exp().log(), 0.5)))
    ((forward, backward),) = cuts
    assert run_and_save_rng_state in targets(forward)
    assert run_with_rng_state in targets(backward)
    saved = [n.meta["val"] for n in backward.graph.find_nodes(op="placeholder")]
    assert torch.bool not in [t.dtype for t in saved], "the key is saved, not the mask"
    assert not split_graphs


like = torch.empty_like
DRAWS = {
    "dropout": lambda y: F.dropout(torch.ones_like(y), 0.3),
    "alpha_dropout": lambda y: F.alpha_dropout(torch.ones_like(y), 0.3, True),
    "dropout1d": lambda y: F.dropout1d(torch.ones_like(y), 0.3),
    "rrelu": lambda y: F.rrelu(-torch.ones_like(y), training=True),
    "bernoulli_": lambda y: like(y).bernoulli_(0.3),
    "bernoulli": lambda y: torch.bernoulli(torch.full_like(y, 0.4)),
    "uniform_": lambda y: like(y).uniform_(1, 2),
    "rand": lambda y: torch.rand(y.shape),
    "randn_like": torch.randn_like,
    "complex": lambda y: torch.randn(y.shape, dtype=torch.complex64).imag,
    "normal_": lambda y: like(y).normal_(),
    "exponential_": lambda y: like(y).exponential_(),
    "geometric_": lambda y: like(y).geometric_(0.3),
    "cauchy_": lambda y: like(y).cauchy_(),
    "log_normal_": lambda y: like(y).log_normal_(),
    "randint": lambda y: torch.randint(9, y.shape),
    "randperm": lambda y: torch.randperm(COLUMNS),
    "multinomial": lambda y: torch.multinomial(torch.ones(ROWS, COLUMNS), COLUMNS),
    "poisson": lambda y: torch.poisson(torch.full_like(y, 3.0)),
    "binomial": lambda y: torch.binomial(torch.full_like(y, 9.0), torch.full_like(y, 0.3)),
    "gamma": lambda y: torch._standard_gamma(torch.full_like(y, 2.0)),
    "dirichlet": lambda y: torch._sample_dirichlet(torch.ones(ROWS, COLUMNS)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_drawn_again(name):
    draw = DRAWS[name]
    assert_one_mask(replayed(lambda y: y * draw(y) * (1 + draw(y))))


def test_draws_of_one_region_differ():
    def f(y):
        a, b = (y * torch.rand(COLUMNS) for _ in range(2))
        return a * b, (a == b).any()

    product, alike = compiled_whole(replayed(f))(torch.ones(ROWS, COLUMNS, requires_grad=True))
    product.sum().backward()
    assert not alike


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    assert_one_mask(replayed(lambda y: F.dropout(y, 0.3)), dtype=dtype)


def test_dynamic_sizes():
    f = compiled_whole(replayed(lambda y: F.dropout(y, 0.5)), dynamic=True)
    for n in (7, 12):
        x = torch.ones(n, requires_grad=True)
        y = f(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())


# --- policies ----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("policy", list(CheckpointPolicy))
@pytest.mark.filterwarnings("ignore")
def test_selective_checkpoints(rng, policy):
    # With PREFER_SAVE, torch saves the draws, and not what stands between them and the backward.
    context = functools.partial(
        create_selective_checkpoint_contexts, lambda *args, **kwargs: policy
    )
    region = replayed(lambda y: F.dropout(y, 0.3) * torch.rand(y.shape), context_fn=context)
    assert_one_mask(region, rng)


@pytest.mark.parametrize("budget", [0, 0.3, 0.7, 1.0])
def test_memory_budgets(budget):
    # Torch's partitioner by minimal cuts draws anew in the backward at small budgets.
    with torch._functorch.config.patch(activation_memory_budget=budget):
        assert_one_mask(lambda x: F.dropout(x, 0.3) * torch.rand(50) * like(x).exponential_())


def test_equal_draws_stay_two():
    def f(x):
        a, b = like(x).exponential_(), like(x).exponential_()
        return x * a * b, (a == b).any()

    assert not compiled_whole(f)(torch.ones(COLUMNS, requires_grad=True))[1]


# --- checkpoints and states outside of the graph -----------------------------------------------


@both
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_eager_checkpoint_around_a_compiled_function(rng, use_reentrant):
    f = compiled_whole(lambda y: F.dropout(y, 0.5) * torch.rand(COLUMNS), rng=rng)
    x = torch.ones(COLUMNS, requires_grad=True)
    y = checkpoint(f, x, use_reentrant=use_reentrant)
    state = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert torch.equal(state, torch.get_rng_state())


@both
def test_states_saved_and_restored_inside(rng):
    def f(x):
        state = torch.get_rng_state()
        first = torch.rand(3) + x
        torch.set_rng_state(state)
        return first, torch.rand(3) + x

    # Dynamo breaks the graph at each.
    first, second = compiled_whole(f, fullgraph=False, rng=rng)(torch.zeros(3))
    assert torch.equal(first, second)


@both
def test_fork_rng_inside(rng):
    def f(x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            forked = torch.rand(3) + x
        return forked, torch.rand(3) + x

    c, x = compiled_whole(f, fullgraph=False, rng=rng), torch.zeros(3)
    torch.manual_seed(1)
    (forked, first), (again, second) = c(x), c(x)
    assert torch.equal(forked, again)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(first, c(x)[1])
