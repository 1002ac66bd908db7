"""Sequence parallel: sequences and heads change places around attention, by all-to-alls."""

import math

import pytest
import torch
import transformers
from torch.nn import functional as F

from tests.spmd.sharding import WIDE, collectives, mlp, moved, sharded
from tests.spmd.small_transformer import (
    BATCH,
    HEADS,
    LENGTH,
    MESHES,
    WIDTH,
    check_bytes,
    check_losses,
    loss_by_position,
    on_meshes,
    train,
)
from xla_dynamo.errors import ShardingError
from xla_dynamo.spmd.recipes import (
    data_parallel,
    sequence_parallel,
    sequence_parallel_attention,
)


@on_meshes
def test_twenty_steps(name):
    mesh = MESHES[name]
    *batch, axis = mesh.axis_names

    def recipe(model):
        sequence_parallel(model, mesh, axis=axis)
        return (data_parallel(model, mesh, batch) if batch else model), mesh, batch

    run = train(recipe, loss_fn=loss_by_position)
    check_losses(run)
    assert check_bytes(run) == 1  # parameters are whole
    assert set(collectives(run.executable)) == {"all-reduce", "all-to-all"}
    # Query, key, value and result of two layers, forward and backward, a part to each device.
    devices = mesh.mesh_shape[-1]
    parts = moved(run.executable, "all-to-all")
    assert len(parts) == 4 * 2 * 2 * devices
    size = BATCH // math.prod(mesh.mesh_shape[:-1]) * LENGTH * WIDTH // devices**2
    assert {math.prod(part) for part in parts} == {size}
    summed = sum(map(math.prod, moved(run.executable, "all-reduce")))
    parameters = sum(p.numel() for p in run.model.parameters())
    assert summed < parameters * len(mesh.mesh_shape) + 8  # gradients, over each axis


@pytest.mark.parametrize("heads", [8, 2], ids=["8", "8 of 2"])
def test_attention(heads):
    """As in eager, with gradients; keys of too few heads are gathered."""
    q = torch.randn(2, HEADS, 16, 4, requires_grad=True)
    k, v = (torch.randn(2, heads, 16, 4, requires_grad=True) for _ in range(2))
    options = {"is_causal": True, "enable_gqa": heads < HEADS}

    def f(q, k, v):
        return sequence_parallel_attention(q, k, v, mesh=WIDE, axis="model", **options)

    wanted = torch.autograd.grad(
        F.scaled_dot_product_attention(q, k, v, **options).square().sum(), (q, k, v)
    )
    assert f(q, k, v).equal(F.scaled_dot_product_attention(q, k, v, **options))
    fast = torch.compile(f, backend="openxla", fullgraph=True)
    found = torch.autograd.grad(fast(q, k, v).square().sum(), (q, k, v))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        _, executable = sharded(f, q, k, v)
    assert "all-to-all" in executable.hlo
    assert f"f32[2,{HEADS // 4},16,16]" in executable.hlo  # a device has the scores of its heads


LLAMA = transformers.LlamaConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    intermediate_size=96,
    vocab_size=96,
)


def test_a_model_of_transformers():
    model, tokens = transformers.LlamaForCausalLM(LLAMA).eval(), torch.randint(96, (4, 16))
    with torch.no_grad():
        wanted = model(tokens).logits
        sequence_parallel(data_parallel(model, WIDE), WIDE, axis="model")
        assert model(tokens).logits.equal(wanted)
        result, executable = sharded(lambda t: model(t, use_cache=False).logits, tokens)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    # Keys and values, of two heads for four devices, are gathered.
    assert len(moved(executable, "all-to-all")) == 2 * 2 * 4
    gathered = {math.prod(shape) for shape in moved(executable, "all-gather")}
    assert gathered == {2 * 16 * 16}


def test_what_does_not_fit():
    with pytest.raises(ShardingError, match=r"no projections of attention .* in this Sequential"):
        sequence_parallel(mlp(), WIDE, axis="model")
    with pytest.raises(ShardingError, match="no axis 'sequence'"):
        sequence_parallel(mlp(), WIDE)
    config = transformers.LlamaConfig(
        hidden_size=48, num_attention_heads=6, intermediate_size=64, vocab_size=96
    )
    config.num_hidden_layers = 1
    with pytest.raises(ShardingError, match=r"6 heads of attention, .* by the 4 devices"):
        sequence_parallel(transformers.LlamaForCausalLM(config), WIDE, axis="model")
