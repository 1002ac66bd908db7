"""Generation with a cache of fixed size, greedy and sampled, a step of one token at a time."""

import copy

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch import nn

VOCABULARY, SIZE, HEADS, LONGEST, NEW = 64, 16, 2, 12, 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def setup_cache(self, batch):
        shape, like = (batch, HEADS, LONGEST, SIZE // HEADS), self.qkv.weight
        self.register_buffer("keys", like.new_zeros(shape), persistent=False)
        self.register_buffer("values", like.new_zeros(shape), persistent=False)

    def forward(self, x, positions, mask):
        b, s, d = x.shape
        parts = self.qkv(x).chunk(3, -1)
        query, key, value = (p.view(b, s, HEADS, -1).transpose(1, 2) for p in parts)
        self.keys.index_copy_(2, positions, key)
        self.values.index_copy_(2, positions, value)
        made = nn.functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask[positions][None, None]
        )
        return self.out(made.transpose(1, 2).reshape(b, s, d))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, SIZE)
        self.positions = nn.Embedding(LONGEST, SIZE)
        self.layers = nn.ModuleList([Attention() for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(SIZE) for _ in range(2)])
        self.head = nn.Linear(SIZE, VOCABULARY, bias=False)
        self.register_buffer("mask", torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril())

    def forward(self, ids, positions):
        x = self.tokens(ids) + self.positions(positions)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x), positions, self.mask)
        return self.head(x)


def greedy(logits):
    return logits.argmax(-1, keepdim=True)


def of_the_best(logits):
    best, _ = torch.topk(logits / 0.8, 10)
    logits = torch.where(logits / 0.8 < best[:, [-1]], -float("inf"), logits / 0.8)
    return torch.multinomial(torch.softmax(logits, -1), num_samples=1)


@torch.no_grad()
def generate(model, prompt, device, choose=greedy, step=None):
    step = model if step is None else step
    batch, length = prompt.shape
    for layer in model.layers:
        layer.setup_cache(batch)
    output = torch.zeros(batch, length + NEW, dtype=torch.long, device=device)
    output[:, :length] = prompt.to(device)
    positions = torch.arange(length, device=device)
    token = choose(model(output[:, :length], positions)[:, -1])
    position = positions[-1:] + 1
    output.index_copy_(1, position, token)
    torch_xla.sync()
    for _ in range(NEW - 1):
        token = choose(step(token, position)[:, -1])
        position = position + 1
        output.index_copy_(1, position, token)
        torch_xla.sync()
    return output.cpu()


if __name__ == "__main__":
    torch.manual_seed(1)
    reference = Model().eval()
    prompt = torch.randint(0, VOCABULARY, (2, 5))
    wanted = generate(reference, prompt, torch.device("cpu"))
    device = torch_xla.device()
    model = copy.deepcopy(reference).to(device)
    assert torch.equal(generate(model, prompt, device), wanted)
    before = met.metric_data("CompileTime")[0]
    assert torch.equal(generate(model, prompt, device), wanted)
    assert met.metric_data("CompileTime")[0] == before
    for step in (torch.compile(model, backend="openxla"), torch_xla.compile(model)):
        assert torch.equal(generate(model, prompt, device, step=step), wanted)
    drawn = []
    for seed in (7, 7, 8):
        torch_xla.manual_seed(seed)
        drawn.append(generate(model, prompt, device, of_the_best))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    xm.set_rng_state(123)
    first = torch.rand(3, device=device).cpu()
    xm.set_rng_state(123)
    assert torch.equal(torch.rand(3, device=device).cpu(), first)
    print("ended", wanted[0].tolist())
