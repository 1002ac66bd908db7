"""The start of `xla-dynamo serve`, from exec to the first token, for folders of several models.

`python -m bench.serve_start` writes models of random weights as large as true ones, or as parts of
them, and serves each twice: with a cold cache, and with the cache that the first server has left.
Beside it stands what no server can do without: `import torch`, and reading the weights.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.serve_load import Server

DTYPES = ("float32", "bfloat16")
_NAMES = {"gpt2": "GPT2", "llama": "Llama", "qwen3": "Qwen3"}
MODELS: dict[str, Mapping[str, Any]] = {
    "gpt2": {},  # GPT-2 small but for its vocabulary, which is as large as the tokenizer's
    "llama": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
    },
    # Four of the layers of Qwen3 0.6B.
    "qwen3": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
}
_READ = """
import pathlib, sys, time
start = time.perf_counter()
import torch
imported = time.perf_counter()
from safetensors.torch import load_file
weights = [load_file(path) for path in pathlib.Path(sys.argv[1]).glob("*.safetensors")]
total = sum(float(t.flatten()[::1024].sum()) for each in weights for t in each.values())
print(imported - start, time.perf_counter() - imported)
"""


def write_model(folder: Path, name: str, dtype: str, seed: int = 0) -> None:
    """Write one of `MODELS` with random weights and a tokenizer of bytes.

    Args:
        folder: where to; it is made.
        name: of the model.
        dtype: of its weights, one of `DTYPES`.
        seed: of the random weights.
    """
    import torch
    import transformers

    from xla_dynamo.serving.tiny_model import byte_tokenizer

    tokenizer = byte_tokenizer()
    kind = _NAMES[name]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **MODELS[name],
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def seconds_to_read(folder: Path) -> tuple[float, float]:
    """How long a process takes to import torch, and to read the weights of a folder."""
    run = [sys.executable, "-c", _READ, str(folder)]
    told = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    return float(told[0]), float(told[1])


def first_token(port: int) -> str:
    """Ask a server for one token; its text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"prompt": "once", "max_tokens": 1, "temperature": 0})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    told = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"the server answered {response.status}: {told}")
    return str(told["choices"][0]["text"])


def start(made: Path, folder: Path) -> tuple[float, str]:
    """The seconds from exec to the first token, and what the server said of its stages."""
    begun = time.perf_counter()
    server = Server(made, ["--model", str(folder), "--longest", "512"])
    first_token(server.port)
    seconds = time.perf_counter() - begun
    if status := server.stop():
        raise SystemExit(f"the server ended with status {status}")
    return seconds, server.said


def main() -> int:
    """Serve each model cold and warm, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    table = Table(title="xla-dynamo serve, seconds from exec to the first token")
    for column in ("model", "cold", "warm", "import torch", "read weights", "ratio"):
        table.add_column(column, justify="left" if column == "model" else "right")
    said = []
    for name in options.models:
        for dtype in options.dtypes:
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made) / name
                write_model(folder, name, dtype)
                cold, _ = start(Path(made), folder)
                imports, reading = seconds_to_read(folder)
                warm, stages = start(Path(made), folder)
                said.append(f"{name} {dtype}, warm: {stages}")
            times = (cold, warm, imports, reading)
            ratio = f"{warm / (imports + reading):.1f}"
            table.add_row(f"{name} {dtype}", *(f"{t:.1f}" for t in times), ratio)
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print("\n".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
