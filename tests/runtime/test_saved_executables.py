"""Executables in the disk cache: what is found again, and what has an entry of its own."""

import torch

from tests.runtime.disk_caches import cache_in, check, counted, executable_of, logged
from xla_dynamo import metrics, spmd
from xla_dynamo.runtime import saved_executables
from xla_dynamo.runtime.saved_executables import calls_left_out, digest

NOTHING = {"Hit": 0, "Miss": 0, "DamagedEntry": 0, "DeserializeFailure": 0}


def test_an_executable_is_found_again(tmp_path):
    with cache_in(tmp_path), counted() as found:
        assert not check("add")
        assert check("add")
    assert found == {**NOTHING, "Hit": 1, "Miss": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_what_decides_has_an_entry_of_its_own(tmp_path, monkeypatch):
    with cache_in(tmp_path):
        executable_of("add")
        assert not executable_of("multiply").was_saved
        assert not executable_of("add", 3.0).was_saved
        assert not executable_of("add", xla_options={"xla_cpu_enable_fast_math": True}).was_saved
        monkeypatch.setattr(saved_executables, "processor", lambda: "another processor")
        assert not executable_of("add").was_saved
        assert executable_of("add").was_saved
        monkeypatch.setattr(saved_executables, "_versions", lambda platform: ("another version",))
        assert not executable_of("add").was_saved
    assert len(list(tmp_path.iterdir())) == 6


def test_the_users_lines_make_no_difference(tmp_path):
    def model(x):
        return x.sin() * 2

    source = "def model(x):\n    return x.sin() * 2"
    elsewhere: dict = {}
    exec(compile("\n" * 40 + source, "elsewhere.py", "exec"), elsewhere)
    x = torch.randn(8)
    with cache_in(tmp_path), counted() as found:
        for each in (model, elsewhere["model"]):
            torch._dynamo.reset()
            torch.testing.assert_close(torch.compile(each, backend="openxla")(x), model(x))
    assert (found["Hit"], found["Miss"]) == (1, 1)


def test_training_is_found_again(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x = torch.randn(2, 8)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    for hits in (0, 2):
        torch._dynamo.reset()
        model.zero_grad()
        before = metrics.counter_value("UncachedCompile") or 0
        with cache_in(tmp_path), counted() as found:
            torch.compile(model, backend="openxla")(x).sum().backward()
        assert found == {**NOTHING, "Hit": hits, "Miss": 2 - hits}
        assert (metrics.counter_value("UncachedCompile") or 0) - before == 2 - hits
        torch.testing.assert_close([p.grad for p in model.parameters()], expected)


def test_donated_inputs_keep_their_memory(tmp_path):
    def update(x):
        x.mul_(2)

    for _ in range(2):
        torch._dynamo.reset()
        x = torch.ones(1024)
        with cache_in(tmp_path):
            torch.compile(update, backend="openxla")(x)
        assert x.tolist() == [2.0] * 1024
    assert len(list(tmp_path.iterdir())) == 1


def test_kernels_of_torch_are_called(tmp_path):
    q = torch.randn(1, 4, 64, 32)
    f = torch.nn.functional.scaled_dot_product_attention
    for saved in (False, True):
        torch._dynamo.reset()
        with cache_in(tmp_path), counted() as found:
            torch.testing.assert_close(torch.compile(f, backend="openxla")(q, q, q), f(q, q, q))
        assert bool(found["Hit"]) == saved


def test_the_log_tells_that_it_was_loaded(tmp_path):
    trained, plain = torch.randn(4, requires_grad=True), torch.randn(4)
    with cache_in(tmp_path), logged(20) as lines:
        for x in (trained, trained, plain, plain):
            torch._dynamo.reset()
            torch.compile(torch.sin, backend="openxla")(x)
    built = [line for line in lines if line.startswith("executable of")]
    assert ", compiled in" in built[0]
    assert ", loaded from the disk cache in" in built[1]
    (found,) = (line for line in lines if line.startswith("program"))
    assert "loaded from the disk cache; its executable was loaded from it, too, in" in found


def test_no_executable_with_a_call_that_cannot_be_saved(tmp_path):
    """XLA:CPU crashes, or fails, where it writes a call of oneDNN."""
    model, x = torch.nn.Linear(512, 512), torch.randn(64, 512)
    with cache_in(tmp_path), torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="openxla")(x), model(x))
    text = 'stablehlo.custom_call @__onednn$matmul(%0) : () -> () "stablehlo.custom_call"() '
    assert calls_left_out(text) == ["__onednn$matmul"]
    assert calls_left_out('<{call_target_name = "xla_python_cpu_callback"}>') == [
        "xla_python_cpu_callback"
    ]
    assert calls_left_out('custom_call @"my call"(%1)') == ["my call"]
    assert calls_left_out("custom_call @lapack_sgesdd_ffi(%1) custom_call @xla_dynamo.call(") == []


def test_no_executable_whose_compilation_is_dumped(tmp_path, monkeypatch):
    with cache_in(tmp_path / "cache"):
        executable_of("add", xla_options={"xla_dump_hlo_as_text": True})
        monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}/dump")
        executable_of("add")
    assert not (tmp_path / "cache").exists()


def test_nothing_is_cached_where_the_processor_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(saved_executables, "processor", lambda: None)
    with cache_in(tmp_path):
        executable_of("add")
        assert not executable_of("add").was_saved
    assert not list(tmp_path.iterdir())


def test_lists_of_parts_have_digests_of_their_own():
    assert (
        len({digest(["ab", "c"]), digest(["a", "bc"]), digest(["abc"]), digest([b"a", "bc"])}) == 3
    )


def test_programs_of_several_devices(tmp_path):
    x = torch.randn(8, 4)
    spmd.mark_sharding(x, spmd.Mesh(range(4), (4,), ("rows",)), ("rows", None))
    for hits in (0, 1):
        torch._dynamo.reset()
        with cache_in(tmp_path), counted() as found:
            actual = torch.compile(lambda x: x.sin().sum(0), backend="openxla")(x)
        torch.testing.assert_close(actual, x.sin().sum(0))
        assert found["Hit"] == hits
