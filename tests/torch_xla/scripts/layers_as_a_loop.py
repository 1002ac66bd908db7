"""Loops as one program: over layers, over elements, and a number of times."""

import torch
import torch_xla
from torch_xla.experimental.assume_pure import assume_pure
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers

device = torch_xla.device()
torch.manual_seed(0)

carry, sums = scan(lambda total, x: (total + x, total * x), torch.zeros(3, device=device),
                   torch.arange(12.0, device=device).view(4, 3))  # fmt: skip
assert carry.tolist() == [18, 22, 26]
assert sums.shape == (4, 3)

layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(5)]).to(device)
x = torch.randn(2, 8, device=device, requires_grad=True)
scan_layers(layers, x).square().sum().backward()
found = [layer.weight.grad.cpu() for layer in layers]
layers.zero_grad()
one_by_one = x
for layer in layers:
    one_by_one = layer(one_by_one)
one_by_one.square().sum().backward()
torch.testing.assert_close(found, [layer.weight.grad.cpu() for layer in layers])

bound = torch.tensor(5, device=device)
assert fori_loop(
    torch.tensor(0), bound, lambda i, v: v + i, torch.zeros(2, device=device)
).tolist() == [10, 10]
(last, _) = while_loop(
    lambda n, s: n < s,
    lambda n, s: (n * 2, s),
    (torch.tensor(1, device=device), torch.tensor(100, device=device)),
)
assert last.item() == 128

pure = assume_pure(lambda a, b: torch.sin(a @ b))
a, b = torch.randn(2, 4, 4, device=device)
torch.testing.assert_close(pure(a, b).cpu(), torch.sin(a.cpu() @ b.cpu()))
print("ended")
