"""What each choice among forms of an operator gives, one row a choice, in one process.

`python -m bench.forms` times convolutions, matrix products and attention in eager torch, as XLA's
own operators (`options={"libraries": []}`), and as they are lowered, where libraries may be called
(xla_dynamo/kernels). Rounds are interleaved; every call makes a
new result.
"""

import argparse
import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from bench.timing import interleave, positive, set_threads

Function = Callable[..., torch.Tensor]

# Batch, channels, size of the image, output channels, window, stride, groups.
CONVOLUTIONS = {
    "first 7x7": (4, 3, 224, 64, 7, 2, 1),
    "3x3, 56": (4, 64, 56, 64, 3, 1, 1),
    "3x3, 28": (4, 128, 28, 128, 3, 1, 1),
    "3x3, 14": (4, 256, 14, 256, 3, 1, 1),
    "3x3, 7": (4, 512, 7, 512, 3, 1, 1),
    "1x1, up": (4, 64, 56, 256, 1, 1, 1),
    "1x1, down": (4, 1024, 14, 256, 1, 1, 1),
    "depthwise, 112": (4, 96, 112, 96, 3, 2, 96),
    "depthwise, 14": (4, 576, 14, 576, 3, 1, 576),
    "grouped": (4, 128, 28, 128, 3, 1, 32),
}
# Rows, inner size, columns, and whether the second factor is the transpose of weights.
PRODUCTS = {
    "512 x 768 x 3072, weights": (512, 768, 3072, True),
    "512 x 3072 x 768, weights": (512, 3072, 768, True),
    "256 x 768 x 50257, weights": (256, 768, 50257, True),
    "512 x 768 x 3072": (512, 768, 3072, False),
    "256 x 768 x 3072": (256, 768, 3072, False),
    "64 x 512 x 512, weights": (64, 512, 512, True),
    "8 x 768 x 3072, weights": (8, 768, 3072, True),
    "1 x 768 x 3072, weights": (1, 768, 3072, True),
}
# Stack, queries, keys, size of a head.
ATTENTION = {"4 x 12, 128 of 64": (4, 12, 128, 64), "1 x 32, 512 of 128": (1, 32, 512, 128)}


def cases(dtype: torch.dtype) -> dict[str, tuple[Function, Sequence[torch.Tensor]]]:
    """Functions by name, with what to call them with."""
    made: dict[str, tuple[Function, Sequence[torch.Tensor]]] = {}
    for name, (n, c, size, out, k, stride, groups) in CONVOLUTIONS.items():
        image = torch.randn(n, c, size, size, dtype=dtype).to(memory_format=torch.channels_last)
        kernel = torch.randn(out, c // groups, k, k, dtype=dtype)
        convolve = functools.partial(F.conv2d, stride=stride, padding=k // 2, groups=groups)
        made[f"convolution {name}"] = convolve, (image, kernel)
    for name, (m, k, n, turned) in PRODUCTS.items():
        x, y = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
        if turned:
            made[f"product {name}"] = F.linear, (x, y)
        else:
            made[f"product {name}"] = torch.mm, (x, y.T.contiguous())
    for name, (batch, heads, length, size) in ATTENTION.items():
        qkv = torch.randn(3, batch, heads, length, size, dtype=dtype).unbind()
        made[f"attention {name}"] = F.scaled_dot_product_attention, qkv
    return made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--threads", type=positive, default=2)
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    table = Table(title=f"{arguments.dtype}, ms a call, {arguments.threads} torch threads")
    for column in ("form", "eager", "XLA's own", "as lowered", "as lowered / eager"):
        table.add_column(column, justify="left" if column == "form" else "right")
    with torch.no_grad():
        for name, (function, tensors) in cases(getattr(torch, arguments.dtype)).items():
            torch._dynamo.reset()
            calls = {"eager": functools.partial(function, *tensors)}
            for form, used in (("own", []), ("lowered", ["onednn", "torch"])):
                compiled = torch.compile(
                    lambda *t, f=function: f(*t),
                    backend="openxla",
                    options={"libraries": used},
                    dynamic=False,
                )
                calls[form] = functools.partial(compiled, *tensors)
            ms = {k: s * 1e3 for k, s in interleave(calls, rounds=arguments.rounds).items()}
            figures = (f"{ms[c]:.2f}" for c in ("eager", "own", "lowered"))
            table.add_row(name, *figures, f"{ms['lowered'] / ms['eager']:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
