"""What torch's users write around a compiled model: docs/torch-features.md is the list."""

import ast
import copy
import pathlib
import re
import types

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.export.graph_signature import InputKind

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.options import Options


@pytest.mark.parametrize(
    ("mode", "freezes"),
    [
        (None, False),
        ("default", False),
        ("reduce-overhead", False),
        ("max-autotune", True),
        ("max-autotune-no-cudagraphs", True),
    ],
)
def test_modes(mode, freezes, frozen_runs):
    weight = nn.Parameter(torch.randn(5))
    f = compiled(lambda x: x * weight.exp(), mode=mode)
    x = torch.randn(3, 5)
    with torch.no_grad():
        for _ in range(2):
            assert_matches_eager(f, x)
            weight.add_(1)  # a frozen parameter may change, too
    assert bool(frozen_runs) == freezes


def test_an_unknown_mode_is_an_error_that_lists_the_valid_ones():
    with pytest.raises(BackendCompilerFailed, match="max-autotune-no-cudagraphs") as caught:
        compiled(torch.sin, mode="fastest")(torch.randn(3))
    assert isinstance(caught.value.inner_exception, xla_dynamo.OptionError)
    for mode in ("fastest", ["default"], 1):
        with pytest.raises(xla_dynamo.OptionError, match=r"unknown mode .* 'reduce-overhead'"):
            Options.parse({}, mode)


def test_options_come_before_the_mode():
    """`torch.compile` refuses both at once; a direct call of the backend may have both."""
    assert not Options.parse({"freeze": False}, "max-autotune").freeze
    assert Options.parse({"rng": "torch"}, "max-autotune").freeze
    with pytest.raises(RuntimeError, match="Either mode or options"):
        compiled(torch.sin, mode="max-autotune", freeze=False)


def affine(x):
    return (x * 2 + 1).sin()


def test_stance_force_eager(executables):
    f = compiled(affine, fullgraph=False)
    with torch.compiler.set_stance("force_eager"):
        assert_matches_eager(f, torch.randn(3))
        assert executables() == 0
    assert_matches_eager(f, torch.randn(3))
    assert executables() == 1


def test_stance_fail_on_recompile():
    f = compiled(affine, dynamic=False, fullgraph=False)
    assert_matches_eager(f, torch.randn(3))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_matches_eager(f, torch.randn(3))
        with pytest.raises(RuntimeError, match="Detected recompile"):
            f(torch.randn(4))
    assert_matches_eager(f, torch.randn(4))


def test_stance_eager_on_recompile(executables):
    f = compiled(affine, dynamic=False, fullgraph=False)
    assert_matches_eager(f, torch.randn(3))
    with torch.compiler.set_stance("eager_on_recompile"):
        assert_matches_eager(f, torch.randn(4))
        assert executables() == 1
    assert_matches_eager(f, torch.randn(4))
    assert executables() == 2


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_stances_that_compile_later(stance, executables):
    code = affine.__code__.replace(co_filename=stance)  # torch notes which lines have run
    with torch.compiler.set_stance(stance):
        f = compiled(types.FunctionType(code, globals()), fullgraph=False)
        assert_matches_eager(f, torch.randn(3))
        assert executables() == 0
        for size in (4, 5, 6):
            assert_matches_eager(f, torch.randn(size))
    assert executables()


def test_disable(executables):
    """A disabled function runs in eager, between two graphs; gradients pass through all."""
    calls = []

    @torch.compiler.disable
    def plain(x):
        calls.append(torch.compiler.is_compiling())
        return x.cos()

    def f(x):
        return plain(x.sin()) * 2 + 1

    x, y = (torch.linspace(0, 1, 5).requires_grad_() for _ in range(2))
    actual = compiled(f, fullgraph=False)(x)
    assert executables() == 2
    assert calls == [False]
    torch.testing.assert_close(actual, f(y))
    actual.sum().backward()
    f(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        compiled(f)(x)


def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters()]


class Doubled(nn.Sequential):
    """A module of a user, since torch does not compile the frames of its own."""

    def forward(self, x):
        return super().forward(x) * 2


def test_module_compile(executables):
    """In place: the module keeps its class and its names, and trains."""
    model = Doubled(*mlp())
    twin = copy.deepcopy(model)
    model.compile(backend="openxla", mode="reduce-overhead")
    assert type(model) is Doubled
    assert model.state_dict().keys() == twin.state_dict().keys()
    x = torch.randn(4, 3)
    ours, eagers = model(x), twin(x)
    torch.testing.assert_close(ours, eagers)
    assert executables() == 1
    torch.testing.assert_close(gradients(model, ours.sum()), gradients(twin, eagers.sum()))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())  # running statistics


OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)


@pytest.mark.parametrize("backend", ["openxla", "eager"])
def test_module_compile_of_a_class_of_torchs(backend, executables):
    """Before torch 2.14 the method leaves such a module in eager, with every backend."""
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(4, 3)
    torch._dynamo.utils.counters.clear()
    model.compile(backend=backend)
    torch.testing.assert_close(model(x), model.forward(x))
    assert ("frames" in torch._dynamo.utils.counters) != OLD
    assert executables() == (backend == "openxla" and not OLD)
    assert_matches_eager(compiled(nn.Sequential(*model)), x)
    assert executables() == 1 + (backend == "openxla" and not OLD)


def test_recompile_limit(executables):
    """Beyond the limit a function runs in eager; with fullgraph that is an error."""
    with torch._dynamo.config.patch(recompile_limit=2):
        f = compiled(affine, dynamic=False, fullgraph=False)
        for size in range(2, 6):
            assert_matches_eager(f, torch.randn(size))
        assert executables() == 2
        f = compiled(lambda x: affine(x), dynamic=False)
        assert_matches_eager(f, torch.randn(2))
        assert_matches_eager(f, torch.randn(3))
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            f(torch.randn(4))


DYNAMIC = ({0: torch.export.Dim("batch", min=2)},)


@pytest.mark.parametrize("sizes", [None, DYNAMIC], ids=["fixed", "dynamic"])
def test_exported_program(sizes, executables):
    model = mlp().eval()
    program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=sizes)
    f = compiled(program.module())
    for batch in (4, 7, 9) if sizes else (4,):
        assert_matches_eager(f, torch.randn(batch, 3), eager=model)
    assert executables()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own code
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("sizes", [None, DYNAMIC], ids=["fixed", "dynamic"])
def test_compile_graph_of_an_exported_program(sizes, training):
    """The functional graph: what the program changes comes out before its results."""
    model = mlp().train(training)
    program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=sizes)
    program = program.run_decompositions()
    tensors = {**program.state_dict, **program.constants}

    def inputs(x):
        specs = program.graph_signature.input_specs
        return [x if s.kind is InputKind.USER_INPUT else tensors[s.target] for s in specs]

    graph = xla_dynamo.compile_graph(program.graph_module, inputs(torch.randn(4, 3)))
    for batch in (4, 7) if sizes else (4,):
        x = torch.randn(batch, 3)
        *changed, result = graph(*inputs(x))
        twin = copy.deepcopy(model)
        torch.testing.assert_close(result, twin(x))
        names = list(program.graph_signature.buffers_to_mutate.values())
        assert len(names) == 3 * training
        for name, value in zip(names, changed, strict=True):
            torch.testing.assert_close(value, twin.get_buffer(name))


def test_an_exported_graph_that_changes_its_inputs_must_be_made_functional():
    program = torch.export.export(mlp(), (torch.randn(4, 3),))
    tensors = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
    with pytest.raises(xla_dynamo.UnsupportedOperator, match="run_decompositions"):
        xla_dynamo.compile_graph(program.graph_module, tensors)


def energy(x):
    return (x.sin() * x).sum() + x.prod()


def per_sample(x):
    """The gradient of a layer for each sample, by a functional call."""
    layer = nn.Linear(3, 2, dtype=x.dtype)
    weights = {name: torch.ones_like(p) for name, p in layer.named_parameters()}

    def loss(weights, row):
        return torch.func.functional_call(layer, weights, (row,)).sin().sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)


TRANSFORMS = {
    "grad": torch.func.grad(energy),
    "vmap": torch.func.vmap(energy),
    "vmap of grad": torch.func.vmap(torch.func.grad(energy)),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x),
    "jvp": lambda x: torch.func.jvp(energy, (x,), (x.cos(),)),
    "jacrev": torch.func.jacrev(lambda x: x.sin() @ x.T),
    "jacfwd": torch.func.jacfwd(lambda x: x.sin() @ x.T),
    "hessian": torch.func.hessian(energy),
    "functional_call": per_sample,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_func(name, executables):
    """Transforms inside of a compiled function are part of its graph."""
    x = torch.randn(4, 3, dtype=torch.float64)
    f = compiled(TRANSFORMS[name], fullgraph=name != "functional_call")
    assert_matches_eager(f, x)
    assert executables() >= 1


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacrev", "hessian"])
def test_func_around_a_compiled_function(transform, executables):
    """Dynamo does not compile under transforms that began outside: eager runs."""
    x, around = torch.randn(4, 3), getattr(torch.func, transform)
    torch.testing.assert_close(around(compiled(energy, fullgraph=False))(x), around(energy)(x))
    assert executables() == 0


@pytest.mark.parametrize("how", ["whole step", "backward alone"])
def test_compiled_autograd(how, executables):
    model, x = mlp(), torch.randn(4, 3)
    twin = copy.deepcopy(model)
    expected = gradients(twin, twin(x).square().sum())
    torch._dynamo.utils.counters.clear()
    if how == "whole step":
        with torch._dynamo.config.patch(compiled_autograd=True):
            compiled(lambda: model(x).square().sum().backward(), fullgraph=False)()
    else:
        loss = model(x).square().sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="openxla")):
            loss.backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] == 1
    assert executables() == (2 if how == "whole step" else 1)


FILES = (
    "test_torch_features",
    "test_worker_processes",
    "test_jagged",
    "test_wrapper_subclasses",
)
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "torch-features.md"


def test_the_page_names_every_test_and_each_exists():
    """docs/torch-features.md: feature, whether it works, tests, remark."""
    rows = [row for row in PAGE.read_text().splitlines() if row.startswith("|")][2:]
    named = set()
    for row in rows:
        _, feature, works, tests, _, _ = row.split("|")
        assert works.strip() in {
            "yes",
            "no",
            "eager",
            "error",
            "local part",
            "from torch 2.14 on",
        }, feature
        links = re.findall(r"\[(test_\w+)\]\(\.\./tests/(test_\w+)\.py\)", tests)
        assert links, f"no test of {feature}"
        named.update(links)
    written = {
        (node.name, file)
        for file in FILES
        for node in ast.parse((PAGE.parent.parent / "tests" / f"{file}.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    this = "test_the_page_names_every_test_and_each_exists"
    assert named == written - {(this, "test_torch_features")}
