"""Small modules that are wrapped in some way and take one step, beside the plain ones."""

import dataclasses
import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import xla_dynamo as xm
from xla_dynamo.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    checkpoint_module,
    consolidate_sharded_state_dicts,
)

ROWS, WIDTH = 6, 5
NEAR = {"rtol": 1e-4, "atol": 1e-5}


class Layer(nn.Module):
    """Its sizes are not divisible by two."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.scale + x


def two_layers():
    return nn.Sequential(Layer(), Layer())


class Tied(nn.Module):
    """A weight that two layers have."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Recurrent(nn.Module):
    """A layer with a list of its weights beside."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x.unsqueeze(1))[0]


class CallsTwice(nn.Module):
    """A layer that is called twice, in a dict."""

    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def forward(self, x):
        return {"first": self.layer(x), "both": self.layer(self.layer(x))}


class Checkpoints(nn.Module):
    """A model that checkpoints its layers itself, as those of transformers do."""

    def __init__(self, reentrant=False):
        super().__init__()
        self.layers, self.reentrant = two_layers(), reentrant
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x * self.gain
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class Normed(nn.Module):
    """Buffers: of floating-point numbers, and a count."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(self.linear(x))


@dataclasses.dataclass
class Output:
    """An object that nobody looks into."""

    x: torch.Tensor


class ReturnsObject(Layer):
    """A module whose output is such an object, with a tensor beside that has another gradient."""

    def forward(self, x):
        return Output(super().forward(x)), self.scale * 2


def partly_frozen():
    model = two_layers()
    model[0].requires_grad_(False)
    return model


def per_layer(module, recurse, nonwrapped_numel):
    return recurse or isinstance(module, Layer)


def as_there(module, recurse, unwrapped_params):
    return recurse or isinstance(module, Layer)


def checkpointed(module, **options):
    return XlaFullyShardedDataParallel(checkpoint_module(module), **options)


def checkpointed_outside(module, **options):
    return checkpoint_module(XlaFullyShardedDataParallel(module, **options))


def on_meta():
    """Layers that get memory, and values, when they are wrapped."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def from_meta():
    model = on_meta()
    for layer in (model[0], model[2]):
        layer.to_empty(device="cpu").reset_parameters()
    return model


def wrapped(**options):
    return functools.partial(XlaFullyShardedDataParallel, **options)


def by_layer(**options):
    return wrapped(auto_wrap_policy=per_layer, **options)


def compiled_layers():
    return nn.Sequential(*(torch.compile(m, backend="openxla") for m in two_layers()))


_UNORDERED = {"optimization_barrier_in_forward": False, "optimization_barrier_in_backward": False}
# A model, what wraps it, and how it is trained.
CASES = {
    "plain": (two_layers, wrapped(), {}),
    "a policy of PyTorch/XLA": (two_layers, wrapped(auto_wrap_policy=as_there), {}),
    "flat": (partly_frozen, by_layer(flatten_parameters=True), {}),
    "on dimension 0": (two_layers, wrapped(shard_param_on_dim_0=True), {}),
    "tied": (Tied, wrapped(), {}),
    "called twice": (CallsTwice, by_layer(), {}),
    "checkpoint inside": (two_layers, by_layer(auto_wrapper_callable=checkpointed), {}),
    "checkpoints the older way": (functools.partial(Checkpoints, True), by_layer(), {}),
    "kept gradients": (two_layers, by_layer(), {"parts": 2}),
    "not at once": (two_layers, by_layer(execute_sharding_on_init=False), {}),
    "on the meta device": (on_meta, by_layer(), {}),
}
MORE_CASES = {
    "by layer": (two_layers, by_layer(), {}),
    "frozen": (partly_frozen, by_layer(), {}),
    "recurrent": (Recurrent, wrapped(), {}),
    "checkpoint outside": (two_layers, by_layer(auto_wrapper_callable=checkpointed_outside), {}),
    "a program for the forward": (two_layers, by_layer(), {"sync": True}),
    "step in the backward": (two_layers, by_layer(mark_step_on_finalization=True), {}),
    "on the device": (lambda: two_layers().to("xla"), by_layer(), {}),
    "tied and flat": (Tied, wrapped(flatten_parameters=True), {}),
    "checkpoints by itself": (Checkpoints, by_layer(), {}),
    "compiled layers": (compiled_layers, wrapped(), {}),
    "keeps whole": (two_layers, by_layer(reshard_after_forward=False), {"sync": True}),
    "each operator": (two_layers, by_layer(), {"eager": True}),
    "kept, flat": (two_layers, by_layer(flatten_parameters=True), {"parts": 2}),
    "no order": (two_layers, by_layer(**_UNORDERED), {}),
}


def loss_of(output):
    if isinstance(output, dict):
        return sum(loss_of(x) for x in output.values())
    return output.square().mean()


def rows(rank=0, size=1):
    """The rows of the batch that a process has."""
    x = torch.randn(ROWS * 4, WIDTH, generator=torch.Generator().manual_seed(1))
    count = len(x) // size
    return x[rank * count : (rank + 1) * count]


def plain_step(make):
    """The plain module's parameters behind a step on all rows, and the norm of its gradients."""
    torch.manual_seed(0)
    model = from_meta() if make is on_meta else make().cpu()
    optimizer = torch.optim.SGD(trained(model), lr=0.5)
    loss_of(model(rows())).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return model.state_dict(), norm


def sharded_step(make, wrapper, parts=1, sync=False, eager=False):
    """The same of a wrapped one, put together from all processes."""
    rank, size = xm.runtime.global_ordinal(), xm.runtime.world_size()
    torch.manual_seed(0)
    model = wrapper(make())
    optimizer = torch.optim.SGD(trained(model), lr=0.5)
    pieces = rows(rank, size).to("xla").chunk(parts)
    xm.eager_mode(eager)
    for piece in pieces[:-1]:
        with model.no_sync():
            (loss_of(model(piece)) / parts).backward()
        xm.sync()
        assert all(p.grad is None for p in model.parameters())
    loss = loss_of(model(pieces[-1])) / parts
    if sync:
        xm.sync()
    loss.backward()
    norm = model.clip_grad_norm_(0.1)
    optimizer.step()
    xm.sync()
    xm.eager_mode(False)
    assert not any(shard.is_whole for unit in model._wrappers() for shard in unit._shards)
    return together(model), norm.cpu()


def wrong(cases):
    """The cases in which a wrapped module is another than the plain one behind the step."""
    found = []
    for name, (make, wrapper, how) in cases.items():
        parameters, norm = plain_step(make)
        made, own_norm = sharded_step(make, wrapper, **how)
        expected = {**parameters, "its norm": norm}
        try:
            torch.testing.assert_close({**made, "its norm": own_norm}, expected, **NEAR)
        except AssertionError as error:
            found.append((name, str(error)))
    return found


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def together(model):
    """The state dict of a wrapped module, as the plain one has it."""
    mine = {name: t.detach().cpu() for name, t in model.state_dict().items()}
    brought = dict(xm.mesh_reduce("state", (model.rank, mine), list))
    states = [brought[index] for index in range(model.world_size)]
    return consolidate_sharded_state_dicts(states, model.get_shard_metadata())
