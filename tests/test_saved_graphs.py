"""Programs of whole graphs in the disk cache. Each test begins cold, with a folder of its own."""

import contextlib
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.runtime.disk_caches import cache_in, logged
from xla_dynamo import backend, metrics, precompile
from xla_dynamo.execution import graph_keys
from xla_dynamo.execution.graph_keys import NoKey, graph_key
from xla_dynamo.lowerings.target import Target
from xla_dynamo.options import Options

TARGET = Target("cpu")


@pytest.fixture(autouse=True)
def no_rules_of_other_tests(monkeypatch):
    """Rules that other files of tests register for torch's operators would leave no key."""
    ours = {k: v for k, v in graph_keys.REGISTERED_IN.items() if v.startswith("xla_dynamo.")}
    monkeypatch.setattr(graph_keys, "REGISTERED_IN", ours)


def hits():
    return metrics.counter_value("PersistentCacheProgramHit")


def run(f, *args, **options):
    """A new compilation, as in a new process; the result, and whether the program was found."""
    torch._dynamo.reset()
    before = hits()
    result = torch.compile(f, backend="openxla", options=options)(*args)
    return result, hits() - before


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, ids, mask):
        hidden = self.embed(ids) * torch.tensor([0.5, 2.0]).repeat(16)
        hidden = hidden + torch.arange(ids.shape[1]).unsqueeze(-1) * 0.01
        hidden = self.layer(hidden, src_key_padding_mask=mask)
        return {"logits": self.out(hidden), "pooled": (hidden.mean(1), None)}


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        x = F.max_pool2d(F.silu(self.norm(self.conv(x))), 2)
        return F.interpolate(x, scale_factor=2.0, mode="bilinear").permute(0, 2, 3, 1)


MODELS = {
    "encoder": lambda: (Encoder(), (torch.randint(100, (2, 6)), torch.zeros(2, 6).bool())),
    "convolutional": lambda: (Convolutional(), (torch.randn(2, 3, 8, 8),)),
    "channels_last": lambda: (
        Convolutional().to(memory_format=torch.channels_last),
        (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),),
    ),
    "numbers": lambda: (lambda x: (x.sum() > 0, x.topk(2).indices, x.shape[0]), (torch.randn(4),)),
}


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_is_found_again(tmp_path, monkeypatch, name, freeze):
    model, args = MODELS[name]()
    if isinstance(model, nn.Module):
        model.eval()
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # which is a call of torch's, and none of XLA's
    with cache_in(tmp_path), torch.no_grad():
        expected = model(*args)
        actual, found = run(model, *args, freeze=freeze)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
        assert not found
        monkeypatch.setattr(backend, "compile_torch_graph", None)  # neither trace nor lowering
        again, found = run(model, *args, freeze=freeze)
        assert found == 1
    torch.backends.mha.set_fastpath_enabled(before)
    torch.testing.assert_close(again, actual, rtol=0, atol=0)
    strides = [t.stride() for t in torch.utils._pytree.tree_leaves(again) if torch.is_tensor(t)]
    assert strides == [
        t.stride() for t in torch.utils._pytree.tree_leaves(expected) if torch.is_tensor(t)
    ]


def test_a_graph_that_was_found_reads_the_parameters_of_the_model(tmp_path):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with cache_in(tmp_path), torch.no_grad():
        run(first, x)
        torch._dynamo.reset()
        compiled = torch.compile(second, backend="openxla")
        torch.testing.assert_close(compiled(x), second(x))
        second.weight.mul_(2)
        torch.testing.assert_close(compiled(x), second(x))
        second.load_state_dict(first.state_dict())
        torch.testing.assert_close(compiled(x), first(x))
    assert len(list(tmp_path.glob("program-*"))) == 1


def test_a_frozen_graph_that_was_found_sees_parameters_change(tmp_path):
    """Its values are computed from the parameters of the model that runs, anew when they change.

    Another model of the same graph finds the program, too; dynamic sizes under `freeze` find none.
    """
    x = torch.randn(2, 3, 8, 8)
    with cache_in(tmp_path), torch.no_grad():
        run(Convolutional().eval(), x, freeze=True)
        model = Convolutional().eval()
        before = hits()
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="openxla", options={"freeze": True})
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert hits() == before + 1
        model.conv.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        model.norm.running_mean.add_(1)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        torch._dynamo.reset()
        options = {"freeze": True}
        compiled = torch.compile(model, backend="openxla", dynamic=True, options=options)
        for n in (2, 3):
            x = torch.randn(n, 3, 8, 8)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert hits() == before + 1


def test_random_numbers_are_drawn_as_before(tmp_path):
    model, x = nn.Dropout(0.5), torch.ones(1000)
    with cache_in(tmp_path), torch.no_grad():
        torch.manual_seed(3)
        first, _ = run(model, x)
        torch.manual_seed(3)
        again, found = run(model, x)
        other, _ = run(model, x)
    assert found == 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_gradients_are_off_as_in_the_graph(tmp_path):
    with cache_in(tmp_path):
        for _ in range(2):
            result, found = run(lambda x: x.sin(), torch.randn(4))
            assert not result.requires_grad
            assert torch.is_grad_enabled()
        assert found == 1
        with torch.inference_mode():
            result, found = run(lambda x: x.sin(), torch.randn(4))
    assert not found


def _held(x):
    x[0] = 1
    return x + 1


LEFT_OUT = {
    "changes its input": lambda x: x.add_(1),
    "changes a part": _held,
    "gives a view of its input": lambda x: (x[1:], x + 1),
    "runs in part in torch": lambda x: (x * 2).nonzero() + 1,
    "a condition": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_right_all_the_same(tmp_path, name):
    f = LEFT_OUT[name]
    sizes = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    with sizes, cache_in(tmp_path), torch.no_grad():
        for _ in range(2):
            x, y = torch.ones(4), torch.ones(4)
            actual, found = run(f, x)
            torch.testing.assert_close(actual, f(y))
            assert torch.equal(x, y)
            assert not found
    assert not list(tmp_path.glob("program-*"))


def test_views_of_one_result_share_its_memory(tmp_path):
    x = torch.randn(4)
    with cache_in(tmp_path), torch.no_grad():
        for number in range(2):
            (a, b), found = run(lambda x: (x * 2).split(2), x)
            assert found == number
            torch.testing.assert_close((a, b), (x * 2).split(2))
            assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_graphs_with_a_backward_are_left_out(tmp_path):
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with cache_in(tmp_path):
        for _ in range(2):
            result, found = run(model, x)
            result.sum().backward()
            assert not found
    assert not list(tmp_path.glob("program-*"))


# --- keys --------------------------------------------------------------------------------------


def key_of(f, *args, options=None, target=TARGET):
    """The key of the graph that Dynamo makes of a function."""
    keys = []

    def capture(gm, inputs):
        keys.append(graph_key(gm, inputs, Options.parse(options), target))
        return gm

    torch._dynamo.reset()
    torch.compile(f, backend=capture)(*args)
    (key,) = keys
    return key


def _f(x, y, scale=2.0):
    return F.softmax(x * scale, -1) + y


X, Y = torch.randn(4, 4), torch.randn(4, 4)
SET = {
    "precision": lambda: torch.set_float32_matmul_precision("high"),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "flash": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "mkldnn": lambda: torch.backends.mkldnn.set_flags(False),
}
RESET = {
    "precision": lambda: torch.set_float32_matmul_precision("highest"),
    "dtype": lambda: torch.set_default_dtype(torch.float32),
    "deterministic": lambda: torch.use_deterministic_algorithms(False),
    "flash": lambda: torch.backends.cuda.enable_flash_sdp(True),
    "mkldnn": lambda: torch.backends.mkldnn.set_flags(True),
}


def test_different_graphs_have_different_keys():
    both = torch.randn(8, 4)
    cases = {
        "as it is": (_f, X, Y),
        "another number": (functools.partial(_f, scale=3.0), X, Y),
        "an integer": (functools.partial(_f, scale=2), X, Y),
        "true": (functools.partial(_f, scale=True), X, Y),
        "minus zero": (functools.partial(_f, scale=-0.0), X, Y),
        "zero": (functools.partial(_f, scale=0.0), X, Y),
        "another function": (lambda x, y: F.log_softmax(x * 2.0, -1) + y, X, Y),
        "another order": (lambda x, y: y + F.softmax(x * 2.0, -1), X, Y),
        "another dimension": (lambda x, y: F.softmax(x * 2.0, 0) + y, X, Y),
        "another shape": (_f, X[:2], Y[:2]),
        "other strides": (_f, X.t(), Y),
        "an offset": (_f, both[4:], Y),
        "one memory": (_f, both[:4], both[4:]),
        "another dtype": (_f, X.double(), Y.double()),
        "promotion": (_f, X, Y.double()),
        "a parameter": (_f, nn.Parameter(X), Y),
        "a method": (lambda x, y: x.softmax(-1).add(y), X, Y),
        "two results": (lambda x, y: (_f(x, y), x * 2), X, Y),
        "two results, turned": (lambda x, y: (x * 2, _f(x, y)), X, Y),
        "a slice": (lambda x, y: _f(x, y)[1:], X, Y),
        "another slice": (lambda x, y: _f(x, y)[1:3], X, Y),
        "a device": (lambda x, y: _f(x, y) + torch.ones(4, device="cpu"), X, Y),
    }
    torch.set_float32_matmul_precision("highest")
    with torch.no_grad():
        keys = {name: key_of(*case) for name, case in cases.items()}
        for options in ({"constant_limit": 1}, {"xla_options": {"a": 1}}, {"libraries": []}):
            keys[str(options)] = key_of(_f, X, Y, options=options)
        for target in (Target("cuda"), Target("cpu", frozenset({"torch"}))):
            keys[str(target)] = key_of(_f, X, Y, target=target)
        with torch.autocast("cpu", torch.bfloat16):
            keys["autocast"] = key_of(_f, X, Y)
        for name, change in SET.items():
            change()
            try:
                keys[name] = key_of(_f, X, Y)
            finally:
                RESET[name]()
        assert key_of(_f, X, Y) == keys["as it is"]  # all was put back
    keys["gradients"] = key_of(_f, X, Y)
    with torch.inference_mode():
        inside = torch.randn(4, 4)
        keys["inference"] = key_of(_f, inside, inside)
    same = [(a, b) for a, b in itertools.combinations(keys, 2) if keys[a] == keys[b]]
    assert not same


def test_versions_and_sources_are_in_the_key(monkeypatch):
    before = key_of(_f, X, Y)
    for name in ("_versions", "sources", "functorch_settings"):
        with monkeypatch.context() as patched:
            patched.setattr(graph_keys, name, lambda: "another")
            assert key_of(_f, X, Y) != before
    assert key_of(_f, X, Y) == before


def test_names_and_lines_make_no_difference():
    def g(x, y, scale=2.0):

        z = F.softmax(x * scale, -1)

        return z + y

    assert key_of(g, X, Y) == key_of(_f, X, Y)
    assert key_of(_f, torch.zeros(4, 4), torch.ones(4, 4)) == key_of(_f, X, Y)


NO_KEY = {
    "a graph inside": (lambda: LEFT_OUT["a condition"], (X,)),
    "an operator of the user's": (lambda: torch.ops.saved_graphs.twice, (X,)),
    "a wrapper": (lambda: lambda x: x + 1, (torch.nested.nested_tensor([X], layout=torch.jagged),)),
    "a backward": (lambda: lambda x: x * 2, (X.clone().requires_grad_(),)),
    "a conjugate": (lambda: lambda x: x * 2, (torch.ones(2, dtype=torch.complex64).conj(),)),
}


@pytest.mark.parametrize("name", NO_KEY)
def test_what_no_text_stands_for_has_no_key(name):
    with contextlib.ExitStack() as stack:
        if name == "an operator of the user's":
            library = torch.library.Library("saved_graphs", "FRAGMENT")
            stack.callback(library._destroy)
            library.define("twice(Tensor x) -> Tensor")
            library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        f, args = NO_KEY[name][0](), NO_KEY[name][1]
        caught = []

        def capture(gm, inputs):
            with pytest.raises(NoKey) as error:
                graph_key(gm, inputs, Options(), TARGET)
            caught.append(str(error.value))
            return gm

        compiled = torch.compile(f, backend=capture)
        torch.compile(compiled)
        compiled(*args)
    assert caught


def test_foreign_rules_leave_no_key(monkeypatch):
    monkeypatch.setitem(graph_keys.REGISTERED_IN, "aten.sin.default", "elsewhere")
    with pytest.raises(Exception, match=r"aten\.sin\.default has a rule of elsewhere"):
        key_of(_f, X, Y)


def test_kernels_of_the_user_for_operators_of_torch_leave_no_key():
    """Two processes may register other kernels for one operator, of which names tell nothing."""
    key_of(_f, X, Y)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("special_spherical_bessel_j0", torch.cos, "CompositeImplicitAutograd")
        with pytest.raises(Exception, match=r"the kernel aten/special_spherical_bessel_j0/Comp"):
            key_of(_f, X, Y)
    finally:
        library._destroy()
    key_of(_f, X, Y)


def test_why_there_is_no_key_is_logged(tmp_path):
    with cache_in(tmp_path), logged(20) as lines:
        run(LEFT_OUT["a condition"], X)
    assert any(line.startswith("disk cache: no place for the program") for line in lines)


def test_precompile_saves_the_program_of_a_graph_of_fixed_sizes(tmp_path):
    """The program is made at a call, after AOTAutograd: cold, then as in a later process."""
    model, x = Encoder().eval(), (torch.randint(100, (2, 6)), torch.zeros(2, 6).bool())
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with cache_in(tmp_path), torch.no_grad():
        precompile(torch.compile(model, backend="openxla"), shapes=[x])
        assert len(list(tmp_path.glob("program-*"))) == 1
        actual, found = run(model, *x)
        assert found == 1
        torch.testing.assert_close(actual, model(*x), rtol=1e-4, atol=1e-5)
    torch.backends.mha.set_fastpath_enabled(before)


def test_precompile_saves_no_program_that_depends_on_the_call(tmp_path):
    """`as_strided` counts from the storage's start, and Dynamo does not guard offsets in it."""
    with cache_in(tmp_path), torch.no_grad():
        f = torch.compile(lambda x: x.as_strided((2,), (1,), 1) * 2, backend="openxla")
        precompile(f, shapes=[[torch.ones(4)]])
        assert list(tmp_path.glob("executable-*"))
        assert not list(tmp_path.glob("program-*"))
