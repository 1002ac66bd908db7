"""A decoder-only transformer, fully sharded by SPMD: PyTorch/XLA's `train_decoder_only_fsdp_v2`.

    python -m docs.examples.migration.decoder_fsdp --steps 10 --devices 8

The recipe has the same name, `SpmdFullyShardedDataParallel`, and takes ordinary modules. There is
no `xr.use_spmd()` to call and no loader to wrap. `--auto` leaves the choice of shardings to the
package, and prints what it chose as code.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import xla_dynamo
from xla_dynamo import spmd
from xla_dynamo.spmd import recipes


class Layer(nn.Module):
    """A layer of a decoder, pre-normed, with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the projections of so many heads."""
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The residual stream f32[batch, tokens, width] behind the layer."""
        batch, tokens, width = x.shape
        every = self.qkv(self.before_attention(x)).view(batch, tokens, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in every.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.before_mlp(x))


class Decoder(nn.Module):
    """Tokens i64[batch, tokens] to logits f32[batch, tokens, vocabulary]."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        """Make an embedding, the layers and a head."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of the next token at each place."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next token."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train on one random batch; the losses of all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--auto", action="store_true", help="choose shardings automatically")
    options = parser.parse_args(arguments)
    if options.devices != xla_dynamo.runtime.global_runtime_device_count():
        xla_dynamo.runtime.set_device_count(options.devices)
    torch.manual_seed(42)
    model: nn.Module = Decoder(512, options.width, 8, options.layers)
    whole, tokens = model, torch.randint(512, (16, 33))
    if options.auto:
        xla_dynamo.runtime.use_spmd(auto=True)
    else:
        mesh = spmd.get_1d_mesh("fsdp")
        policy = ModuleWrapPolicy({Layer})
        model = recipes.SpmdFullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=policy)
        recipes.shard_batch(tokens, mesh, "fsdp")
    step = xla_dynamo.train_step(model, loss, torch.optim.AdamW(model.parameters(), lr=3e-3))
    losses = [step(tokens).item() for _ in range(options.steps)]
    print(f"losses {losses[0]:.3f} ... {losses[-1]:.3f}")
    if options.auto:
        print(spmd.sharding_code(whole, tokens))
    return losses


if __name__ == "__main__":
    main()
