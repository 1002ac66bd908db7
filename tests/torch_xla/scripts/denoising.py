"""Denoising by a small U-Net with attention to a text, in float32 and in bfloat16."""

import copy
import math

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
from torch import nn

CHANNELS, TEXT, TIME, STEPS, GUIDANCE = 8, 16, 16, 3, 5.0


def timestep_embedding(t):
    numbers = torch.arange(CHANNELS // 2, dtype=torch.float32, device=t.device)
    angles = t[:, None].float() * torch.exp(-math.log(10000) * numbers / (CHANNELS // 2))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(TIME, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = hidden + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(hidden)))


class CrossAttention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.q, self.out = (
            nn.LayerNorm(size),
            nn.Linear(size, size),
            nn.Linear(size, size),
        )
        self.k, self.v = nn.Linear(TEXT, size), nn.Linear(TEXT, size)

    def forward(self, x, text):
        b, c, h, w = x.shape
        query = self.q(self.norm(x.flatten(2).transpose(1, 2)))
        parts = (
            p.view(b, -1, 2, c // 2).transpose(1, 2) for p in (query, self.k(text), self.v(text))
        )
        made = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(b, -1, c)
        return x + self.out(made).transpose(1, 2).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(CHANNELS, TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.first = nn.Conv2d(4, CHANNELS, 3, padding=1)
        self.down = nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, stride=2, padding=1)
        self.middle, self.attention = (
            ResBlock(2 * CHANNELS, 2 * CHANNELS),
            CrossAttention(2 * CHANNELS),
        )
        self.up = nn.Conv2d(2 * CHANNELS, CHANNELS, 3, padding=1)
        self.last = ResBlock(2 * CHANNELS, CHANNELS)
        self.out = nn.Conv2d(CHANNELS, 4, 3, padding=1)

    def forward(self, x, t, text):
        time = self.time(timestep_embedding(t).to(x.dtype))
        x = self.first(x)
        hidden = self.attention(self.middle(self.down(x), time), text)
        hidden = self.up(F.interpolate(hidden, scale_factor=2.0, mode="nearest"))
        return self.out(F.silu(self.last(torch.cat([hidden, x], 1), time)))


@torch.no_grad()
def generate(model, device, dtype):
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 4, 8, 8, generator=generator).to(device, dtype)
    text = torch.randn(2, 5, TEXT, generator=generator).to(device, dtype)
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = torch.cumprod(1 - betas, 0).to(device)
    for t in torch.arange(999, 0, -1000 // STEPS).to(device):
        with xp.Trace("denoise"):
            noise = model(torch.cat([latents] * 2), t.expand(2), text)
            without, along = noise.chunk(2)
            noise = without + GUIDANCE * (along - without)
            now, then = kept[t], kept[torch.clamp(t - 1000 // STEPS, min=0)]
            clean = (latents - (1 - now).sqrt() * noise) / now.sqrt()
            latents = (then.sqrt() * clean + (1 - then).sqrt() * noise).to(dtype)
        torch_xla.sync()
    return (latents.float() / 2 + 0.5).clamp(0, 1).cpu()


if __name__ == "__main__":
    torch.manual_seed(0)
    reference = UNet().eval()
    host, device = torch.device("cpu"), torch_xla.device()
    wanted = generate(reference, host, torch.float32)
    model = copy.deepcopy(reference).to(device)
    torch.testing.assert_close(generate(model, device, torch.float32), wanted, atol=1e-3, rtol=0)
    before = met.metric_data("CompileTime")[0]
    generate(model, device, torch.float32)
    assert met.metric_data("CompileTime")[0] == before
    of_host = generate(copy.deepcopy(reference).bfloat16(), host, torch.bfloat16)
    narrow = generate(model.to(torch.bfloat16), device, torch.bfloat16)
    assert (narrow - wanted).abs().mean() < 2 * (of_host - wanted).abs().mean() + 0.01
    xm.wait_device_ops()
    print("ended")
