"""Collectives are read from HLO in all the forms that XLA writes. Programs are compiled cold."""

import pytest
import torch

from bench.collective_bytes import Collective, collectives, sent_by_axis, sent_by_kind
from bench.replica_groups import groups_of, pairs_of
from tests.spmd.sharding import WIDE, sharded
from xla_dynamo import spmd

ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))
COLUMNS = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ROWS),
        ("{{0},{1}}", ((0,), (1,))),
        ("{}", (tuple(range(8)),)),
        ("[2,4]<=[8]", ROWS),
        ("[4,2]<=[2,4]T(1,0)", COLUMNS),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("mesh['a'=2,'b'=4] {'b'}", ROWS),
        ("mesh['a'=2,'b'=4] {'a'}", COLUMNS),
        ("mesh['a'=2,'b'=4] {'a','b'}", (tuple(range(8)),)),
        ("mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_0'}",
         ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(3,1,0,2) {'b'}", ((3, 1), (0, 2))),
        # The major half of eight, the middle of three halves, and the two others together.
        ("mesh['a'=8] {'a':(1)2}", COLUMNS),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
    ],
)  # fmt: skip
def test_groups(text, groups):
    attributes = f", channel_id=1, replica_groups={text}, use_global_device_ids=true, to_apply=%add"
    assert groups_of(attributes, 8) == groups


def test_what_has_no_groups():
    with pytest.raises(ValueError, match="of no known form: , replica_groups=new"):
        groups_of(", replica_groups=new[8]", 8)
    with pytest.raises(ValueError, match="without pairs"):
        pairs_of(", channel_id=1")


def read(instruction, devices=8):
    """The one collective of a module with this instruction."""
    (one,) = collectives(
        f"HloModule main, is_scheduled=true, num_partitions={devices}\n\n"
        "%add (x: f32[], y: f32[]) -> f32[] {\n  ROOT %sum = f32[] add(%x, %y)\n}\n\n"
        "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  {instruction}\n}}\n"
    )
    return one


GROUPS = "replica_groups=[2,4]<=[8]"


@pytest.mark.parametrize(
    ("instruction", "kind", "whole", "sent"),
    [
        ("%r = f32[8]{0} all-reduce(%p), GROUPS, to_apply=%add", "all-reduce", 32, 2 * 24),
        ("ROOT r = bf16[8]{0} all-reduce(p), GROUPS, to_apply=add", "all-reduce", 16, 2 * 12),
        ("%r = (f32[8]{0}, /*index=1*/f32[2,2]{1,0:T(8,128)}, s8[]) all-reduce(%p, %q, %s), GROUPS",
         "all-reduce", 32 + 16 + 1, 2 * 49 * 3 / 4),
        ("%r = (f32[8]{0}, f32[8]{0}) all-reduce-start(%p, %p), GROUPS", "all-reduce", 64, 96),
        ("%g = f32[32]{0} all-gather(%p), GROUPS, dimensions={0}", "all-gather", 128, 96),
        ("%g = (f32[8]{0}, f32[32]{0}) all-gather-start(%p), GROUPS", "all-gather", 128, 96),
        ("%g = ((f32[8]{0}, f32[4]{0}), (f32[32]{0}, f32[16]{0})) all-gather-start(%p, %q), GROUPS",
         "all-gather", 192, 144),
        ("%s = f32[2]{0} reduce-scatter(%p), GROUPS, to_apply=%add", "reduce-scatter", 32, 24),
        ("%a = f32[8]{0} all-to-all(%p), GROUPS, dimensions={0}", "all-to-all", 32, 24),
        ("%a = (f32[2]{0}, f32[2]{0}, f32[2]{0}, f32[2]{0}) all-to-all(%p, %q, %r, %s), GROUPS",
         "all-to-all", 32, 24),
        ("%c = f32[8]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}",
         "collective-permute", 32, 32),
        ("%c = f32[8]{0} collective-permute(%p), source_target_pairs={{0,0},{1,2},{2,1},{3,3}}",
         "collective-permute", 32, 16),
        ("%c = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%p), "
         "source_target_pairs={{0,1},{1,0}}", "collective-permute", 32, 32),
        ("%r = pred[3]{0} all-reduce(%p), GROUPS", "all-reduce", 3, 4.5),
        ("%r = s4[3]{0} all-gather(%p), GROUPS", "all-gather", 2, 1.5),
        ("%r = f8e4m3fn[4]{0} all-gather(%p), GROUPS", "all-gather", 4, 3),
        ("%r = f32[<=8]{0} all-gather(%p), GROUPS", "all-gather", 32, 24),
    ],
)  # fmt: skip
def test_bytes(instruction, kind, whole, sent):
    one = read(instruction.replace("GROUPS", GROUPS))
    assert (one.kind, one.bytes, one.sent()) == (kind, whole, sent)


def test_ends_of_what_was_started_are_no_collectives():
    text = "%s = f32[8]{0} all-reduce-start(%p), replica_groups={}\n  "
    text += "%e = f32[8]{0} all-reduce-done(%s)"
    assert read(text).sent() == 2 * 32 * 7 / 8


def test_an_element_type_that_is_not_known():
    with pytest.raises(ValueError, match="size is not known: q7"):
        read(f"%r = q7[3]{{0}} all-reduce(%p), {GROUPS}")


LOOP = """HloModule main, num_partitions=4

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
  ROOT %t = (s32[], f32[8]{0}) tuple(%i, %r)
}

%condition (s: (s32[], f32[8])) -> pred[] {
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

%wrapped (q: f32[8]) -> f32[2] {
  ROOT %s = f32[2]{0} reduce-scatter(%q), replica_groups={}, dimensions={0}, to_apply=%add
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%bodyKNOWN
  %a = ((f32[8]{0}), f32[2]{0}) async-start(%p), calls=%wrapped
  ROOT %v = f32[8]{0} get-tuple-element(%w), index=1
}
"""


def test_loops():
    known = ', backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0"}}'
    loop, scatter = collectives(LOOP.replace("KNOWN", known))
    assert (loop.kind, loop.times, loop.sent()) == ("all-reduce", 5, 5 * 2 * 24)
    assert (scatter.kind, scatter.times, scatter.sent()) == ("reduce-scatter", 1, 24)
    with pytest.raises(ValueError, match="a loop whose length HLO does not tell"):
        collectives(LOOP.replace("KNOWN", ""))


def test_sums():
    found = [
        Collective("all-reduce", 8, ROWS),
        Collective("all-reduce", 8, COLUMNS),
        Collective("all-gather", 16, (tuple(range(8)),)),
        Collective("all-gather", 16, ((0, 1, 4, 5), (2, 3, 6, 7))),
    ]
    assert sent_by_kind(found) == {"all-reduce": 12 + 8, "all-gather": 14 + 12}
    axes = {"model": 12, "data": 8, "data, model": 14, "other": 12}
    assert sent_by_axis(found, ("data", "model"), (2, 4)) == axes


@pytest.mark.parametrize(
    ("before", "after", "kind", "axis", "sent"),
    [
        (("model", None), (None, None), "all-gather", "model", 3 / 4),
        (("data", None), (None, None), "all-gather", "data", 1 / 2),
        ((("data", "model"), None), (None, None), "all-gather", "data, model", 7 / 8),
        (("model", None), (None, "model"), "all-to-all", "model", 3 / 4 / 4),
    ],
)
def test_a_compiled_program(before, after, kind, axis, sent):
    def f(x):
        return spmd.mark_sharding(spmd.mark_sharding(x.sin(), WIDE, before) + 1, WIDE, after)

    x = torch.randn(64, 32)
    result, executable = sharded(f, x)
    torch.testing.assert_close(result, x.sin() + 1)
    (one,) = collectives(executable.hlo)
    assert one.kind == kind
    assert sent_by_axis([one], WIDE.axis_names, WIDE.mesh_shape) == {axis: sent * 64 * 32 * 4}


def test_a_compiled_permute():
    def f(x):
        x = spmd.mark_sharding(x.sin(), WIDE, (("data", "model"), None))
        return spmd.mark_sharding(x + 1, WIDE, (("model", "data"), None))

    _, executable = sharded(f, torch.randn(64, 32))
    (one,) = collectives(executable.hlo)
    assert one.kind == "collective-permute"
    assert one.sent() == 64 * 32 * 4 / 8 * 6 / 8  # the first and the last device keep theirs
