"""Tensor parallel: layers are sharded, and no weight is ever gathered."""

import math

import pytest
import torch
import transformers
from torch.distributed.tensor import Partial, Replicate, Shard

from tests.spmd.sharding import ONE_AXIS, WIDE, collectives, kept_shards, mlp, moved, sharded
from tests.spmd.small_transformer import (
    BATCH,
    LENGTH,
    MESHES,
    WIDTH,
    Transformer,
    check_bytes,
    check_losses,
    on_meshes,
    train,
)
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    SpmdFullyShardedDataParallel,
    data_parallel,
    parallelize_module,
    plan_of,
)

PLAN = {
    "layers.*.attention.[qkv]_proj": ColwiseParallel(),
    "layers.*.attention.o_proj": RowwiseParallel(),
    "layers.*.feed_forward.up": ColwiseParallel(),
    "layers.*.feed_forward.down": RowwiseParallel(),
    "embedding": RowwiseParallel(),
    "head": ColwiseParallel(),
}
BY_SEQUENCE = PLAN | {
    "layers.*.attention.o_proj": RowwiseParallel(output_layouts=Shard(1)),
    "layers.*.feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
    "embedding": RowwiseParallel(output_layouts=Shard(1)),
    "layers.*.*norm": SequenceParallel(),
    "norm": SequenceParallel(),
}


def recipe(mesh, plan):
    """Layers over the last axis of a mesh, the batch over the first of two."""
    *batch, axis = mesh.axis_names

    def shard(model):
        parallelize_module(model, mesh, plan, axis=axis)
        return (data_parallel(model, mesh, batch) if batch else model), mesh, batch

    return shard


def weights(model):
    """The matrices of its layers."""
    return [
        m.weight for m in model.modules() if isinstance(m, torch.nn.Linear | torch.nn.Embedding)
    ]


def check_shards(run, devices):
    for weight in weights(run.model):
        (shards,) = kept_shards(weight)
        assert {math.prod(shard) for shard in shards} == {weight.numel() // devices}
    devices_share = check_bytes(run)
    assert 1 / devices < devices_share < 1.2 / devices  # norms and some biases are whole


@on_meshes
def test_twenty_steps(name):
    mesh = MESHES[name]
    run = train(recipe(mesh, PLAN))
    check_losses(run)
    check_shards(run, mesh.mesh_shape[-1])
    assert set(collectives(run.executable)) == {"all-reduce"}
    activations = (BATCH // math.prod(mesh.mesh_shape[:-1]), LENGTH, WIDTH)
    # The embedding, attention and the feed-forward net of each layer; backward, each layer's.
    assert moved(run.executable, "all-reduce").count(activations) >= 5 + 4


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["8", "2x4"])
def test_twenty_steps_by_sequence(name):
    """Between layers each device has a part of the sequence: activations are gathered there."""
    mesh = MESHES[name]
    run = train(recipe(mesh, BY_SEQUENCE))
    check_losses(run)
    check_shards(run, mesh.mesh_shape[-1])
    batch = BATCH // math.prod(mesh.mesh_shape[:-1])
    gathered = moved(run.executable, "all-gather")
    assert gathered
    assert {math.prod(shape) for shape in gathered} == {batch * LENGTH * WIDTH}
    assert f"f32[{batch},{LENGTH // mesh.mesh_shape[-1]},{WIDTH}]" in run.executable.hlo


def test_fully_sharded_around():
    """Twenty steps on both axes: each device keeps an eighth, and gathers what its layers read."""

    def shard(model):
        parallelize_module(model, WIDE, PLAN)
        model = SpmdFullyShardedDataParallel(model, mesh=WIDE, axis="data")
        return model, WIDE, "data"

    run = train(shard)
    check_losses(run)
    matrices = [p for p in run.model.parameters() if p.dim() > 1]
    assert {math.prod(spmd.sharding_of(w).counts()) for w in matrices} == {8}
    gathered = {math.prod(shape) for shape in moved(run.executable, "all-gather")}
    assert gathered.isdisjoint(w.numel() for w in matrices)
    assert gathered >= {w.numel() // 4 for w in matrices}


SIZES = {"num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 96, "hidden_size": 64}
LLAMA = transformers.LlamaConfig(**SIZES, intermediate_size=160, num_key_value_heads=4)
GPT2 = transformers.GPT2Config(
    n_layer=2, n_head=8, n_embd=64, vocab_size=96, bos_token_id=0, eos_token_id=0
)
BERT = transformers.BertConfig(**SIZES, intermediate_size=160)
LIBRARY = {
    "llama": (transformers.LlamaForCausalLM, LLAMA),
    "gpt2": (transformers.GPT2LMHeadModel, GPT2),
    "bert": (transformers.BertForMaskedLM, BERT),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_models_of_transformers(name):
    make, config = LIBRARY[name]
    model, tokens = make(config).eval(), torch.randint(96, (4, 16))
    parallelize_module(model, WIDE)
    with torch.no_grad():
        wanted = model(tokens).logits
        result, executable = sharded(lambda t: model(t, use_cache=False).logits, tokens)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    assert not collectives(executable)["all-gather"]
    # Of two in each layer, and of Llama's embedding.
    assert moved(executable, "all-reduce") == [(4, 16, 64)] * (5 if name == "llama" else 4)
    layers = [m for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D")]
    sharded_layers = [m for m in layers if spmd.sharding_of(m.weight)]
    assert len(sharded_layers) == {"llama": 15, "gpt2": 8, "bert": 12}[name]


def test_keys_of_few_heads_stay_whole():
    model = transformers.LlamaForCausalLM(LLAMA)
    assert "model.layers.*.self_attn.k_proj" in plan_of(model, 4)
    assert "model.layers.*.self_attn.k_proj" not in plan_of(model, 8)
    with pytest.raises(
        ShardingError, match="8 heads of attention, which are not divisible by the 3"
    ):
        plan_of(model, 3)


def test_layouts():
    model, x = mlp(), torch.randn(16, 32)
    wanted = model(x)
    parallelize_module(model[0], WIDE, ColwiseParallel(output_layouts=Replicate()))
    parallelize_module(model[2], WIDE, RowwiseParallel(input_layouts=Replicate()))
    with torch.no_grad():
        result, executable = sharded(model, x)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    # What the first layer made is not gathered: the second one would split it again.
    assert moved(executable, "all-gather") == []
    assert moved(executable, "all-reduce") == [(16, 24)]
    with pytest.raises(ShardingError, match=r"a layout is Shard.dim. or Replicate"):
        parallelize_module(mlp()[0], WIDE, ColwiseParallel(output_layouts=Partial()))


def test_plans_that_do_not_fit():
    model = mlp((30, 64, 26))
    for plan, message in {
        "nope.*": r"no module is named 'nope.\*', as the plan has it, in this Sequential",
        "1": "ColwiseParallel shards Linear, Embedding and Conv1D, and 1 is a GELU",
        "2": r"dimension 0 of 2.weight, of shape .26, 64., is not divisible by 4",
    }.items():
        with pytest.raises(ShardingError, match=message):
            parallelize_module(model, WIDE, {plan: ColwiseParallel()})
    with pytest.raises(ShardingError, match=r"dimension 1 of 0.weight, of shape .64, 30., is not"):
        parallelize_module(model, WIDE, {"0": RowwiseParallel()})
    with pytest.raises(ShardingError, match="no axis 'tensor'"):
        parallelize_module(model, WIDE, {"0": ColwiseParallel()}, axis="tensor")
    with pytest.raises(ShardingError, match="no plan of tensor parallel for Sequential"):
        parallelize_module(model, WIDE)
    parallelize_module(model, WIDE, {"0": ColwiseParallel()})
    with pytest.raises(ShardingError, match="shards another one already"):
        parallelize_module(mlp_with_rows(), WIDE, {"0": ColwiseParallel()})
    with pytest.raises(ShardingError, match=r"marked for Mesh.data=2, model=4. and would"):
        parallelize_module(model, ONE_AXIS, {"0": ColwiseParallel()}, axis="x")


def mlp_with_rows():
    return parallelize_module(mlp(), WIDE, {"0": RowwiseParallel()})


def test_the_module_stays_itself():
    model = Transformer()
    names, tokens = list(model.state_dict()), torch.randint(64, (2, 8))
    wanted = model(tokens)
    assert parallelize_module(model, WIDE, PLAN) is model
    assert list(model.state_dict()) == names
    assert model(tokens).equal(wanted)
