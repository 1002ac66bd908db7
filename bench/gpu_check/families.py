"""Eight families of operators against eager, and the gradients of three."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench.gpu_check.comparison import Check, against_eager, is_float


def families(device: str) -> Iterator[Check]:
    """Eight families of operators against eager."""
    new = functools.partial(torch.randn, device=device)
    floats = (torch.float32, torch.float16, torch.bfloat16)
    names = torch.randint(0, 50, (7, 9), device=device)
    a, b, c = new(33, 65), new(65, 17), new(4, 8, 15, 15)
    square = new(12, 12) + 12 * torch.eye(12, device=device)
    sources: dict[str, list[tuple]] = {
        "pointwise": [
            (lambda x: (x.exp(), x.tanh(), x.erf(), F.gelu(x), x.sigmoid().log()), a),
            (lambda x, y: torch.where(x > y, x / y, x * y), a, new(33, 65)),
            (lambda x: (x // 3, x % 3, x << 1), torch.arange(-40, 40, device=device)),
        ],
        "reductions": [
            (lambda x: (x.sum(0), x.mean(), x.var(1), x.argmax(1), x.logsumexp(1)), a),
            (lambda x: (F.softmax(x, -1), F.layer_norm(x, (65,)), x.cumsum(1)), a),
            (lambda x: (x.norm(), x.amax(0), x.prod(1)), a.abs()),
        ],
        "products": [(torch.matmul, a, b), (torch.bmm, new(3, 5, 7), new(3, 7, 11))],
        "convolutions": [
            (lambda x, w: F.conv2d(x, w, stride=2, padding=1), c, new(16, 8, 3, 3)),
            (lambda x, w: F.conv2d(x, w, padding=1, groups=8), c, new(8, 1, 3, 3)),
            (lambda x, w: F.conv_transpose2d(x, w, stride=2), c, new(8, 6, 3, 3)),
            (lambda x: (F.max_pool2d(x, 3, 2), F.avg_pool2d(x, 2)), c),
        ],
        "indexing": [
            (lambda x, i: (F.embedding(i % 33, x), x[i % 33], x.flip(0)), a, names),
            (lambda x, i: x.index_add(0, i.flatten() % 33, x[:1].expand(63, 65)), a, names),
            (lambda x, i: x.scatter(1, i[:, :5] % 65, 1.0).gather(1, i[:, :3] % 65), a[:7], names),
        ],
        "sorting": [
            (lambda x: (x.sort(1), x.topk(5, 1), x.median(1).values), a),
            (lambda x: (x.argsort(stable=True), x.kthvalue(3).values), new(100)),
        ],
        "attention": [
            (F.scaled_dot_product_attention, *new(3, 2, 4, 33, 16)),
            (lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), *new(3, 2, 4, 33, 16)),
        ],
        "linear algebra": [
            (lambda x: (torch.linalg.inv(x), torch.linalg.det(x / 12), x.triu(1)), square),
            (lambda x: torch.linalg.cholesky(x @ x.mT), square),
            (lambda x: torch.fft.rfft(x).abs(), new(5, 32)),
        ],
    }
    # Sums in another order differ by more than one operator's rounding.
    factors = {"products": 10, "convolutions": 10, "linear algebra": 100, "reductions": 10}
    in_half = ("pointwise", "reductions", "products", "attention")
    for family, cases in sources.items():
        for dtype in floats if family in in_half else floats[:1]:

            def check(cases: list = cases, dtype: Any = dtype, family: str = family) -> dict:
                for f, *args in cases:
                    typed = [x.to(dtype) if is_float(x) else x for x in args]
                    against_eager(f, *typed, factor=factors.get(family, 1))
                return {"programs": len(cases)}

            yield f"{family}, {str(dtype).removeprefix('torch.')}", check
    weight, plain = new(16, 8, 3, 3), functools.partial(F.conv2d, padding=1)
    yield "gradients of products", lambda: against_eager(torch.matmul, a, b, factor=10, grad=True)
    yield "gradients of convolutions", lambda: against_eager(plain, c, weight, factor=20, grad=True)
    attend, qkv = F.scaled_dot_product_attention, new(3, 2, 4, 33, 16)
    yield "gradients of attention", lambda: against_eager(attend, *qkv, factor=10, grad=True)
