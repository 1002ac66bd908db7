"""Fully sharded: each device keeps its share of everything, and gathers weights alone."""

import functools
import math

import pytest
import torch
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

import xla_dynamo
from tests.spmd.sharding import ONE_AXIS, WIDE, collectives, kept_shards, mlp, moved, sharded
from tests.spmd.small_transformer import (
    MESHES,
    Layer,
    Transformer,
    check_bytes,
    check_losses,
    on_meshes,
    train,
)
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes import (
    SpmdFullyShardedDataParallel,
    checkpoint_module,
    parallelize_module,
)
from xla_dynamo.torch_threads import as_if_compiling

BY_LAYER = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})


def recipe(mesh, **options):
    """Parameters over the last axis of a mesh, the batch over all."""
    *extra, axis = mesh.axis_names
    options |= {"mesh": mesh, "axis": axis, "extra_data_axis": extra[0] if extra else None}
    return lambda model: (
        SpmdFullyShardedDataParallel(model, **options),
        mesh,
        mesh.axis_names,
    )


def check_collectives(run, devices):
    """Weights are gathered, one by one; activations stay where they are; gradients are summed."""
    assert set(collectives(run.executable)) <= {"all-gather", "all-reduce", "reduce-scatter"}
    weights = [p for p in run.model.parameters() if spmd.sharding_of(p)]
    gathered = moved(run.executable, "all-gather")
    assert {math.prod(shape) for shape in gathered} == {w.numel() for w in weights}
    assert len(gathered) >= len(weights)
    for weight in weights:
        if weight.dim() > 1:
            (shards,) = kept_shards(weight)
            assert {math.prod(shard) for shard in shards} == {weight.numel() // devices}


@on_meshes
def test_twenty_steps(name):
    mesh = MESHES[name]
    run = train(recipe(mesh, auto_wrap_policy=BY_LAYER))
    check_losses(run)
    assert check_bytes(run) == 1 / mesh.mesh_shape[-1]
    check_collectives(run, mesh.mesh_shape[-1])


def test_checkpointed_layers():
    """They are computed twice, on gathered weights, and nothing else is gathered."""

    def wrapper(module, **options):
        return SpmdFullyShardedDataParallel(checkpoint_module(module), **options)

    run = train(recipe(ONE_AXIS, auto_wrap_policy=BY_LAYER, auto_wrapper_callable=wrapper))
    check_losses(run)
    check_collectives(run, 8)


def test_tensor_parallel_inside():
    """Parameters that tensor parallel has sharded are sharded by the other axis as well."""
    model, x = mlp(), torch.randn(16, 32)
    wanted = model(x)
    parallelize_module(model, WIDE, {"0": spmd.recipes.ColwiseParallel(),
                                     "2": spmd.recipes.RowwiseParallel()})  # fmt: skip
    wrapped = SpmdFullyShardedDataParallel(model, mesh=WIDE, axis="data")
    assert spmd.sharding_of(model[0].weight).axes == (("model",), ("data",))
    assert spmd.sharding_of(model[2].weight).axes == (("data",), ("model",))
    with torch.no_grad():
        result, executable = sharded(wrapped, x)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    assert sorted(moved(executable, "all-gather")) == [(16, 32), (24,), (24, 16)]
    assert moved(executable, "all-reduce") == [(8, 24)]


def test_gradients_of_a_compiled_module():
    model, x = mlp(), torch.randn(16, 32)
    model(x).square().sum().backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad()
    fast = torch.compile(
        SpmdFullyShardedDataParallel(model, mesh=ONE_AXIS, axis="x"), backend="openxla"
    )
    fast(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=1e-4, atol=1e-4)


def test_batch_norm():
    """Whose buffers change in place, after the marks."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64))
    again = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64))
    again.load_state_dict(model.state_dict())
    x = torch.randn(16, 32)
    wanted = again(x)
    result, executable = sharded(SpmdFullyShardedDataParallel(model, mesh=ONE_AXIS, axis="x"), x)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dict(model.named_buffers()), dict(again.named_buffers()))
    assert (64, 32) in moved(executable, "all-gather")


def test_a_parameter_of_two_layers_is_gathered_once():
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32, bias=False) for _ in range(2)))
    model[1].weight = model[0].weight
    x = torch.randn(16, 32)
    with torch.no_grad():
        wrapped = SpmdFullyShardedDataParallel(model, mesh=ONE_AXIS, axis="x")
        result, executable = sharded(wrapped, x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)
    assert moved(executable, "all-gather") == [(32, 32)]


def test_eager_and_names_are_those_of_the_module():
    plain, model = Transformer(), Transformer()
    model.note = "kept"
    wrapped = SpmdFullyShardedDataParallel(
        model, mesh=ONE_AXIS, axis="x", auto_wrap_policy=BY_LAYER
    )
    assert all(isinstance(layer, SpmdFullyShardedDataParallel) for layer in model.layers)
    assert dict(wrapped.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    state = wrapped.state_dict()
    assert list(state) == list(plain.state_dict())
    assert state._metadata == plain.state_dict()._metadata
    assert wrapped.load_state_dict(plain.state_dict()) == ([], [])  # nothing missing or unexpected
    assert plain.load_state_dict(state) == ([], [])
    tokens = torch.randint(64, (2, 8))
    assert wrapped(tokens).equal(plain(tokens))
    with as_if_compiling():
        result = wrapped(tokens)
    assert result.equal(plain(tokens))
    assert spmd.sharding_of(result) is None
    assert wrapped.note == "kept"
    assert wrapped.module is model
    assert SpmdFullyShardedDataParallel(mlp(), mesh=ONE_AXIS, axis="x")[0].out_features == 64
    with pytest.raises(RuntimeError, match=r"Unexpected key.*nonsense"):
        wrapped.load_state_dict({**state, "nonsense": torch.ones(1)})


def test_what_is_sharded():
    model = torch.nn.Module()
    for name, shape in {"a": (8, 24), "b": (24, 9), "c": (9, 8), "d": (3, 5), "e": ()}.items():
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    model.forward = None
    layer = torch.nn.Sequential(model)
    SpmdFullyShardedDataParallel(layer, mesh=ONE_AXIS, axis="x")
    axes = [s and s.axes for s in map(spmd.sharding_of, model.parameters())]
    assert axes == [((), ("x",)), (("x",), ()), ((), ("x",)), None, None]


def test_by_size_on_all_devices():
    model = mlp((32, 64, 24))
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=2000)
    wrapped = SpmdFullyShardedDataParallel(model, auto_wrap_policy=policy)
    kinds = [isinstance(layer, SpmdFullyShardedDataParallel) for layer in model]
    assert kinds == [True, False, False]
    assert spmd.sharding_of(model[2].weight).mesh == spmd.Mesh(range(8), (8,), ("fsdp",))
    x = torch.randn(16, 32)
    with torch.no_grad():
        torch.testing.assert_close(sharded(wrapped, x)[0], model(x), rtol=1e-4, atol=1e-4)


def test_an_output_that_the_user_marks():
    def by_features(output, mesh):
        spmd.mark_sharding(output, mesh, (None, "x"))

    wrapped = SpmdFullyShardedDataParallel(mlp(), mesh=ONE_AXIS, axis="x", shard_output=by_features)
    x = torch.randn(16, 32)
    with torch.no_grad():
        result, executable = sharded(wrapped, x)
        torch.testing.assert_close(result, wrapped(x), rtol=1e-4, atol=1e-4)
    assert executable.executable.result_tilings()[0].counts == (1, 8)


def test_what_cannot_be_wrapped():
    with pytest.raises(ShardingError, match="no axis 'fsdp'"):
        SpmdFullyShardedDataParallel(mlp(), mesh=ONE_AXIS)
    wrapped = SpmdFullyShardedDataParallel(mlp(), mesh=ONE_AXIS, axis="x")
    with pytest.raises(ShardingError, match="Sequential is fully sharded already"):
        SpmdFullyShardedDataParallel(wrapped, mesh=ONE_AXIS, axis="x")
    with pytest.raises(ShardingError, match="ModuleList has no forward"):
        SpmdFullyShardedDataParallel(torch.nn.ModuleList([mlp()]), mesh=ONE_AXIS, axis="x")
    with pytest.raises(ShardingError, match=r"0.weight, of shape .64, 32., is marked for Mesh.x=8"):
        SpmdFullyShardedDataParallel(wrapped.module, mesh=WIDE, axis="data")


def test_training_goes_on_in_eager():
    """A step that is compiled and one that is not change the same parameters."""
    model = SpmdFullyShardedDataParallel(mlp(), mesh=ONE_AXIS, axis="x")
    plain, x = mlp(), torch.randn(16, 32)
    for each in (model, plain):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        step = xla_dynamo.train_step(each, lambda m, x: m(x).square().mean(), optimizer)
        step(x)
        each(x).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))
