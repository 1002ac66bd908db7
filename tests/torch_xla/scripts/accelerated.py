"""A training by accelerate, which takes the device by itself where torch_xla is there."""

import copy

import torch
from accelerate import Accelerator
from accelerate.utils import is_torch_xla_available
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, optimizer, loader, backward, clip):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        backward(loss)
        clip(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    accelerator = Accelerator()
    assert is_torch_xla_available()
    assert accelerator.device.type == "xla"
    reference = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(24, 8), torch.randint(0, 3, (24,)))
    loader = DataLoader(data, batch_size=8)
    model = copy.deepcopy(reference)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, reference)]
    clip = nn.utils.clip_grad_norm_
    wanted = train(reference, optimizers[1], loader, torch.Tensor.backward, clip)
    prepared = accelerator.prepare(model, optimizers[0], loader)
    got = train(*prepared, accelerator.backward, accelerator.clip_grad_norm_)
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    state = accelerator.get_state_dict(prepared[0])
    torch.testing.assert_close(state["0.weight"].cpu(), reference[0].weight.detach())
    print("ended")
