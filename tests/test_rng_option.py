"""`options={"rng": "torch"}` draws eager's own numbers and leaves the generator as eager does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from tests.compiling import compiled_whole
from tests.op_database import DRAWN, full_name, operators
from tests.op_sweep import check
from xla_dynamo import OptionError
from xla_dynamo.options import Options

aten = torch.ops.aten

ALSO_DRAW = {
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention",
    "pca_lowrank",
}
RANDOM_OPS = {
    dtype: [op for op in operators(dtype) if op.name in DRAWN | ALSO_DRAW]
    for dtype in (torch.float32, torch.int64)
}


def drawing_in_torch(fn, **options):
    return compiled_whole(fn, rng="torch", **options)


def assert_same_run(fn, *sizes, exact=False, calls=3, **options):
    """Compare results, gradients and the generator's state with eager's, several calls in a row."""
    runs = []
    inputs = [torch.rand(size) + 0.1 for size in sizes]
    for f in (fn, drawing_in_torch(fn, **options)):
        torch.manual_seed(3)
        values, states = [], []
        for _ in range(calls):
            leaves = [x.clone().requires_grad_() for x in inputs]
            y = f(*leaves)
            states.append(torch.get_rng_state())
            y.sum().backward()
            states.append(torch.get_rng_state())
            values += [y.detach(), *(x.grad for x in leaves)]
        runs.append((values, states))
    (expected, eager_states), (actual, our_states) = runs
    for e, a in zip(expected, actual, strict=True):
        assert torch.equal(e, a) if exact else torch.allclose(e, a, rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, eager_states, our_states))


# --- every random operator ---------------------------------------------------------------------


@pytest.mark.every(2)
@pytest.mark.parametrize("op", RANDOM_OPS[torch.float32], ids=full_name)
def test_operators(op):
    outcome = check(op, torch.float32, limit=2, rng="torch")
    assert outcome.status == "pass", outcome.detail


@pytest.mark.parametrize("op", RANDOM_OPS[torch.int64], ids=full_name)
def test_operators_of_integers(op):
    outcome = check(op, torch.int64, limit=2, rng="torch")
    assert outcome.status == "pass", outcome.detail


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "op", [op for op in operators(torch.float32, "gradients") if op.name in DRAWN], ids=full_name
)
def test_gradients_of_operators(op):
    outcome = check(op, torch.float32, limit=2, rng="torch", form="gradients")
    assert outcome.status == "pass", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("form", ["values", "gradients"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_more_samples(dtype, form):
    for op in (op for op in operators(dtype, form) if op.name in DRAWN):
        outcome = check(op, dtype, limit=10, rng="torch", form=form)
        assert outcome.status in ("pass", "refused"), (full_name(op), outcome.detail)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(50),
        lambda: torch.randn(50, dtype=torch.bfloat16),
        lambda: torch.randperm(50),
        lambda: torch.randint(7, (50,)),
        lambda: torch.poisson(torch.full((50,), 3.0)),
        lambda: torch.binomial(torch.full((50,), 9.0), torch.full((50,), 0.3)),
        lambda: torch._standard_gamma(torch.full((50,), 0.7)),
        lambda: torch._sample_dirichlet(torch.ones(10, 5)),
        lambda: torch.bernoulli(torch.full((50,), 0.3)),
        lambda: torch.empty(5, 10).t().bernoulli_(0.3),
        lambda: torch.empty(5, 10).t().bernoulli_(torch.full((10, 5), 0.3)),
        lambda: torch.empty(5, 10).t().normal_(1, 2),
        lambda: torch.empty(5, 10).t().exponential_(),
        lambda: torch.rand_like(torch.empty(5, 10).t()),
        lambda: torch.normal(torch.zeros(50), torch.ones(50)),
        lambda: aten.random(torch.zeros(50, dtype=torch.int16), -5, 9),
        lambda: torch.multinomial(torch.ones(20), 5),
    ],
)
def test_draws(draw):
    f = drawing_in_torch(draw)
    torch.manual_seed(1)
    expected = [draw() for _ in range(3)]
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert all(map(torch.equal, expected, [f() for _ in range(3)]))
    assert torch.equal(state, torch.get_rng_state())


# --- dropout -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (nn.Dropout(0.3), (6, 50)),
        (nn.Dropout(0.0), (6, 50)),
        (nn.Dropout(1.0), (6, 50)),
        (nn.Dropout(0.3), (0, 50)),
        (nn.Dropout1d(0.4), (6, 5, 4)),
        (nn.Dropout2d(0.4), (6, 5, 4, 3)),
        (nn.Dropout3d(0.4), (6, 5, 2, 3, 2)),
        (nn.AlphaDropout(0.3), (6, 50)),
        (nn.FeatureAlphaDropout(0.3), (6, 5, 4)),
        (nn.RReLU(), (6, 50)),
    ],
    ids=str,
)
def test_modules(module, size):
    # another draw shows what the module left of the generator
    assert_same_run(lambda x: module(x.sin() - 0.4) + torch.rand(()), size)


def test_dropout_is_eager_s_to_the_last_bit():
    for p in (0.1, 0.3, 0.9):
        assert_same_run(lambda x, p=p: F.dropout(x, p), (6, 50), exact=True, calls=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dropout_of_other_dtypes(dtype):
    assert_same_run(lambda x: F.dropout(x.to(dtype), 0.3), (6, 50), exact=True)


def test_dropout_follows_the_memory_of_its_input():
    assert_same_run(lambda x: F.dropout(x.transpose(0, 1), 0.3), (6, 50, 3))
    assert_same_run(lambda x: F.dropout(x.expand(7, 50), 0.3), (50,))
    assert_same_run(lambda x: F.dropout(x[:, ::2], 0.3), (6, 50))
    assert_same_run(lambda x: F.alpha_dropout(x.t(), 0.3, training=True), (6, 50))


def test_others_that_draw():
    assert_same_run(lambda x: F.gumbel_softmax(x), (6, 10))
    assert_same_run(lambda x: F.gumbel_softmax(x, hard=True), (6, 10))
    sizes = [(2, 2, 10, 4)] * 3
    attention = F.scaled_dot_product_attention
    assert_same_run(lambda q, k, v: attention(q, k, v, dropout_p=0.3, is_causal=True), *sizes)


@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_layer(batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=batch_first)
    assert_same_run(layer, (7, 4, 8))


def test_dynamic_sizes():
    f = drawing_in_torch(lambda x: F.dropout(x, 0.5) * torch.rand(x.shape))
    for n in (5, 8, 13):
        x = torch.ones(n)
        torch.manual_seed(n)
        expected = F.dropout(x, 0.5) * torch.rand(n)
        torch.manual_seed(n)
        assert torch.equal(f(x), expected)


_SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.every(2)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_training_loses_what_eager_loses(name, attention):
    ids = torch.randint(0, 64, (2, 16))
    if name == "BERT":
        config = BertConfig(**_SMALL, intermediate_size=64, max_position_embeddings=32)
        model, labels = BertForSequenceClassification(config), torch.tensor([0, 1])
    else:
        config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32,
                            bos_token_id=0, eos_token_id=0)  # fmt: skip
        model, labels = GPT2LMHeadModel(config), ids
    model.set_attn_implementation(attention)

    def losses(wrap):
        trained = copy.deepcopy(model).train()
        step, found = wrap(trained), []
        optimizer = torch.optim.SGD(trained.parameters(), 0.1)
        torch.manual_seed(0)
        for _ in range(5):
            optimizer.zero_grad()
            logits = step(input_ids=ids).logits
            loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten())
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found, torch.get_rng_state()

    expected, state = losses(lambda m: m)
    actual, our_state = losses(drawing_in_torch)
    assert actual == pytest.approx(expected, rel=1e-6)
    assert torch.equal(state, our_state)


# --- order, and what nobody reads --------------------------------------------------------------


def test_the_order_of_the_graph():
    # multinomial waits for a compiled part; rand waits for it
    def f(x):
        chosen = torch.multinomial(x.exp(), 3)
        return x[chosen] * torch.rand(3)

    assert_same_run(f, (10,))


def test_draws_that_nobody_reads_advance_the_generator():
    def f(x):
        torch.rand(3)
        return F.dropout(x, 0.5) * torch.rand(50)

    assert_same_run(f, (6, 50))
    with torch.no_grad():
        x, g = torch.ones(6, 50), drawing_in_torch(f)
        torch.manual_seed(0)
        expected = f(x)
        torch.manual_seed(0)
        assert torch.equal(g(x), expected)


def test_draws_of_the_backward():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * torch.rand(50)

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.rand(50)

    assert_same_run(lambda x: F.dropout(Noisy.apply(x), 0.5), (6, 50))


def test_draws_do_not_cut_the_graph(split_graphs):
    f = drawing_in_torch(lambda x: F.dropout(F.dropout(x.sin(), 0.5).cos() * torch.rand(50), 0.5))
    f(torch.ones(6, 50, requires_grad=True)).sum().backward()
    assert [len(graph.parts) for graph in split_graphs] == [1]  # the forward; all drawn beforehand


def test_the_default_does_not_draw_in_torch(split_graphs):
    compiled_whole(lambda x: F.dropout(x, 0.5), rng="xla")(torch.ones(50))
    assert not split_graphs


def test_dropout_outside_of_training_is_compiled(split_graphs):
    model = nn.Sequential(nn.Dropout(0.5), nn.RReLU()).eval()
    x = torch.randn(50)
    assert torch.equal(drawing_in_torch(model)(x), model(x))
    assert not split_graphs


def test_other_values_are_refused():
    with pytest.raises(OptionError, match="'rng' must be one of"):
        Options.parse({"rng": "eager"})
