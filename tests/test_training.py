"""Training through compiled code: what autograd lets a user do, against eager."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpointing

from xla_dynamo.runtime import metrics


def compiled(f, **options):
    return torch.compile(f, backend="openxla", **{"fullgraph": True, **options})


def step(f, inputs, tangents=None):
    """Outputs of f, and the gradients in its inputs of their sum, or by the given tangents."""
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    outputs = f(*inputs)
    listed = outputs if isinstance(outputs, tuple) else (outputs,)
    if tangents is None:
        tangents = [torch.ones_like(y) if y.requires_grad else None for y in listed]
    pairs = [(y, t) for y, t in zip(listed, tangents, strict=True) if t is not None]
    torch.autograd.backward(*zip(*pairs, strict=True))
    return [y.detach() for y in listed], [x.grad for x in inputs]


def check(f, *inputs, tangents=None, **options):
    """Compare outputs and gradients of the compiled function with the eager one's."""
    actual = step(compiled(f, **options), inputs, tangents)
    torch.testing.assert_close(actual, step(f, inputs, tangents))


def check_module(module, *inputs, steps=1, **options):
    """Compare outputs, gradients, parameters and buffers after some steps of a module."""
    twin = copy.deepcopy(module)
    fast = compiled(twin, **options)
    for _ in range(steps):
        expected, actual = step(module, inputs), step(fast, inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    grads, twin_grads = ([p.grad for p in m.parameters()] for m in (module, twin))
    torch.testing.assert_close(twin_grads, grads, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(twin.state_dict(), module.state_dict())


def leaf(*shape, **kwargs):
    return torch.randn(*shape, **kwargs, requires_grad=True)


# --- checkpoints -----------------------------------------------------------------------------

reentrancy = pytest.mark.parametrize("use_reentrant", [False, True], ids=["new", "reentrant"])


class Checkpointed(nn.Module):
    """A block whose activations are computed anew in the backward."""

    def __init__(self, *layers, use_reentrant=False):
        super().__init__()
        self.block = nn.Sequential(*layers)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpointing.checkpoint(self.block, x, use_reentrant=self.use_reentrant)


@reentrancy
def test_checkpoint(use_reentrant):
    module = Checkpointed(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), use_reentrant=use_reentrant)
    check_module(nn.Sequential(module, nn.Tanh()), leaf(3, 4), steps=2, fullgraph=not use_reentrant)


@reentrancy
def test_nested_checkpoints(use_reentrant):
    inner = Checkpointed(nn.Linear(4, 4), nn.Sigmoid(), use_reentrant=use_reentrant)
    outer = Checkpointed(nn.Linear(4, 4), inner, nn.Tanh(), use_reentrant=use_reentrant)
    check_module(outer, leaf(3, 4), fullgraph=not use_reentrant)


def test_checkpoint_outside_of_the_compiled_function():
    f = compiled(lambda x: (x.sin() * x).exp())
    x, y = leaf(5), leaf(5)
    y.data.copy_(x)
    checkpointing.checkpoint(f, x, use_reentrant=False).sum().backward()
    (y.sin() * y).exp().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_selective_checkpoint():
    """Matrix products are saved, the rest is computed anew."""
    saved = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]

    def policy():
        return checkpointing.create_selective_checkpoint_contexts(saved)

    def f(x, w):
        def block(x, w):
            return (x @ w).sigmoid() @ w

        return checkpointing.checkpoint(block, x, w, use_reentrant=False, context_fn=policy)

    check(f, leaf(3, 4), leaf(4, 4))


@reentrancy
def test_checkpoint_repeats_the_same_dropout(use_reentrant):
    """The gradient is 2 where the output is kept, 0 where it is dropped."""

    def f(x):
        def block(x):
            return F.dropout(x * 1.0, 0.5)

        return checkpointing.checkpoint(block, x, use_reentrant=use_reentrant)

    x = torch.ones(200, requires_grad=True)
    y = compiled(f, fullgraph=not use_reentrant)(x)
    y.sum().backward()
    assert 0 < (y == 0).sum() < 200
    torch.testing.assert_close(x.grad, y.detach())


@reentrancy
def test_checkpoint_around_compiled_dropout(use_reentrant):
    f, x = compiled(lambda x: F.dropout(x * 1.0, 0.5)), torch.ones(200, requires_grad=True)
    y = checkpointing.checkpoint(f, x, use_reentrant=use_reentrant)
    torch.randn(3)  # the generator moves on, and is put back for the second run
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


@reentrancy
def test_batch_norm_inside_a_checkpoint_counts_a_batch_once(use_reentrant):
    """Eager counts it twice, since it runs the block twice: AOTAutograd's doing, on any backend."""
    plain = nn.BatchNorm1d(4)
    x = leaf(6, 4)
    found = []
    for backend in ("openxla", "aot_eager"):
        block = Checkpointed(copy.deepcopy(plain), use_reentrant=use_reentrant)
        run = torch.compile(block, backend=backend)
        for _ in range(2):
            run(x).square().sum().backward()
        found.append(dict(block.block[0].state_dict()))
    for _ in range(2):
        plain(x)
    torch.testing.assert_close(found, [dict(plain.state_dict())] * 2)


# --- torch.autograd.Function -----------------------------------------------------------------


class Scaled(torch.autograd.Function):
    """x * y * k, with gradients that no formula of torch's has."""

    @staticmethod
    def forward(ctx, x, y, k):
        ctx.save_for_backward(x, y)
        ctx.k = k
        return x * y * k

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y * 10, grad * x * 100, None


class Split(torch.autograd.Function):
    """Two results, of which one has no gradient."""

    @staticmethod
    def forward(ctx, x):
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return x[order] * 2, order

    @staticmethod
    def backward(ctx, grad, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, order, grad * 3)


class Overwrite(torch.autograd.Function):
    """Writes its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


def test_function_with_saved_tensors():
    check(lambda x, y: Scaled.apply(x.sin(), y, 2.0).exp(), leaf(4), leaf(4))


def test_function_with_inputs_without_gradients():
    check(lambda x, y: Scaled.apply(x, y, 3), leaf(4), torch.randn(4))


def test_function_with_results_without_gradients():
    check(lambda x: Split.apply(x.tanh()), leaf(6))


def test_function_that_writes_its_input():
    """Dynamo breaks the graph at mark_dirty."""
    check(lambda x: Overwrite.apply(x * 1).sin(), leaf(4), fullgraph=False)


def test_function_used_twice():
    """Dynamo breaks the graph where a tensor comes twice."""
    check(lambda x: Scaled.apply(Scaled.apply(x, x, 1.0), x, 2.0), leaf(4), fullgraph=False)


# --- what has gradients, and what has none ---------------------------------------------------


def no_grad_region(x, w):
    y = (x * w).sin()
    with torch.no_grad():
        scale = y.abs().mean()
    return y / scale


def enable_grad_region(x, w):
    with torch.no_grad():
        a = x * w
        with torch.enable_grad():
            b = x * w.exp()
    return a + b


def detached(x, w):
    y = x * w
    return y.detach() * x + y


@pytest.mark.parametrize("f", [no_grad_region, enable_grad_region, detached])
def test_regions_without_gradients(f):
    check(f, leaf(4), leaf(4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_outside(mode):
    module, x = nn.Linear(4, 4), leaf(2, 4)
    f = compiled(module)
    with mode():
        y = f(x)
        torch.testing.assert_close(y, module(x))
    assert not y.requires_grad
    assert y.is_inference() == (mode is torch.inference_mode)
    check_module(module, x)  # and with gradients after that


def test_inference_mode_inside():
    def f(x):
        with torch.inference_mode():
            y = x.exp()
        return y.sum()

    x = torch.randn(4)
    torch.testing.assert_close(compiled(f, fullgraph=False)(x), f(x))


def test_outputs_without_gradients_among_others():
    def f(x, y):
        return x * 2, y * 3, (x > 0), x.argmax(), (x * y).detach(), x.sin()

    check(f, leaf(4), torch.randn(4))
    outputs = compiled(f)(leaf(4), torch.randn(4))
    assert [y.requires_grad for y in outputs] == [True, False, False, False, False, True]


def test_requires_grad_follows_the_input():
    f, x = compiled(lambda x: x * 2), torch.randn(3)
    for wanted in (False, True, False):
        assert f(x.requires_grad_(wanted)).requires_grad == wanted


def test_frozen_parameters():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module[0].requires_grad_(False)
    check_module(module, leaf(3, 4))
    module = copy.deepcopy(module)
    run, x = compiled(module), torch.randn(3, 4)
    run(x).sum().backward()
    assert module[0].weight.grad is None
    module[0].requires_grad_(True)  # thawed: the next call must see it
    run(x).sum().backward()
    assert module[0].weight.grad is not None


class Tied(nn.Module):
    """A language model's ends: one matrix embeds and projects."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, scale):
        return self.head(self.embedding(torch.tensor([1, 3, 3])) * scale)


def test_tied_weights():
    check_module(Tied(), leaf(4), steps=2)


def test_an_input_passed_twice():
    def f(x, y):
        return x * y.sin() + y

    x, y = leaf(4), leaf(4)
    y.data.copy_(x)
    compiled(f)(x, x).sum().backward()
    f(y, y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_views_of_one_input():
    def run(f):
        torch.manual_seed(0)
        base = leaf(4, 6)
        f(base[:2], base[1:3].flip(0), base.t()).sum().backward()
        return base.grad

    def f(a, b, c):
        return (a * b).sum() + (c[2] * c[3]).exp()

    torch.testing.assert_close(run(compiled(f)), run(f))


def test_an_output_that_is_a_view_of_an_input():
    check(lambda x: (x.t(), x.t() * 2), leaf(3, 4))
    check(lambda x: x.view(-1), leaf(3, 4))


def test_an_output_that_is_overwritten():
    def run(f):
        torch.manual_seed(0)
        x = leaf(3, 4)
        y, z = f(x)
        y.mul_(2)
        z.add_(1)
        (y.sum() + z.square().sum()).backward()
        return x.grad

    def f(x):
        return x.sinh(), x.cosh().t()

    torch.testing.assert_close(run(compiled(f)), run(f))


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1:]], ids=["whole", "view"])
def test_an_activation_passed_in_and_overwritten(part):
    def f(x, k):
        x[0].mul_(k)
        return x.sin()

    def run(f):
        torch.manual_seed(0)
        x, k = leaf(3, 4), leaf(4)
        activation = x * 1
        y = f(part(activation), k)
        (y.sum() + activation.square().sum()).backward()
        return x.grad, k.grad, activation.detach()

    torch.testing.assert_close(run(compiled(f)), run(f))


@pytest.mark.parametrize("dynamic", [None, True])
def test_batches_of_several_sizes(dynamic):
    def run(wrap):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        f, grads = wrap(module), []
        for n in (3, 5, 1, 7, 3):
            x = leaf(n, 4)
            F.cross_entropy(f(x), torch.arange(n) % 3).backward()
            grads.append(x.grad)
        return grads, [p.grad for p in module.parameters()]

    actual = run(lambda f: compiled(f, dynamic=dynamic))
    torch.testing.assert_close(actual, run(lambda f: f))


def test_empty_batch():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    check_module(module, leaf(0, 2, 4, 4))
    check_module(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), leaf(0, 4))


def test_complex_parameters():
    module = nn.ParameterDict({"w": leaf(3, 3, dtype=torch.complex64)})

    def f(x, w):
        return torch.view_as_real((x @ w).tanh() * w.conj()[0])

    check(f, leaf(2, 3, dtype=torch.complex64), module["w"])


def test_parameters_of_several_dtypes():
    def f(x, a, b, c):
        return (x @ a.float()).bfloat16() @ b, (x.double() * c).sum()

    inputs = leaf(2, 3), leaf(3, 3, dtype=torch.float16)
    inputs += leaf(3, 2, dtype=torch.bfloat16), leaf(3, dtype=torch.float64)
    actual, expected = step(compiled(f), inputs), step(f, inputs)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    assert [g.dtype for g in actual[1]] == [x.dtype for x in inputs]


# --- hooks -----------------------------------------------------------------------------------


def test_hooks_on_tensors():
    def run(f):
        torch.manual_seed(0)
        x, seen = leaf(4), []
        x.register_hook(lambda g: g * 3)
        y = f(x)
        y.register_hook(lambda g: seen.append(g.clone()) or g * 5)
        y.sum().backward()
        return x.grad, seen

    def f(x):
        return x.sin() * x

    torch.testing.assert_close(run(compiled(f)), run(f))


def test_a_hook_inside():
    def f(x):
        y = x.sin()
        if y.requires_grad:
            y.register_hook(lambda g: g * 4)
        return y * x

    check(f, leaf(4), fullgraph=False)


def test_hooks_on_modules():
    def run(compile_):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        seen = []
        module[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        module[1].register_forward_hook(lambda m, args, y: y + 1)
        module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))
        x = leaf(2, 3)
        compile_(module)(x).square().sum().backward()
        return x.grad, seen, [p.grad for p in module.parameters()]

    torch.testing.assert_close(run(lambda m: compiled(m, fullgraph=False)), run(lambda m: m))


def test_hooks_after_accumulation():
    """An optimizer inside the backward: each parameter is updated as its gradient is ready."""

    def run(compile_):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

        def update(p):
            with torch.no_grad():
                p.sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(update)
        f = compile_(module)
        for _ in range(3):
            f(torch.randn(2, 3)).square().sum().backward()
        return list(module.parameters())

    torch.testing.assert_close(run(compiled), run(lambda m: m))


def test_saved_tensor_hooks():
    """Hooks that move what is saved, as offloading does."""
    moved = []

    def pack(x):
        moved.append(x)
        return x.double()

    x, y = leaf(4), leaf(4)
    y.data.copy_(x)

    def f(x):
        return x.sin() * x.exp()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.float()):
        z = compiled(f)(x)
    z.sum().backward()
    f(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert moved


# --- higher orders ---------------------------------------------------------------------------


def test_double_backward_is_refused():
    """AOTAutograd has no second order: a gradient penalty around compiled code is an error."""
    x = leaf(4)
    (grad,) = torch.autograd.grad(compiled(lambda x: x.pow(3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def cube(x):
    return (x.pow(3) * x.sin()).sum()


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad(cube),
        torch.func.grad_and_value(cube),
        torch.func.vmap(torch.func.grad(cube)),
        torch.func.grad(lambda x: torch.func.grad(cube)(x).sum()),
        torch.func.hessian(lambda x: cube(x[0])),
        torch.func.jacrev(lambda x: x.sin() * x[0]),
        torch.func.jacfwd(lambda x: x.sin() * x[0]),
        lambda x: torch.func.jvp(torch.sin, (x,), (x * 2,)),
        lambda x: torch.func.vjp(torch.sin, x)[1](x),
        torch.func.vmap(lambda x: x.softmax(0) @ x, in_dims=1, out_dims=0),
    ],
    ids=["grad", "value", "vmap", "twice", "hessian", "jacrev", "jacfwd", "jvp", "vjp", "vmap 1"],
)
def test_function_transforms_inside(transform):
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(transform)(x), transform(x))


def test_gradient_penalty_inside():
    def f(x, w):
        grads = torch.func.grad(lambda x: (x @ w).tanh().square().sum())(x)
        return (grads.norm(dim=1) - 1).square().sum()

    check(f, leaf(3, 4), leaf(4, 2))


# --- tangents --------------------------------------------------------------------------------

TANGENTS = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "expanded": lambda: torch.randn(1, 3, 1, 1).expand(2, 3, 4, 5),
    "expanded from a number": lambda: torch.tensor(2.0).expand(2, 3, 4, 5),
    "transposed": lambda: torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(4, 3, 8, 5)[::2, :, ::2],
    "misaligned": lambda: torch.randn(121)[1:].view(2, 3, 4, 5),
}


@pytest.mark.parametrize("x_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("tangent", TANGENTS.values(), ids=TANGENTS)
def test_tangents_of_any_stride(tangent, x_format):
    x = torch.randn(2, 3, 4, 5).to(memory_format=x_format).requires_grad_()
    check(lambda x: (x.sin() * 2, x.exp()), x, tangents=[tangent(), tangent()])


def test_tangents_that_change_their_stride():
    f = compiled(lambda x: x.sin())
    for tangent in TANGENTS.values():
        x, given = leaf(2, 3, 4, 5), tangent()
        f(x).backward(given)
        torch.testing.assert_close(x.grad, given * x.detach().cos())


def test_tangents_without_elements():
    x = leaf(0, 4)
    check(lambda x: x.t() * 2, x, tangents=[torch.empty(0, 4).t()])


@pytest.mark.parametrize("given", [(True, False), (False, True)])
def test_some_outputs_without_a_tangent(given):
    tangents = [torch.randn(4) if g else None for g in given]
    check(lambda x, y: (x.sin() * y, x * y.exp()), leaf(4), leaf(4), tangents=tangents)


def test_gradients_that_are_nothing_are_zeros():
    """Eager leaves None, where AOTAutograd, on any backend, has one backward for all outputs."""
    for backend in ("openxla", "aot_eager"):
        x, y = leaf(4), leaf(4)
        torch.compile(lambda x, y: (x.sin() * y, y.exp()), backend=backend)(x, y)[
            1
        ].sum().backward()
        assert torch.equal(x.grad, torch.zeros(4))


def test_a_tangent_of_another_shape_is_an_error():
    y = compiled(lambda x: x * 2)(leaf(4))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.ones(3))


# --- several backwards -----------------------------------------------------------------------


def test_backward_twice():
    f, x, y = compiled(lambda x: x.sin() * x), leaf(4), leaf(4)
    y.data.copy_(x)
    for run, leaf_ in ((f, x), (lambda x: x.sin() * x, y)):
        out = run(leaf_).sum()
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_gradients_of_activations_are_kept():
    def run(f):
        torch.manual_seed(0)
        x = leaf(4)
        y = f(x)
        y.retain_grad()
        f(y).sum().backward()
        return x.grad, y.grad

    torch.testing.assert_close(run(compiled(torch.sin)), run(torch.sin))


def test_compiled_autograd():
    """Dynamo traces the engine's own backward too."""

    def run(wrap):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        f = wrap(module)
        for _ in range(3):
            f(torch.randn(3, 4)).square().sum().backward()
        return [p.grad for p in module.parameters()]

    with torch._dynamo.config.patch(compiled_autograd=True):
        actual = run(lambda f: compiled(f, fullgraph=False))
    torch.testing.assert_close(actual, run(lambda f: f))


def test_backwards_of_several_outputs():
    f, x, y = lambda x: (x.sin(), x * x), leaf(4), leaf(4)
    y.data.copy_(x)
    for run, leaf_ in ((compiled(f), x), (f, y)):
        a, b = run(leaf_)
        a.sum().backward(retain_graph=True)
        (3 * b).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_calls_whose_backwards_come_in_another_order():
    f = compiled(lambda x: x.sin() * x)
    leaves = [leaf(4) for _ in range(3)]
    outputs = [f(x) for x in leaves]
    for k in (1, 0, 2):
        outputs[k].sum().backward()
    for x in leaves:
        torch.testing.assert_close(x.grad, x.detach().sin() + x.detach() * x.detach().cos())


def test_gradients_accumulate():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    check_module(module, leaf(5, 4), steps=4)


def test_the_same_layer_many_times():
    module = nn.Linear(4, 4)

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = module

        def forward(self, x):
            for _ in range(3):
                x = self.layer(x).tanh()
            return x

    check_module(Loop(), leaf(2, 4))


def test_saved_for_backward_and_then_changed():
    """Eager raises where a saved tensor was changed in place; so does compiled code."""
    for wrap in (compiled, lambda f: f):
        w, x = leaf(4), torch.randn(4)
        y = wrap(lambda w, x: (w * x).sin())(w, x)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# --- modules ---------------------------------------------------------------------------------


class Net(nn.Module):
    """In-place activations, batch normalization, dropout that only eval leaves out."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, momentum=0.3)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        y = self.norm(self.conv(x))
        y.add_(0.3).relu_()
        y = y.mean((2, 3)).mul_(2)
        return self.head(y)


@pytest.mark.parametrize("format_", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_norm_and_in_place_activations(format_):
    x = torch.randn(4, 2, 6, 6).to(memory_format=format_).requires_grad_()
    check_module(Net().to(memory_format=format_), x, steps=3)


def test_train_and_eval_by_turns():
    module, x = Net(), leaf(4, 2, 6, 6)
    twin = copy.deepcopy(module)
    fast = compiled(twin)
    for training in (True, False, True, False):
        for m in (module, twin):
            m.train(training)
        torch.testing.assert_close(step(fast, [x]), step(module, [x]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(twin.state_dict(), module.state_dict())
    assert twin.norm.num_batches_tracked == 2


def test_batch_norm_of_cumulative_average():
    """Dynamo breaks the graph where the number of batches is read."""
    check_module(nn.BatchNorm1d(3, momentum=None), leaf(5, 3), steps=3, fullgraph=False)


def test_instance_and_group_norm():
    layers = nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.GroupNorm(2, 4)
    check_module(nn.Sequential(*layers), leaf(2, 4, 3, 3), steps=2)


def test_an_activation_overwritten_through_a_view():
    def f(x, w):
        y = x * w
        y[0].mul_(2)
        y.view(-1)[::2].add_(w.sum())
        return y.sin()

    check(f, leaf(3, 4), leaf(4))


def test_a_whole_loop():
    """Twenty steps of AdamW on a small classifier end where eager's do."""

    def train(compile_):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
        f = compile_(lambda x, y: F.cross_entropy(module(x), y, label_smoothing=0.1))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        losses = []
        for _ in range(20):
            loss = f(torch.randn(16, 8), torch.randint(3, (16,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, list(module.parameters())

    metrics.clear_all()
    actual = train(compiled)
    assert metrics.counter_value("UncachedCompile") == 2
    torch.testing.assert_close(actual, train(lambda f: f), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [(), (1,)])
def test_distances_of_an_empty_batch(batch):
    x = torch.randn(0, 4, 5, requires_grad=True)
    y = torch.randn(*batch, 3, 5, requires_grad=True)
    result = torch.compile(torch.cdist, backend="openxla", fullgraph=True)(x, y)
    result.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(y.grad, torch.zeros_like(y))
