"""The parts of torch that are not public are where we left them, and do what we rely on."""

import ast
import inspect
import pathlib

import pytest
import torch
from torch.autograd import forward_ad

from tests.test_structure import SOURCES, by_path
from xla_dynamo import torch_private, torch_threads
from xla_dynamo.lowerings import TABLE

HERE = pathlib.Path(torch_private.__file__).parent
MOVED = "torch changed: adapt xla_dynamo/torch_private"


@pytest.mark.parametrize("name", torch_private.PLACES)
def test_every_name_is_in_its_place(name):
    where, purpose = torch_private.PLACES[name]
    assert getattr(torch_private, name, None) is not None, f"{MOVED}: {where}, {purpose}"


def test_a_name_that_moved_is_told(monkeypatch):
    monkeypatch.setitem(torch_private.PLACES, "gone", ("torch._C:_gone", "does nothing"))
    with pytest.raises(ImportError, match=r"has no torch\._C\._gone \(does nothing\).*torch 2\.11"):
        torch_private.gone  # noqa: B018


def test_every_name_is_used():
    text = "".join(p.read_text() for p in SOURCES if p.parent != HERE)
    names = {*torch_private.PLACES, *torch_private.__all__} - {"PLACES"}
    unused = [name for name in names if name not in text]
    # What the functions of the folder itself look up.
    of_functions = {"FrameAction", "FrameExecStrategy", "set_code_exec_strategy"}
    assert set(unused) <= {"OptimizedModule", "innermost_fn", *of_functions}


def _private_chains(tree):
    """Dotted names that begin with torch and have a private part, such as torch.compiler._flag."""
    for node in ast.walk(tree):
        parts, below = [], node
        while isinstance(below, ast.Attribute):
            parts.append(below.attr)
            below = below.value
        of_torch = isinstance(below, ast.Name) and below.id == "torch" and "ops" not in parts
        if of_torch and any(p.startswith("_") and not p.endswith("__") for p in parts):
            yield ".".join(["torch", *reversed(parts)])


# Private attributes of torch's objects, whatever the variable is called that has the object.
_ATTRIBUTES = [
    "_backward_hooks",
    "_base",
    "_boxed_call",
    "_cdata",
    "_call_impl",
    "_compiled_call_impl",
    "_dispatch_cache",
    "_dynamo_source",
    "_growth_tracker",
    "_init_group",
    "_is_view",
    "_is_zerotensor",
    "_isolate_recompiles_id",
    "_op_dk",
    "_opt_called",
    "_orig_mod",
    "_optimizer_step_post_hooks",
    "_optimizer_step_pre_hooks",
    "_post_accumulate_grad_hooks",
    "_scale",
    "_schema",
    "_version",
    "_wrapped_by_lr_sched",
]


def _private_attributes(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            name = ast.unparse(node)
            if not name.startswith("self."):
                yield name
        if isinstance(node, ast.Constant) and node.value in _ATTRIBUTES:
            yield node.value


@by_path
def test_private_parts_of_torch_live_in_files_of_their_own(path):
    tree = ast.parse(path.read_text())
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    modules = [f"{n.module}.{a.name}" for n in froms for a in n.names]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    private = {m for m in modules if m.startswith("torch") and "._" in m}
    private |= set(_private_chains(tree)) | set(_private_attributes(tree))
    assert not private or path.parent == HERE or path.name == "torch_threads.py", private


def test_schema():
    add = torch_private.schema(torch.ops.aten.add_.Tensor)
    assert [a.name for a in add.arguments] == ["self", "other", "alpha"], MOVED
    assert add.is_mutable, MOVED
    assert not torch_private.schema(torch.ops.aten.add.Tensor).is_mutable, MOVED


def test_kernels_are_chosen_anew():
    op = torch.ops.aten.upsample_nearest1d.default
    torch_private.forget_kernels(op)
    assert isinstance(op.py_kernels, dict), MOVED


def test_permutations_are_inverted():
    assert torch_private.invert_perm([2, 0, 1]) == [1, 2, 0], MOVED


def test_short_names_of_dtypes():
    names = [torch_private.dtype_abbrs[d] for d in (torch.float32, torch.bfloat16, torch.uint8)]
    assert names == ["f32", "bf16", "u8"], MOVED


def test_storage_and_zeros():
    x = torch.randn(4)
    assert torch_private.storage_id(x) == torch_private.storage_id(x[1:]), MOVED
    assert torch_private.storage_id(x) != torch_private.storage_id(x.clone()), MOVED
    assert torch_private.is_zero_tensor(torch._efficientzerotensor(4)), MOVED
    assert not torch_private.is_zero_tensor(torch.zeros(4)), MOVED


def test_hooks_of_a_gradient():
    hooked, accumulated, plain = (torch.nn.Parameter(torch.randn(2)) for _ in range(3))
    hooked.register_hook(lambda grad: grad)
    accumulated.register_post_accumulate_grad_hook(lambda p: None)
    assert torch_private.has_gradient_hooks(hooked), MOVED
    assert torch_private.has_gradient_hooks(accumulated), MOVED
    assert not torch_private.has_gradient_hooks(plain), MOVED


def test_changes_and_bases_of_tensors():
    x = torch.zeros(4)
    before = torch_private.version_of(x)
    x.add_(1)
    assert torch_private.version_of(x) == before + 1, MOVED
    with torch.inference_mode(), pytest.raises(RuntimeError, match="version counter"):
        torch_private.version_of(torch.zeros(4))
    assert torch_private.base_of(x) is x, MOVED
    assert torch_private.base_of(x[1:]) is x, MOVED


def test_steps_that_schedulers_count():
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    assert torch_private.makes_state_in_groups(optimizer), MOVED
    assert not torch_private.is_counted_by_scheduler(optimizer.step), MOVED
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert torch_private.is_counted_by_scheduler(optimizer.step), MOVED


def test_sources_of_inputs(cold):
    found = []

    def backend(gm, inputs):
        found.extend(map(torch_private.source_of, gm.graph.find_nodes(op="placeholder")))
        return gm

    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(3))
    assert [source.name for source in found] == ["L['x']"], MOVED


def test_kernels_in_cpp():
    add, key = torch.ops.aten.add.Tensor, torch_private.DispatchKey.CPU
    assert torch_private.call_kernel(add, key, torch.ones(2), torch.ones(2)).tolist() == [2, 2]


def test_forward_mode_is_known():
    assert not torch_private.in_forward_mode(), MOVED
    with forward_ad.dual_level():
        assert torch_private.in_forward_mode(), MOVED


def test_what_was_compiled_is_found():
    def f(x):
        return x + 1

    module = torch.nn.Linear(2, 2)
    assert torch_private.uncompiled(torch.compile(f, backend="eager")) is f, MOVED
    assert torch_private.uncompiled(torch.compile(module, backend="eager")) is module, MOVED
    module.compile(backend="eager")
    assert torch_private.uncompiled(module) == module._call_impl, MOVED
    assert torch_private.uncompiled(f) is f


def test_regions_of_torch_compile():
    seen = []

    def backend(gm, inputs):
        seen.append(torch_private.current_region())
        return gm

    known = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    apart = {"isolate_recompiles": True} if known else {}
    compiled = [torch.compile(lambda x: x + 1, backend=backend, **apart) for _ in range(2)]
    regions = [torch_private.region_of(each) for each in compiled]
    for each in compiled:
        each(torch.randn(2))
    if known:
        assert seen == regions, MOVED
        assert regions[0] != regions[1], MOVED
    else:
        assert set(seen) == set(regions) == {None}, MOVED


def test_sizes_that_dynamo_has_seen_to_vary_are_known():
    seen = []

    def backend(gm, inputs):
        sizes = [n.node for n in inputs if isinstance(n, torch.SymInt)]
        varying = torch_private.sizes_seen_to_vary(sizes[0].shape_env)
        seen.append([n.expr in varying for n in sizes])
        return gm

    marked = torch.randn(5, 3, 7)
    torch._dynamo.mark_dynamic(marked, 1)
    for x in (torch.randn(5, 3), marked):
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend=backend, dynamic=True)(x)
    assert seen == [[False, False], [False, True, False]], MOVED


def test_switches_are_put_back():
    assert not torch.compiler.is_compiling()
    with torch_threads.as_if_compiling():
        assert torch.compiler.is_compiling(), MOVED
        with torch_threads.as_if_compiling():
            assert torch.compiler.is_compiling()
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()
    enabled = torch_private.set_mkldnn(False)
    try:
        assert not torch.backends.mkldnn.enabled, MOVED
    finally:
        assert not torch_private.set_mkldnn(enabled)
    assert torch.backends.mkldnn.enabled == enabled


def test_optimizers():
    p = torch.nn.Parameter(torch.randn(2))
    p.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([p])
    hooks = sum(map(len, torch_private.step_hooks(optimizer)))
    optimizer.register_step_post_hook(lambda *_: None)
    assert sum(map(len, torch_private.step_hooks(optimizer))) == hooks + 1, MOVED
    torch_private.init_group(optimizer)(optimizer.param_groups[0], *([] for _ in range(6)))
    assert "exp_avg" in optimizer.state[p], MOVED
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    torch_private.mark_stepped(optimizer)
    scheduler.step()  # would warn that no step was made


def test_scaler():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scale, growth = torch_private.scaler_tensors(scaler, torch.device("cpu"))
    assert (scale.item(), scale.dtype) == (8.0, torch.float32), MOVED
    assert (growth.item(), growth.dtype) == (0, torch.int32), MOVED


def test_a_thread_starts_with_the_same_keys():
    before = torch_private.included_keys(), torch_private.excluded_keys()
    with torch.no_grad(), torch_private.ForceDispatchKeys(*before):
        x = torch.ones(2, requires_grad=True)
        assert (x * 2).tolist() == [2, 2], MOVED
    assert (torch_private.included_keys(), torch_private.excluded_keys()) == before, MOVED


def test_kernels_of_an_operator_are_known():
    composite = "CompositeImplicitAutograd"
    assert torch_private.has_kernel("aten::matmul", composite), MOVED
    assert not torch_private.has_kernel("aten::mm", composite), MOVED


def test_kernels_for_tensors_without_memory_make_views():
    keys = torch_private.DispatchKeySet(torch_private.DispatchKey.Meta)
    x = torch.zeros(4)
    shown = torch.ops.aten.slice.Tensor.redispatch(keys, x, 0, 1, 3)
    assert torch_private.storage_id(shown) == torch_private.storage_id(x), MOVED
    assert (shown.size(), shown.storage_offset()) == ((2,), 1), MOVED


def test_the_users_modes_are_set_aside():
    with torch_private.FakeTensorMode(), torch_private.disable_current_modes():
        assert type(torch.ones(2)) is torch.Tensor, MOVED
    with torch.autocast("cpu", torch.bfloat16), torch_private.DisableAutocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32, MOVED


def test_nothing_has_taken_the_place_for_a_further_device():
    assert torch_private.device_name() in ("privateuseone", "xla"), MOVED
    assert torch_private.DeviceType.PrivateUse1, MOVED


# Overloads with a rule that some version of torch we support does not have, and which do.
COME_AND_GO = {
    "aten._upsample_lanczos2d_aa.default": "not in 2.11",
    "aten._upsample_lanczos2d_aa_backward.default": "not in 2.11",
    "aten.linalg_matrix_sqrth.default": "from 2.14",
    "aten.linalg_polar.default": "from 2.14",
    "aten.cholesky.default": "not in 2.14 and later",
}


def test_every_rule_is_of_an_operator_that_torch_has():
    """A misspelt overload would be a rule that nothing reaches."""
    known = {name.replace("::", ".") for name in torch_private.all_operator_names()}
    known = {n if n.count(".") == 2 else f"{n}.default" for n in known}
    missing = {name for name in TABLE if name.startswith(("aten.", "prims."))} - known
    assert missing <= set(COME_AND_GO), f"{missing} are not in torch {torch.__version__}"


def test_a_thread_knows_whether_it_traces():
    """Dynamo and AOTAutograd do so in their own thread, and torch says it to all."""
    seen = []

    class Model(torch.nn.Module):
        def forward(self, x):
            seen.append(torch_private.is_tracing_here())
            return x + 1

    def traced(x):
        return x + (1 if torch_private.is_tracing_here() else 2)

    x = torch.zeros(2)
    Model()(x)
    torch.export.export(Model(), (x,), strict=False)
    assert (seen[0], seen[-1]) == (False, True), MOVED
    for backend in ("eager", "aot_eager"):
        assert torch.compile(traced, backend=backend, fullgraph=True)(x).sum() == 2, MOVED
    with torch_threads.as_if_compiling():
        assert not torch_private.is_tracing_here(), MOVED
