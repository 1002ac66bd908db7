"""Where the time of a ResNet-50 and of a Llama goes, by lines; and what it costs to be told.

    python -m bench.profile_models            # all of them, with pages in build/profiles
    python -m bench.profile_models resnet50   # one

Printed for each: the parts of the wall time, the share of it that has a line, and the time of a
call with `xla_dynamo.profile()` around ten of them and without, in rounds that take turns.
"""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable

import torch

import xla_dynamo

_ROUNDS, _CALLS = 5, 10


def resnet50() -> Callable[[], object]:
    """Inference of torchvision's ResNet-50 on eight images."""
    import torchvision

    model = torchvision.models.resnet50().eval()
    fast = torch.compile(model, backend="openxla")
    images = torch.randn(8, 3, 224, 224)

    def call() -> object:
        with torch.no_grad():
            return fast(images)

    return call


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    return LlamaForCausalLM(config)


def llama() -> Callable[[], object]:
    """Inference of a Llama of six layers on 4 times 128 tokens."""
    fast = torch.compile(_llama().eval(), backend="openxla")
    tokens = torch.randint(0, 8000, (4, 128))

    def call() -> object:
        with torch.no_grad():
            return fast(input_ids=tokens, use_cache=False).logits

    return call


def llama_step() -> Callable[[], object]:
    """A training step of the same by AdamW."""
    model = _llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = xla_dynamo.train_step(
        model, lambda m, x: m(input_ids=x, labels=x, use_cache=False).loss, optimizer
    )
    tokens = torch.randint(0, 8000, (4, 128))
    return lambda: step(tokens)


MODELS = {"resnet50": resnet50, "llama": llama, "llama_step": llama_step}


def seconds_of(call: Callable[[], object], calls: int = _CALLS) -> float:
    """How long so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def main() -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/profiles"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.models or MODELS:
        call = MODELS[name]()
        seconds_of(call, 3)
        without, within = [], []
        for _ in range(_ROUNDS):
            without.append(seconds_of(call))
            with xla_dynamo.profile() as p:
                within.append(seconds_of(call))
        with_lines = sum(line.seconds for line in p.lines if line.file or "optimizer" in line.phase)
        whole = sum(line.seconds for line in p.lines)
        off, on = statistics.median(without), statistics.median(within)
        print(f"{name}: {p.times}")
        print(
            f"  programs are {100 * p.covered / p.wall:.1f}% of the wall time; "
            f"{100 * with_lines / whole:.1f}% of their time has a line or an optimizer's name"
        )
        ratio = statistics.median(b / a for a, b in zip(without, within, strict=True))
        print(
            f"  a call: {off / _CALLS * 1e3:.2f} ms, profiled {on / _CALLS * 1e3:.2f} ms, ", end=""
        )
        print(f"{100 * (ratio - 1):+.1f}%")
        p.save(given.folder / f"{name}.html")


if __name__ == "__main__":
    main()
