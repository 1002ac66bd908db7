"""The fused attention operators of other devices, run on the CPU as graphs of one node."""

import operator

import pytest
import torch
import torch.nn.functional as F

from xla_dynamo import compile_graph

aten = torch.ops.aten
B, H, M, N, D = 2, 3, 5, 7, 8


def run(op, args, promised, **kwargs):
    """Call an operator through compile_graph; `promised` are its results' fake values."""
    graph = torch.fx.Graph()
    nodes, tensors = [], []
    for place, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            node = graph.placeholder(f"x{place}")
            node.meta["val"] = arg
            tensors.append(arg)
            arg = node
        nodes.append(arg)
    call = graph.call_function(op, tuple(nodes), kwargs)
    call.meta["val"] = promised
    parts = []
    for place, value in enumerate(promised):
        if isinstance(value, torch.Tensor):
            part = graph.call_function(operator.getitem, (call, place))
            part.meta["val"] = value
            parts.append(part)
    graph.output(tuple(parts))
    return compile_graph(torch.fx.GraphModule({}, graph), tensors)(*tensors)


def problem(biased):
    query, grad = torch.randn(B, H, M, D), torch.randn(B, H, M, D)
    key, value = torch.randn(2, B, H, N, D)
    bias = torch.randn(1, H, M, N) if biased else None
    leaves = [t.requires_grad_() for t in (query, key, value, *([bias] if biased else []))]
    expected = F.scaled_dot_product_attention(query, key, value, bias)
    grads = torch.autograd.grad(expected, leaves, grad)
    return [t.detach() for t in leaves], grad, expected.detach(), grads


NUMBER = torch.empty((), dtype=torch.int64)
LENGTHS = torch.empty(B + 1, dtype=torch.int32)
NINE = (
    torch.empty(B, H, M, D), torch.empty(B, H, M), LENGTHS, LENGTHS, M, N, NUMBER, NUMBER,
    torch.empty(0),
)  # fmt: skip
LIKE_QUERY, LIKE_KEY = torch.empty(B, H, M, D), torch.empty(B, H, N, D)
GRADS = (LIKE_QUERY, LIKE_KEY, LIKE_KEY)


def assert_all_close(actual, expected):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
def test_efficient(biased):
    (q, k, v, *bias), grad, expected, grads = problem(biased)
    bias = bias[0] if bias else None
    padded = torch.empty(B, H, 32)
    args = (q, k, v, bias, True, 0.0, False)
    op = aten._scaled_dot_product_efficient_attention
    out, lse, seed, offset = run(op.default, args, (LIKE_QUERY, padded, NUMBER, NUMBER))
    assert_all_close([out], [expected])
    promised = (*GRADS, torch.empty(1, H, M, N) if biased else None)
    mask = [True, True, True, biased]
    args = (grad, q, k, v, bias, out, lse, seed, offset, 0.0, mask)
    backward = aten._scaled_dot_product_efficient_attention_backward
    assert_all_close(run(backward.default, args, promised), grads)


def test_flash():
    (q, k, v), grad, expected, grads = problem(biased=False)
    op = aten._scaled_dot_product_flash_attention
    out, lse, *lengths, seed, offset, _ = run(op.default, (q, k, v), NINE)
    assert_all_close([out], [expected])
    args = (grad, q, k, v, out, lse, *lengths, M, N, 0.0, False, seed, offset)
    backward = aten._scaled_dot_product_flash_attention_backward
    assert_all_close(run(backward.default, args, GRADS), grads)


def test_cudnn():
    (q, k, v, bias), grad, expected, grads = problem(biased=True)
    op = aten._scaled_dot_product_cudnn_attention
    out, lse, *lengths, seed, offset, _ = run(op.default, (q, k, v, bias, True), NINE)
    assert_all_close([out], [expected])
    args = (grad, q, k, v, out, lse, seed, offset, bias, *lengths, M, N, 0.0, False)
    backward = aten._scaled_dot_product_cudnn_attention_backward
    assert_all_close(run(backward.default, args, GRADS), grads[:3])


def test_overrideable():
    (q, k, v, bias), grad, expected, grads = problem(biased=True)
    op = aten._scaled_dot_product_fused_attention_overrideable
    out, lse, *lengths, seed, offset, _ = run(op.default, (q, k, v, bias), NINE)
    assert_all_close([out], [expected])
    mask = [True] * 4
    args = (grad, q, k, v, bias, mask, out, lse, *lengths, M, N, 0.0, False, seed, offset)
    backward = aten._scaled_dot_product_fused_attention_overrideable_backward
    promised = (*GRADS, torch.empty(1, H, M, N))
    assert_all_close(run(backward.default, args, promised), grads)


def test_forward_and_backward_drop_the_same():
    """With values of one the output is each row's kept weight, and so is its gradient."""
    (q, k, _), _, _, _ = problem(biased=False)
    v, p = torch.ones(B, H, N, D), 0.5
    op = aten._scaled_dot_product_flash_attention
    out, lse, *lengths, seed, offset, _ = run(op.default, (q, k, v, p), NINE)
    grad = torch.ones_like(out)
    args = (grad, q, k, v, out, lse, *lengths, M, N, p, False, seed, offset)
    backward = aten._scaled_dot_product_flash_attention_backward
    *_, grad_value = run(backward.default, args, GRADS)
    torch.testing.assert_close(grad_value.sum((2, 3)), out.sum((2, 3)))
