"""Attention to a paged cache by a kernel: its numbers, what it reads, and what it leaves to XLA."""

import pytest
import torch
import torch.nn.functional as F
import transformers

from tests.compiling import watched
from tests.packing import needs_onednn, packed_calls
from tests.test_paged_cache import SIZES, generated
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.kernels.paged_attention import MOST_TOKENS, PagedAttention, PlannedPagedAttention
from xla_dynamo.runtime.cpu import paged_attention

pytestmark = [
    needs_onednn,
    pytest.mark.skipif("torch" not in libraries_of("cpu"), reason="torch has other threads here"),
]
BETWEEN = 8
ATTENTION = torch.ops.xla.attend_to_pages
# Of each request: how many tokens there are, and how many keys.
REQUESTS = {
    "decoding": [(1, 5), (1, 40), (1, 1)],
    "mixed": [(3, 3), (2, 20), (1, 16), (1, 17)],
    "whole vectors": [(7, 32), (1, 48)],
}


class Batch:
    """Queries and keys of requests, rows of a cache, and a mask as transformers makes it."""

    def __init__(self, requests, dtype, heads=4, kv_heads=2, size=16, padding=0):
        tokens, keys = (sum(one[i] for one in requests) + padding for i in (0, 1))
        g = torch.Generator().manual_seed(0)
        self.query = torch.randn(tokens, heads, size, generator=g).to(dtype)
        self.keys, self.values = torch.randn(2, tokens, kv_heads, size, generator=g).to(dtype)
        self.rows = torch.randn(2 * keys + 64, kv_heads, size, generator=g).to(dtype)
        self.read = torch.randint(0, len(self.rows) - BETWEEN, (keys,), generator=g)
        self.starts_q, self.starts_k = (
            torch.tensor([0, *(one[i] for one in requests)]).cumsum(0).int() for i in (0, 1)
        )
        least = torch.finfo(dtype).min
        self.mask = torch.full((tokens, keys), least, dtype=dtype)
        self.number = tokens - padding
        for r, (new, count) in enumerate(requests):
            block = torch.full((new, count), least, dtype=dtype).triu(count - new + 1)
            q, k = self.starts_q[r], self.starts_k[r]
            self.mask[q : q + new, k : k + count] = block

    def found(self, dtype=torch.float64):
        """The keys and the values that are attended to, [keys, kv heads, size]."""
        made = []
        for new, first in ((self.keys, 0), (self.values, BETWEEN)):
            rows = self.rows.to(dtype)[self.read + first]
            for r in range(len(self.starts_q) - 1):
                own = slice(*self.starts_q[r : r + 2])
                end = self.starts_k[r + 1]
                rows[end - (own.stop - own.start) : end] = new[own].to(dtype)
            made.append(rows)
        return made

    def expected(self):
        """The result in float64, [tokens, heads, size]."""
        query, mask = self.query.double().transpose(0, 1), self.mask.double()
        keys, values = (x.transpose(0, 1) for x in self.found())
        made = F.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
        )
        return made[0].transpose(0, 1)

    def arguments(self):
        """Those of the operator."""
        dtype = self.query.dtype
        new = [x.transpose(0, 1)[None] for x in (self.keys, self.values)]
        found = [x.transpose(0, 1)[None] for x in self.found(dtype)]
        query = self.query.transpose(0, 1)[None]
        others = self.rows, self.read, self.starts_q, self.starts_k, 0, BETWEEN
        return query, found, self.mask[None, None], new, *others

    def by_parts(self, parts):
        """What the function makes of it, in so many parts."""
        (tokens, heads, size), kv_heads = self.query.shape, self.keys.shape[1]
        function = paged_attention.function(
            self.query.dtype, heads, kv_heads, size, BETWEEN, size**-0.5
        )
        made = torch.full_like(self.query, 7.0)
        arrays = (self.query, self.keys, self.values, self.rows, self.read)
        arrays += (self.starts_q, self.starts_k, self.mask, made)
        numbers = tokens, len(self.starts_q) - 1, len(self.read)
        for part in range(parts):
            assert function(*(x.data_ptr() for x in arrays), *numbers, part, parts) == 0
        return made


def assert_near(made, expected):
    """Within the rounding of the result's dtype, and of sums in float32."""
    near = {"rtol": 1e-5, "atol": 2e-6}
    if made.dtype is torch.bfloat16:
        near = {"rtol": 2**-7, "atol": 2**-8}
    torch.testing.assert_close(made.double(), expected, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize(
    "sizes", [(4, 2, 16), (3, 3, 64), (6, 1, 32), (8, 1, 128), (5, 5, 80)], ids=str
)
def test_the_function(requests, sizes, dtype):
    batch = Batch(REQUESTS[requests], dtype, *sizes)
    for parts in (1, 3):
        assert_near(batch.by_parts(parts), batch.expected())


def test_tokens_of_no_request_get_zeros():
    batch = Batch(REQUESTS["mixed"], torch.float32, padding=3)
    made = batch.by_parts(2)
    assert not made[batch.number :].any()
    assert_near(made[: batch.number], batch.expected()[: batch.number])


def test_nothing_of_other_requests_is_read():
    """Rows of NaN, which no request reads, and keys of others that are NaN."""
    batch = Batch(REQUESTS["mixed"], torch.float32)
    expected = batch.expected()
    other = slice(*batch.starts_q[1:3])
    mine = torch.ones(len(batch.query), dtype=torch.bool)
    mine[other] = False
    batch.query[other] = batch.keys[other] = batch.values[other] = torch.nan
    unread = torch.ones(len(batch.rows), dtype=torch.bool)
    unread[batch.read] = unread[batch.read + BETWEEN] = False
    batch.rows[unread] = torch.nan
    made = batch.by_parts(3)
    assert_near(made[mine], expected[mine])
    assert made[other].isnan().all()


@pytest.mark.parametrize("scale", [1e-3, 30.0, 3e4])
def test_small_and_large_scores(scale):
    batch = Batch(REQUESTS["mixed"], torch.float32)
    batch.query *= scale
    torch.testing.assert_close(
        batch.by_parts(1).double(), batch.expected(), rtol=1e-4, atol=1e-6 * max(scale, 1)
    )


def test_infinite_scores_are_nan():
    batch = Batch(REQUESTS["decoding"], torch.float32)
    batch.query[0] = torch.inf
    made = batch.by_parts(1)
    assert made[0].isnan().any()
    assert_near(made[1:], batch.expected()[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_operator_is_a_plan(cold, dtype):
    batch = Batch(REQUESTS["mixed"], dtype, padding=2)
    run, built = watched(lambda *args: ATTENTION(*args), fullgraph=True)
    made = run(*batch.arguments())[0].transpose(0, 1)
    assert [call.form.name for call in packed_calls(built[-1].program)] == [
        "planned_paged_attention"
    ]
    assert_near(made[: batch.number], batch.expected()[: batch.number])
    eager = ATTENTION(*batch.arguments())[0].transpose(0, 1)
    assert_near(eager[: batch.number], batch.expected()[: batch.number])


@pytest.mark.parametrize(
    ("requests", "size"),
    [(REQUESTS["mixed"], 8), ([(MOST_TOKENS + 1, MOST_TOKENS + 1)], 16)],
    ids=["heads of 8", "many tokens"],
)
def test_what_is_left_to_xla(cold, requests, size):
    batch = Batch(requests, torch.float32, size=size)
    run, built = watched(lambda *args: ATTENTION(*args), fullgraph=True)
    made = run(*batch.arguments())[0].transpose(0, 1)
    assert "planned_paged_attention" not in [
        call.form.name for call in packed_calls(built[-1].program)
    ]
    assert_near(made, batch.expected())


def test_a_mask_that_says_where(cold):
    """A mask of truths is not added: XLA has it."""
    batch = Batch(REQUESTS["mixed"], torch.float32)
    query, found, mask, *others = batch.arguments()
    run, built = watched(lambda *args: ATTENTION(*args), fullgraph=True)
    made = run(query, found, mask == 0, *others)[0].transpose(0, 1)
    assert not packed_calls(built[-1].program)
    assert_near(made, batch.expected())


@pytest.mark.every(2)
@pytest.mark.parametrize("buckets", ["exact", "auto"])
@pytest.mark.parametrize("kwargs", [{}, {"sliding_window": 8}], ids=["full", "sliding"])
def test_continuous_batching_calls_it(cold, monkeypatch, kwargs, buckets):
    """In executables of exact sizes, as a server has them, and in bounded ones."""
    if kwargs:
        kwargs |= {"use_sliding_window": True}
        kwargs |= {"layer_types": ["full_attention", "sliding_attention"]}
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 64, "num_hidden_layers": 2}
    config = transformers.Qwen2Config(**sizes, **kwargs)
    config._attn_implementation = "sdpa"
    model = transformers.Qwen2ForCausalLM(config).eval()
    lengths = (5, 14) if buckets == "exact" else (5, 14, 3, 30)
    tokens = 3 if buckets == "exact" else 12
    expected = generated(model, lengths, tokens=tokens)
    planned, packed = [], PlannedPagedAttention.packed

    def counted(self, *weights):
        planned.append(self.call)
        return packed(self, *weights)

    monkeypatch.setattr(PlannedPagedAttention, "packed", counted)
    model.compile(backend="openxla", dynamic=True, options={"buckets": buckets})
    for _ in range(2):
        assert generated(model, lengths, tokens=tokens) == expected
    assert planned


def test_requests_that_are_not_there(cold):
    """A bounded program has room for more of them: whatever lies there, nobody reads it."""
    run, built = watched(lambda *args: ATTENTION(*args), fullgraph=True, dynamic=True)
    for requests in ("mixed", "decoding", "whole vectors", "mixed"):
        batch = Batch(REQUESTS[requests], torch.float32)
        made = run(*batch.arguments())[0].transpose(0, 1)
        assert_near(made, batch.expected())
    assert any(isinstance(size, str) for one in built for size in one.sizes.values())  # "2 to 32"
    names = [call.form.name for one in built for call in packed_calls(one.program)]
    assert names == ["planned_paged_attention"] * len(built)


def test_a_bad_specification_is_refused():
    good = {
        "dtype": torch.float32, "tokens": 2, "requests": 1, "keys": 4, "heads": 4, "kv_heads": 2,
        "size": 16, "first": 0, "between": 8, "scale": 0.25,
    }  # fmt: skip
    PagedAttention(**good).check()
    for name, bad in (("size", 24), ("kv_heads", 3), ("keys", 0), ("first", -1), ("scale", 1e400)):
        with pytest.raises(LoweringError):
            PagedAttention(**{**good, name: bad}).check()
