"""`use_spmd(auto=True)`: programs find how their inputs are best sharded, and mark them."""

import pytest
import torch
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

import xla_dynamo
from bench.collective_bytes import collectives, sent_by_kind
from tests.spmd.sharding import ONE_AXIS, QUICK, WIDE, mlp
from xla_dynamo import process_state, spmd
from xla_dynamo.errors import OptionError
from xla_dynamo.lowerings.auto_sharding.costs import Speeds
from xla_dynamo.lowerings.auto_sharding.roles import roles_of
from xla_dynamo.lowerings.auto_sharding.search import search
from xla_dynamo.runtime import topology
from xla_dynamo.spmd import recipes

SIZES = (64, 256, 64)


@pytest.fixture
def automatic():
    """For a test: programs choose shardings."""
    with process_state.replaced():
        topology.use_spmd(auto=True)
        yield


def trained(prepare=lambda model, x: model):
    """The losses of three steps, the first one's executable, the model and a batch."""
    torch.manual_seed(0)
    model, x = mlp(SIZES), torch.randn(32, SIZES[0])
    model = prepare(model, x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = xla_dynamo.train_step(model, lambda m, x: m(x).square().mean(), optimizer, options=QUICK)
    report = xla_dynamo.explain(step)(x)
    found = [report.result.item(), *(step(x).item() for _ in range(2))]
    return found, report.executables[0], model, x


def eager_losses():
    torch.manual_seed(0)
    model, x = mlp(SIZES), torch.randn(32, SIZES[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def sent(executable):
    return sum(sent_by_kind(collectives(executable.hlo)).values())


def fully_sharded(model, x):
    recipes.shard_batch(x, ONE_AXIS, "x")
    return recipes.SpmdFullyShardedDataParallel(model, mesh=ONE_AXIS, axis="x")


def test_a_training_step_is_sharded_as_well_as_by_hand(automatic):
    spmd.set_global_mesh(ONE_AXIS)
    found, ours, model, _ = trained()
    assert found == pytest.approx(eager_losses(), rel=1e-4)
    assert spmd.sharding_of(model[0].weight).axes == (("x",), ())
    with process_state.replaced():
        by_hand, theirs, *_ = trained(fully_sharded)
    assert by_hand == pytest.approx(found, rel=1e-4)
    assert ours.cost.argument_bytes <= 1.2 * theirs.cost.argument_bytes
    assert sent(ours) <= 1.2 * sent(theirs)
    (told,) = spmd.auto_sharding_reports()
    assert "64x256 by" in told or "256x64 by" in told


def test_what_was_found_can_be_kept_as_code(automatic):
    found, ours, model, x = trained()
    code = spmd.sharding_code(model, x)
    made = {}
    exec(code, made)
    with process_state.replaced():
        again, theirs, *_ = trained(lambda model, x: made["shard"](model, x) or model)
    assert again == pytest.approx(found, rel=1e-5)
    assert sent(ours) == sent(theirs)
    with process_state.replaced(), pytest.raises(OptionError, match="call it first"):
        spmd.sharding_code(mlp())


def test_what_is_marked_stays_so(automatic):
    def mark(model, x):
        spmd.mark_sharding(model[0].weight, WIDE, ("model", None))
        return model

    found, _, model, _ = trained(mark)
    assert found == pytest.approx(eager_losses(), rel=1e-4)
    assert spmd.sharding_of(model[0].weight).axes == (("model",), ())
    assert spmd.sharding_of(model[2].weight).mesh == WIDE


def test_inference_shards_the_batch_and_leaves_the_rest(automatic):
    model = mlp(SIZES)
    fast = torch.compile(model, backend="openxla")
    with torch.no_grad():
        for rows in (4096, 4096, 4090):
            x = torch.randn(rows, SIZES[0])
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    assert spmd.sharding_of(model[0].weight) is None


def test_graphs_without_products_choose_nothing(automatic):
    fast = torch.compile(lambda x: x.sin() + 1, backend="openxla")
    x = torch.randn(32, 8)
    torch.testing.assert_close(fast(x), x.sin() + 1)
    assert not spmd.auto_sharding_reports()


def test_meshes_to_choose_from(monkeypatch, automatic):
    from xla_dynamo.spmd.auto_sharding import meshes_to_choose_from

    assert [m.mesh_shape for m in meshes_to_choose_from()] == [(8,), (4, 2), (2, 4)]
    monkeypatch.setenv("XLA_AUTO_SPMD_MESH", "2,4")
    assert [m.mesh_shape for m in meshes_to_choose_from()] == [(2, 4)]
    for wrong in ("3,3", "a", "2,4,x"):
        monkeypatch.setenv("XLA_AUTO_SPMD_MESH", wrong)
        with pytest.raises(OptionError, match="product is 8"):
            meshes_to_choose_from()


def test_a_policy_of_torchs_distribute_module_turns_it_on():
    with process_state.replaced():
        model = spmd.xla_distribute_module(mlp(SIZES), WIDE, spmd.auto_policy)
        assert topology.chooses_shardings()
        assert spmd.get_global_mesh() == WIDE
        assert isinstance(model, torch.nn.Module)


PROJECTIONS = """
func.func public @main(%x: tensor<8x16xf32>, %q: tensor<16x16xf32>, %k: tensor<16x16xf32>,
    %o: tensor<16x16xf32>, %m: tensor<16x16xf32>)
    -> (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<16x16xf32>) {
  %n = stablehlo.sine %x : tensor<8x16xf32>
  %a = stablehlo.dot_general %n, %q, contracting_dims = [1] x [1]
    : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %b = stablehlo.dot_general %n, %k, contracting_dims = [1] x [1]
    : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %c = stablehlo.cosine %x : tensor<8x16xf32>
  %d = stablehlo.dot_general %c, %o, contracting_dims = [1] x [1]
    : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %e = stablehlo.add %o, %m : tensor<16x16xf32>
  return %a, %b, %d, %e : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<16x16xf32>
}
"""


def test_roles_and_ties():
    """Two projections of one input are alike; a third and what the optimizer keeps go together."""
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(PROJECTIONS)
        found = {role.arguments: role.is_state for role in roles_of(module, range(5), [3])}
        assert found == {(3, 4): True, (1, 2): False, (0,): False}
        best = search(module, {"data": 8}, {0: ((), ())}, [3], Speeds.of("cpu"))
    assert 0 not in best.axes
    assert best.seconds <= best.whole.seconds(Speeds.of("cpu"))
    assert best.cost.operations <= best.whole.operations
