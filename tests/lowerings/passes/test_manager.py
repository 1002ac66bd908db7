"""The manager: what passes note and how long they take, what is verified, dumped and left out."""

import dataclasses
import os

import pytest
from jax.extend.mlir import ir

from tests.lowerings.passes.rewriting import CPU, GPU, normalized, parsed
from tests.lowerings.passes.test_contraction_barriers import SUMS
from tests.lowerings.passes.test_result_permutations import TRANSPOSED
from xla_dynamo.errors import LoweringError, OptionError
from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.passes import manager, table
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.registered import passes_for
from xla_dynamo.lowerings.passes.result_permutations import allow_any_permutation
from xla_dynamo.lowerings.passes.switches import VARIABLE, Session, Switches, session, switched


def ran(text=SUMS, target=CPU):
    """The module after the passes, and what they have left beside it."""
    with parsed(text) as module:
        rewritten = manager.run(module, target)
        return str(module), rewritten


def with_pass(monkeypatch, name, rewrite):
    """Have another function for a pass of the table."""
    rewrite.__name__ = name
    others = [
        dataclasses.replace(p, rewrite=rewrite) if p.name == name else p for p in table.PASSES
    ]
    monkeypatch.setattr(table, "PASSES", tuple(others))


def break_sum(module, target):
    """Give a sum a result of another type than its operands have."""
    op = next(op for op in operations_of(main_of(module)) if op.name == "stablehlo.add")
    op.results[0].set_type(ir.RankedTensorType.get([5], ir.F32Type.get()))


# --- notes and times -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", [CPU, GPU])
def test_notes_and_times(target):
    _, rewritten = ran(target=target)
    assert rewritten.notes == Notes(takes_negative_zero=True)
    assert list(rewritten.seconds) == [p.name for p in passes_for(target)]
    assert all(seconds > 0 for seconds in rewritten.seconds.values())


def test_notes_are_joined():
    joined = Notes(forms=("a",)).joined(Notes(takes_negative_zero=True)).joined(Notes())
    assert joined == Notes(takes_negative_zero=True, forms=("a",))
    with pytest.raises(AssertionError, match="two passes"):
        joined.joined(Notes(forms=("b",)))


# --- verify --------------------------------------------------------------------------------------


def test_an_invalid_module_names_the_pass(monkeypatch):
    with_pass(monkeypatch, "materialize", break_sum)
    with switched(Switches(verify=True)), pytest.raises(LoweringError) as caught:
        ran()
    message = str(caught.value)
    assert message.startswith("the pass materialize left an invalid module")
    assert f"{VARIABLE}=skip=materialize compiles without the pass" in message
    assert "stablehlo.add" in message  # what MLIR says
    with switched(Switches()):
        ran()  # nobody looks


def test_a_needed_pass_cannot_be_left_out_as_the_advice(monkeypatch):
    with_pass(monkeypatch, "call_packed", break_sum)
    with switched(Switches(verify=True)), pytest.raises(LoweringError) as caught:
        ran()
    assert "the pass call_packed left an invalid module" in str(caught.value)
    assert "skip" not in str(caught.value)


def test_what_the_rules_leave_invalid_is_not_the_fault_of_a_pass():
    with parsed(SUMS) as module, switched(Switches(verify=True)):
        break_sum(module, CPU)
        with pytest.raises(LoweringError, match="the rules of the lowering table wrote an invalid"):
            manager.run(module, CPU)


# --- dump ----------------------------------------------------------------------------------------


def test_modules_are_dumped(tmp_path):
    with switched(Switches(dump=str(tmp_path / "new"))):
        after, _ = ran()
        ran(target=GPU)
    first, second = sorted((tmp_path / "new").iterdir())
    assert first.name == f"{os.getpid()}-0001"
    files = sorted(first.iterdir())
    names = ["lowered", *(p.name for p in passes_for(CPU))]
    assert [path.name for path in files] == [f"{i:02}-{n}.mlir" for i, n in enumerate(names)]
    assert normalized(files[0].read_text()) == normalized(SUMS)
    barriers = names.index("insert_barriers")
    assert "xla_dynamo.result" not in files[barriers].read_text()
    assert files[-1].read_text().strip() == after.strip()
    assert len(list(second.iterdir())) == 1 + len(passes_for(GPU))


def test_the_dump_has_what_an_invalid_module_was_before_and_after(tmp_path, monkeypatch):
    with_pass(monkeypatch, "outline", break_sum)
    with switched(Switches(verify=True, dump=str(tmp_path))), pytest.raises(LoweringError):
        ran()
    *_, before, after = sorted(tmp_path.rglob("*.mlir"))
    assert "outline" in after.name
    assert "tensor<5xf32>" in after.read_text()
    assert "tensor<5xf32>" not in before.read_text()


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    dump = Switches(dump=str(tmp_path / "file"))
    with switched(dump), pytest.raises(OptionError, match="no module can be dumped"):
        ran()


# --- limit and skip ------------------------------------------------------------------------------

COUNTED = [p for p in passes_for(CPU) if not (p.is_needed or p.keeps_numbers)]
ALWAYS = [p.name for p in passes_for(CPU) if p.is_needed or p.keeps_numbers]


@pytest.mark.parametrize("limit", range(len(COUNTED) + 2))
def test_passes_over_the_limit_are_left_out(limit):
    with switched(Switches(limit=limit)) as counted:
        _, rewritten = ran()
    first = [p.name for p in COUNTED[:limit]]
    assert [run.name for run in counted.runs] == first
    names = [p.name for p in passes_for(CPU)]
    assert list(rewritten.seconds) == [n for n in names if n in (*first, *ALWAYS)]


def test_the_limit_counts_through_several_modules():
    with switched(Switches(limit=len(COUNTED) + 1)) as counted:
        ran()
        ran(target=GPU)
        ran()
    *first, last = counted.runs
    assert {run.module for run in first} == {1}
    assert (last.name, last.module, last.platform) == ("choose_permutations", 2, "cuda")


def test_a_pass_is_skipped_by_name():
    with switched(Switches(skip=frozenset({"insert_barriers", "materialize"}))):
        after, rewritten = ran()
    assert not {"insert_barriers", "materialize"} & rewritten.seconds.keys()
    assert rewritten.notes == Notes()
    assert after == normalized(SUMS.replace(" {xla_dynamo.result}", ""))  # its marks are gone


def test_the_marks_of_results_go_with_their_pass():
    with switched(Switches(limit=0)), parsed(TRANSPOSED) as module:
        allow_any_permutation(main_of(module), {0})
        assert manager.run(module, CPU).notes == Notes()
        assert str(module) == normalized(TRANSPOSED)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "no pass 'nonsense': the passes are unmerge_products, reassociate_all"),
        ("call_packed", "programs do not run without the pass call_packed"),
        ("gather_manual_regions", "programs do not run without"),
    ],
)
def test_names_that_cannot_be_skipped(name, message):
    with switched(Switches(skip=frozenset({name}))), pytest.raises(OptionError, match=message):
        ran()


# --- the environment variable --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "switches"),
    [
        ("", Switches()),
        ("verify", Switches(verify=True)),
        (" verify , limit=0,", Switches(verify=True, limit=0)),
        ("dump=/a b/c=d,limit=12", Switches(dump="/a b/c=d", limit=12)),
        ("skip=outline,skip=materialize", Switches(skip=frozenset({"outline", "materialize"}))),
    ],
)
def test_switches_are_parsed(text, switches):
    assert Switches.parse(text) == switches


@pytest.mark.parametrize(
    "text", ["verified", "verify=1", "limit", "limit=", "limit=-1", "limit=x", "dump=", "skip"]
)
def test_wrong_switches(text, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"verify,{text}")
    with pytest.raises(OptionError, match=f"{VARIABLE} has '{text}': it is a list"):
        ran()


def test_the_count_lasts_as_long_as_the_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "limit=1")
    counting = session()
    ran()
    ran()
    assert [run.name for run in counting.runs] == [COUNTED[0].name]
    assert session() is counting
    monkeypatch.setenv(VARIABLE, "limit=2")
    assert session() is not counting
    with switched(Switches()) as inner:
        assert session() is inner
    assert session().switches == Switches(limit=2)


def test_a_session_without_a_limit_keeps_nothing():
    counting = Session(Switches(verify=True))
    assert counting.allows("outline", counting.next_module(), "cpu")
    assert counting.runs == []
