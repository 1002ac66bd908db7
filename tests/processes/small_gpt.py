"""A small GPT and its batches, trained by one process or by several."""

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 64, 32, 4, 16, 8
STEPS = 20


class Block(nn.Module):
    """Attention and a feed-forward net, each after a norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class SmallGPT(nn.Module):
    """From tokens to logits."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def new_model():
    """The model, with the same parameters in all processes."""
    torch.manual_seed(0)
    return SmallGPT()


def loss_fn(model, tokens, labels):
    """The mean cross entropy."""
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def batches(rank=0, size=1, steps=STEPS):
    """The rows of each batch that a process has."""
    generator = torch.Generator().manual_seed(1)
    rows = BATCH // size
    for _ in range(steps):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        own = tokens[rank * rows : (rank + 1) * rows]
        yield own[:, :-1].contiguous(), own[:, 1:].contiguous()


def losses_alone(steps=STEPS):
    """The losses of one process in eager."""
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for tokens, labels in batches(steps=steps):
        loss = loss_fn(model, tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses)
