"""Expert parallel: experts stay where they are, and tokens are sent to them and back."""

import functools
import math

import pytest
import torch

from tests.spmd.sharding import WIDE, collectives, kept_shards, mlp, moved
from tests.spmd.small_transformer import (
    HIDDEN,
    MESHES,
    WIDTH,
    Transformer,
    check_bytes,
    check_losses,
    on_meshes,
    train,
)
from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes import (
    ExpertParallel,
    data_parallel,
    mixture_of_experts,
    parallelize_module,
)

EXPERTS = 8


class Experts(torch.nn.Module):
    """Two layers of each expert, stacked."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(self, x):
        return torch.bmm(torch.bmm(x, self.up).relu(), self.down)


class Mixture(torch.nn.Module):
    """A router and its experts."""

    def __init__(self, mesh=None, capacity_factor=1.25):
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()
        axis = mesh.axis_names[-1] if mesh else "expert"
        self.options = {"mesh": mesh, "axis": axis, "capacity_factor": capacity_factor}

    def forward(self, x):
        return mixture_of_experts(x, self.router(x), self.experts, top_k=2, **self.options)


def of_experts(mesh=None):
    return Transformer(feed_forward=functools.partial(Mixture, mesh))


@on_meshes
def test_twenty_steps(name):
    mesh = MESHES[name]
    devices = mesh.mesh_shape[-1]

    def recipe(model):
        plan = {"layers.*.feed_forward.experts": ExpertParallel()}
        parallelize_module(model, mesh, plan, axis=mesh.axis_names[-1])
        return data_parallel(model, mesh, mesh.axis_names), mesh, mesh.axis_names

    run = train(recipe, functools.partial(of_experts, mesh))
    check_losses(run, of_experts)
    stacked = [p for layer in run.model.layers for p in layer.feed_forward.experts.parameters()]
    for weight in stacked:
        assert kept_shards(weight) == [[(EXPERTS // devices, *weight.shape[1:])] * 8]
    rest = sum(p.nbytes for p in run.model.parameters()) - sum(w.nbytes for w in stacked)
    share = sum(w.nbytes for w in stacked) / devices + rest
    assert check_bytes(run) == share / sum(p.nbytes for p in run.model.parameters())
    assert set(collectives(run.executable)) == {"all-reduce", "all-to-all"}
    # To the experts and back, in two layers, forward and backward, a part to each device.
    assert len(moved(run.executable, "all-to-all")) == 2 * 2 * 2 * devices
    summed = {math.prod(shape) for shape in moved(run.executable, "all-reduce")}
    assert stacked[0].numel() not in summed


def by_loop(x, logits, experts, top_k=2):
    """Each token on its own."""
    result = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for s in range(x.shape[1]):
            values, indices = logits[b, s].topk(top_k)
            for weight, e in zip(values.softmax(0), indices, strict=True):
                result[b, s] += weight * ((x[b, s] @ experts.up[e]).relu() @ experts.down[e])
    return result


def test_slots_for_all_are_exact():
    experts, x, logits = Experts(), torch.randn(2, 6, WIDTH), torch.randn(2, 6, EXPERTS)
    found = mixture_of_experts(x, logits, experts)
    torch.testing.assert_close(found, by_loop(x, logits, experts), rtol=1e-4, atol=1e-5)
    few = mixture_of_experts(x, logits, experts, top_k=1)
    torch.testing.assert_close(few, by_loop(x, logits, experts, 1), rtol=1e-4, atol=1e-5)


def test_tokens_without_a_slot():
    """The first tokens of a sequence have the slots, and second choices come after all first."""
    experts, x = Experts(), torch.randn(1, 4, WIDTH)
    logits = torch.zeros(1, 4, EXPERTS)
    logits[..., 0], logits[..., 1] = 2.0, 1.0
    logits[0, 3, 0], logits[0, 3, 1] = 1.0, 2.0  # the last token prefers the second expert
    found = mixture_of_experts(x, logits, experts, capacity_factor=1.0)  # a slot for each expert
    first, second = (torch.tensor([2.0, 1.0]).softmax(0)).unbind()

    def expert(e, token):
        return (token @ experts.up[e]).relu() @ experts.down[e]

    wanted = torch.zeros(1, 4, WIDTH)
    wanted[0, 0] = first * expert(0, x[0, 0])
    wanted[0, 3] = first * expert(1, x[0, 3])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert second < first


def test_what_does_not_fit():
    x, logits = torch.randn(2, 6, WIDTH), torch.randn(2, 6, EXPERTS)
    with pytest.raises(ShardingError, match="no axis 'expert'"):
        mixture_of_experts(x, logits, Experts(), mesh=WIDE)
    with pytest.raises(
        ShardingError, match=r"of Sequential have the shapes \[\(64, 32\), \(64,\), "
    ):
        parallelize_module(mlp(), WIDE, ExpertParallel())
    experts = Experts()
    experts.up = torch.nn.Parameter(torch.zeros(6, 4, 4))
    experts.down = torch.nn.Parameter(torch.zeros(6, 4, 4))
    with pytest.raises(ShardingError, match=r"dimension 0 of Experts.up, of shape \(6, 4, 4\)"):
        parallelize_module(experts, WIDE, ExpertParallel())
