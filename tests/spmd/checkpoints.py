"""What the tests of checkpoints share."""

import torch

from xla_dynamo.distributed_checkpoint import CheckpointManager


def manager_of(path, **settings):
    return CheckpointManager(path, save_interval=1, chkpt_on_preemption=False, **settings)


def tensors_of(state):
    flat, _ = torch.utils._pytree.tree_flatten_with_path(state)
    return {torch.utils._pytree.keystr(path): value for path, value in flat}


def equal(actual, wanted):
    actual, wanted = tensors_of(actual), tensors_of(wanted)
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        same = torch.equal(actual[name], value) if torch.is_tensor(value) else actual[name] == value
        assert same, name
