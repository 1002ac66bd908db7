"""What stands for names of PyTorch/XLA among processes computes what eager torch does."""

import copy
import os
import tempfile

import torch
from torch import nn

import xla_dynamo
from tests.processes.jobs import results_of


def _close(own, right):
    return torch.allclose(own.detach().cpu(), right.detach(), rtol=1e-4, atol=1e-4)


def _reductions(functions, rank, each):
    """The gradient of each process's own loss, of each reduction."""
    found = {}
    stacked = torch.stack(each)
    results = {
        "sum": (stacked.sum(0), torch.ones(3)),
        "mul": (stacked.prod(0), each[1 - rank]),
        "min": (stacked.amin(0), (each[rank] == stacked.amin(0)).float()),
        "max": (stacked.amax(0), (each[rank] == stacked.amax(0)).float()),
    }
    weights = torch.arange(1.0, 4.0) + rank
    for kind, (right, gradient) in results.items():
        x = each[rank].to("xla").requires_grad_()
        made = functions.all_reduce(kind, x, 2.0)
        (made * weights.to("xla")).sum().backward()
        found[kind] = [(made, 2 * right), (x.grad, 2 * weights * gradient)]
    x = each[rank].to("xla").requires_grad_()
    made = functions.all_gather(x)
    (made * torch.arange(6.0, device="xla")).sum().backward()
    found["gather"] = [(made, torch.cat(each)), (x.grad, torch.arange(3.0) + 3 * rank)]

    return found


def exchange_everything():
    """Each name: those that are wrong."""
    from xla_dynamo.torch_xla.forms import buckets, functions, replicas
    from xla_dynamo.torch_xla.forms import sharded_parameters as parts

    xla_dynamo.device()
    rank, size = xla_dynamo.runtime.global_ordinal(), xla_dynamo.runtime.world_size()
    torch.manual_seed(5)
    each = [torch.randn(3) for _ in range(size)]
    each[1][0] = 0.0  # where a product has no quotient
    found = _reductions(functions, rank, each)

    whole, x = torch.randn(3, 2 * size), torch.randn(2 * size, 4)
    own = whole.chunk(size, dim=1)[rank].to("xla")
    found["product"] = [(functions.distributed_mm(own, x.to("xla"), split=2), whole @ x)]

    batch, scale = torch.randn(4 * size, 5, 3), torch.randn(4 * size, 5, 3)
    norm, right = functions.SyncBatchNorm(5).to("xla"), nn.BatchNorm1d(5)
    given = batch.chunk(size)[rank].to("xla").requires_grad_()
    made = norm(given)
    (made * scale.chunk(size)[rank].to("xla")).sum().backward()
    expected = batch.clone().requires_grad_()
    (right(expected) * scale).sum().backward()
    found["norm"] = [
        (made, right(batch).chunk(size)[rank]),
        (given.grad, expected.grad.chunk(size)[rank]),
    ]

    lists = [[torch.randn(4, 2), torch.randn(2), torch.randn(6, 3)] for _ in range(size)]
    mine = [t.to("xla") for t in lists[rank]]
    halves = [sum(some) / 2 for some in zip(*lists, strict=True)]
    made = buckets.all_gather_bucketized(mine)
    right = [torch.cat(some) for some in zip(*lists, strict=True)]
    found["gathered"] = list(zip(made, right, strict=True))
    output = torch.ones(7, device="xla")  # which takes the result's shape
    xla_dynamo.all_gather(mine[0], output=output)
    found["resized"] = [(output, right[0])]
    made = buckets.reduce_scatter_bucketized("sum", mine, 0.5, 0, size)
    parts_of_halves = [h.chunk(size)[rank] for h in halves]
    found["scattered"] = list(zip(made, parts_of_halves, strict=True))
    reduced = [t.clone() for t in mine]
    buckets.all_reduce_bucketized_gradients(reduced, 0.5, None, False, 1)
    found["reduced"] = list(zip(reduced, halves, strict=True))
    handed = []
    waiting = parts.BucketizedReduceScatter(1, size, None, False)
    for tensor in mine:
        waiting(tensor, handed.append)
    assert not handed
    waiting.flush()
    found["waiting"] = [(h, 2 * p) for h, p in zip(handed, parts_of_halves, strict=True)]
    parts.DummyReduceScatter(size)(mine[0], handed.append)
    found["own part"] = [(handed[-1], lists[rank][0].chunk(size)[rank])]
    repeated = parts.dummy_all_gather(mine[0], 1)
    found["repeated"] = [(repeated, torch.cat([lists[rank][0]] * 2, 1))]

    xla_dynamo.sync()  # one executable with all of them
    wrong = [n for n, pairs in found.items() if not all(_close(*pair) for pair in pairs)]
    replicas.send(each[rank].to("xla"), rank)
    received = replicas.recv(torch.zeros(3, device="xla"), 1 - rank)
    told = replicas.xla_rendezvous(bytes([rank]))
    wrong += [] if received.cpu().equal(each[1 - rank]) else ["channel"]
    wrong += [] if told == [b"\0", b"\1"] else ["told"]
    return wrong + ([] if replicas.xla_replication_devices() == ["CPU:0", "CPU:1"] else ["devices"])


def _train(model, optimizer, batches, places=lambda t: t):
    for batch in batches:
        optimizer.zero_grad()
        model(places(batch)).pow(2).mean().backward()
        optimizer.step()
        xla_dynamo.sync()
    return [p.detach().cpu() for p in model.parameters()]


def _clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def train_with_parts():
    """ZeRO-1 by its options, against the whole optimizer on the mean gradient: what is wrong."""
    from xla_dynamo.torch_xla.forms.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    xla_dynamo.device()
    rank, size = xla_dynamo.runtime.global_ordinal(), xla_dynamo.runtime.world_size()
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model.register_parameter("unused", nn.Parameter(torch.ones(())))
    batches = [torch.randn(4 * size, 6) for _ in range(2)]
    own = [b.chunk(size)[rank] for b in batches]
    wrong = []
    every_option = {
        "bucket_cap_mb_all_gather": 1,
        "bucket_cap_mb_reduce_scatter": 1,
        "higher_cc_precision": True,
        "max_norm": 0.05,
        "save_master_weights": True,
        "use_grad_acc_hook": True,
    }
    for name, options in {"plain": {"grad_clipping": False}, "every": every_option}.items():
        right = copy.deepcopy(model)
        plain = torch.optim.AdamW(right.parameters(), lr=0.05)
        if "max_norm" in options:
            plain.register_step_pre_hook(lambda *_, of=right: _clip(of))
        expected = _train(right, plain, batches)
        ours = copy.deepcopy(model).to("xla")
        parts = ZeroRedundancyOptimizer(ours.parameters(), torch.optim.AdamW, lr=0.05, **options)
        made = _train(ours, parts, own, lambda t: t.to("xla"))
        if not all(torch.allclose(a, b, atol=2e-5) for a, b in zip(made, expected, strict=True)):
            wrong.append(name)
        sizes = [p.numel() for group in parts.base_optimizer.param_groups for p in group["params"]]
        if sizes != [1, 18, 3, 10, 2]:
            wrong.append((name, sizes))
    saved = parts.state_dict()
    another = copy.deepcopy(model).to("xla")
    loaded = ZeroRedundancyOptimizer(another.parameters(), torch.optim.AdamW, lr=0.1)
    loaded.load_state_dict(saved)
    after = [p.detach().cpu() for p in another.parameters()]
    if not all(map(torch.equal, after, made)) or loaded.param_groups[0]["lr"] != 0.05:
        wrong.append("loaded")
    return wrong


def save_once():
    """Files that the wrong processes have written."""
    xla_dynamo.device()
    rank = xla_dynamo.runtime.global_ordinal()
    summed = xla_dynamo.all_reduce("sum", torch.ones(3, device="xla"))
    with tempfile.TemporaryDirectory() as folder:
        wrong = []
        for number, options in enumerate(({}, {"global_master": True}, {"master_only": False})):
            path = os.path.join(folder, str(number))
            xla_dynamo.save([summed], path, **options)
            if os.path.exists(path) != (rank == 0 or "master_only" in options):
                wrong.append(path)
            elif os.path.exists(path) and torch.load(path)[0].tolist() != [2, 2, 2]:
                wrong.append((path, "content"))
    return wrong


def run_everything():
    """What is wrong of all."""
    return exchange_everything() + save_once() + train_with_parts()


def test_two_processes():
    assert results_of(run_everything, 2) == [[], []]
