"""Users' passes and the switches of passes in the keys of the disk cache: warm and cold."""

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.compiling import compiled_anew
from tests.rewriting_passes import cosine_for_tanh, sine_for_tanh
from tests.runtime.disk_caches import cache_in, logged
from tests.test_saved_graphs import hits, key_of, no_rules_of_other_tests, run  # noqa: F401
from xla_dynamo.lowerings.target import Target

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def programs(folder):
    """The names of the programs and graphs in a folder."""
    return {path.name for path in folder.iterdir() if path.name.startswith(("program-", "graph-"))}


def test_a_graph_with_a_pass_is_found_again_by_its_identity(tmp_path):
    with cache_in(tmp_path):
        with xla_dynamo.register_pass(sine_for_tanh, identity="mine-1"):
            result, found = run(torch.tanh, X)
            torch.testing.assert_close(result, X.sin())
            assert not found
            result, found = run(torch.tanh, X)
            torch.testing.assert_close(result, X.sin())
            assert found
        result, found = run(torch.tanh, X)  # without the pass
        torch.testing.assert_close(result, X.tanh())
        assert not found
        with xla_dynamo.register_pass(cosine_for_tanh, identity="mine-2"):  # another version
            result, found = run(torch.tanh, X)
            torch.testing.assert_close(result, X.cos())
            assert not found
    assert len(programs(tmp_path)) == 3


def test_identities_their_order_and_their_places_make_keys():
    def key(*registered, target=None):
        handles = [xla_dynamo.register_pass(sine_for_tanh, **given) for given in registered]
        try:
            return key_of(torch.tanh, X, **({} if target is None else {"target": target}))
        finally:
            for handle in handles:
                handle.remove()

    a, b = {"identity": "a"}, {"identity": "b"}
    keys = [
        key(),
        key(a),
        key(b),
        key(a, b),
        key(b, a),
        key({**a, "after": "outline"}),
        key({"identity": "outline", "after": "outline"}),
        key(
            {"identity": "outline", "before": "materialize"}, {"identity": "o", "before": "outline"}
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert key(a) == keys[1]
    assert key({**a, "platforms": ["cuda"]}) == keys[0]  # it runs elsewhere
    assert key({"platforms": ["cuda"]}) == keys[0]  # even one without an identity


def test_a_pass_without_an_identity_leaves_no_key(tmp_path):
    with (
        cache_in(tmp_path),
        logged(20) as lines,
        xla_dynamo.register_pass(sine_for_tanh),
    ):
        for _ in range(2):
            result, found = run(torch.tanh, X)
            torch.testing.assert_close(result, X.sin())
            assert not found
    assert not programs(tmp_path)
    reason = (
        f"the pass sine_for_tanh of {sine_for_tanh.__module__} is registered without an identity"
    )
    assert any(reason in line for line in lines)
    with (
        pytest.raises(Exception, match="without an identity"),
        xla_dynamo.register_pass(cosine_for_tanh),
    ):
        key_of(torch.tanh, X)
    with xla_dynamo.register_pass(sine_for_tanh, platforms=["cuda"]):
        key_of(torch.tanh, X)
        with pytest.raises(Exception, match="without an identity"):
            key_of(torch.tanh, X, target=Target("cuda"))


@pytest.mark.parametrize("switch", ["limit=0", "limit=100", "skip=materialize", "dump={}"])
def test_switches_that_change_or_show_programs_leave_no_key(tmp_path, monkeypatch, switch):
    dump = tmp_path / "dump"
    with cache_in(tmp_path / "cache"):
        run(torch.tanh, X)
        before = programs(tmp_path / "cache")
        monkeypatch.setenv("XLA_DYNAMO_PASSES", switch.format(dump))
        _, found = run(torch.tanh, X)
        assert not found
        assert dump.exists() == switch.startswith("dump")
        monkeypatch.setenv("XLA_DYNAMO_PASSES", "verify")
        _, found = run(torch.tanh, X)
        assert found
        assert programs(tmp_path / "cache") == before


class Rows(nn.Module):
    def forward(self, x):
        return x.tanh() * 2


def test_a_dynamic_graph_saves_nothing_of_passes_that_came_later(tmp_path):
    """Its key is of the passes that were there: programs of others are neither saved nor found."""
    options = {"dynamic": True, "buckets": "exact"}
    with cache_in(tmp_path), torch.no_grad():
        compiled = compiled_anew(Rows(), **options)
        compiled(torch.randn(5, 4))
        with xla_dynamo.register_pass(sine_for_tanh, identity="mine-1"):
            x = torch.randn(6, 4)
            torch.testing.assert_close(compiled(x), x.sin() * 2)
        x = torch.randn(6, 4)
        before = hits()
        torch.testing.assert_close(compiled_anew(Rows(), **options)(x), x.tanh() * 2)
        again = compiled_anew(Rows(), **options)
        with xla_dynamo.register_pass(sine_for_tanh, identity="mine-1"):
            torch.testing.assert_close(again(x), x.sin() * 2)
        assert hits() == before


def test_a_dynamic_graph_is_found_with_its_pass(tmp_path):
    x = torch.randn(6, 4)
    with (
        cache_in(tmp_path),
        torch.no_grad(),
        xla_dynamo.register_pass(sine_for_tanh, identity="mine-1"),
    ):
        for found in (0, 1):
            before = hits()
            compiled = compiled_anew(Rows(), dynamic=True, buckets="exact")
            torch.testing.assert_close(compiled(x), x.sin() * 2)
            assert hits() - before == found


def test_executables_are_found_by_what_passes_leave(tmp_path, executables):
    with cache_in(tmp_path):
        for rewrite, expected in ((sine_for_tanh, X.sin()), (cosine_for_tanh, X.cos())):
            with xla_dynamo.register_pass(rewrite):  # no identity
                torch.testing.assert_close(run(torch.tanh, X)[0], expected)
        assert executables() == 2
        with xla_dynamo.register_pass(sine_for_tanh):
            torch.testing.assert_close(run(torch.tanh, X)[0], X.sin())
        assert executables() == 2
