"""scan, scan_layers and assume_pure, as PyTorch/XLA's guides of them."""

import copy

import torch
import torch_xla
from torch import nn
from torch.func import functional_call
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers


def cumsum(accumulated, x):
    y = accumulated + x
    return y, y


def running_mean(carried, x):
    total = carried["sum"] + x["values"]
    count = carried["count"] + 1.0
    return {"sum": total, "count": count}, total / count


def gradients(device):
    torch.manual_seed(0)
    sizes = ((5, 5), (6, 3, 5), (3, 5))
    weight, xs, start = (torch.randn(*s).to(device).requires_grad_() for s in sizes)

    def cell(carried, x):
        hidden, weight = carried
        hidden = torch.tanh(hidden @ weight + x)
        return (hidden, weight), hidden.sin()

    if device.type == "xla":
        (hidden, _), ys = scan(cell, (start, weight), xs)
    else:
        hidden, made = start, []
        for x in xs:
            (hidden, _), y = cell((hidden, weight), x)
            made.append(y)
        ys = torch.stack(made)
    (hidden.sum() + ys.pow(2).sum()).backward()
    return [t.detach().cpu() for t in (hidden, ys, weight.grad, xs.grad, start.grad)]


class Layer(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, hidden):
        query, key, value = self.qkv(self.norm(hidden)).unsqueeze(1).chunk(3, -1)
        made = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return hidden + self.out(made.squeeze(1)).relu()


def train(layers, x, run):
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = run(layers, x).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


def one_after_another(layers, hidden):
    for layer in layers:
        hidden = layer(hidden)
    return hidden


@assume_pure
def some_math(a, b, c):
    return a @ b + c


if __name__ == "__main__":
    total, history = scan(
        cumsum, torch.tensor([0.0], device="xla"), torch.tensor([1.0, 2.0, 3.0], device="xla")
    )
    torch_xla.sync()
    assert total.tolist() == [6.0]
    assert history.flatten().tolist() == [1.0, 3.0, 6.0]

    start = {name: torch.tensor([0.0], device="xla") for name in ("sum", "count")}
    values = {"values": torch.arange(1, 6, dtype=torch.float32, device="xla")}
    last, means = scan(running_mean, start, values)
    assert last["sum"].item() == 15.0
    assert means.flatten().tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]

    wanted = gradients(torch.device("cpu"))
    torch.testing.assert_close(gradients(torch_xla.device()), wanted, atol=1e-4, rtol=1e-4)

    torch.manual_seed(1)
    plain = nn.ModuleList([Layer() for _ in range(4)])
    layers = copy.deepcopy(plain).to("xla")
    x = torch.randn(2, 6, 8)
    wanted = train(plain, x, one_after_another)
    got = train(layers, x.to("xla"), lambda layers, x: scan_layers(layers, x, is_layer_pure=True))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)

    for _ in range(2):
        made = some_math(torch.eye(2, device="xla"), torch.ones(2, 2, device="xla"), c=42)
    assert made.tolist() == [[43.0, 43.0], [43.0, 43.0]]
    linear, x = nn.Linear(4, 4).to("xla"), torch.randn(2, 4, device="xla")
    pure = assume_pure(lambda params, x: functional_call(linear, params, x))
    pure(dict(linear.named_parameters()), x).sum().backward()
    torch.testing.assert_close(linear.weight.grad.cpu(), x.sum(0).cpu().expand(4, 4))
    print("ended")
