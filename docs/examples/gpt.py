"""A small GPT on the sources of Python's standard library, every training step one executable.

    python -m docs.examples.gpt

Bytes are the tokens. AdamW with a warm-up and a cosine schedule, clipped gradients, and a running
average of the weights, all inside the compiled step. At the end the average writes some Python.
"""

import functools
import pathlib
import sysconfig
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import xla_dynamo
from docs.examples.progress import plot, track
from docs.examples.recipes.common import options_of

CONTEXT = 128


class Block(nn.Module):
    """Causal self-attention and a perceptron, each on the normalized stream and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        split = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class GPT(nn.Module):
    """Bytes to the logits of the next byte."""

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Map (batch, length) bytes to (batch, length, 256)."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.tokens(text) + self.places(places))))

    @torch.no_grad()
    def write(self, prompt: str, length: int) -> str:
        """Continue a text by so many bytes."""
        text = torch.tensor([list(prompt.encode())])
        for _ in range(length):
            probabilities = self(text[:, -CONTEXT:])[:, -1].div(0.7).softmax(-1)
            text = torch.cat([text, torch.multinomial(probabilities, 1)], 1)
        return bytes(text[0].tolist()).decode(errors="replace")


def corpus() -> torch.Tensor:
    """The bytes of the standard library's own modules (u8)."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    sources = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(sources), dtype=torch.uint8)


def loss_fn(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Cross entropy, in nats a byte, of a batch (batch, CONTEXT + 1)."""
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, print a sample, and return the losses."""
    parser = options_of(__doc__, "gpt", steps=600)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)

    text, model = corpus(), GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=options.steps, pct_start=0.1, cycle_momentum=False
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    step = xla_dynamo.train_step(
        model,
        loss_fn,
        optimizer,
        clip_gradients=functools.partial(nn.utils.clip_grad_norm_, max_norm=1.0),
        average=average,
    )
    losses = []
    for _ in track(range(options.steps), "train_step"):
        starts = torch.randint(len(text) - CONTEXT - 1, (options.batch, 1))
        losses.append(float(step(text[starts + torch.arange(CONTEXT + 1)].long())))
        schedule.step()

    plot(options.out / "loss.png", losses={"train_step": losses})
    torch.save(average.module.state_dict(), options.out / "model.pt")
    print(f"loss, nats a byte: {losses[0]:.2f} at first, {sum(losses[-20:]) / 20:.2f} at the end")
    print(f"weights and loss curve: {options.out}/\n")
    print(average.module.eval().write("def ", 300))
    return losses


if __name__ == "__main__":
    main()
