"""Forms that are measured on this machine. Each test begins cold, with a folder of its own."""

import json
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiling import watched
from tests.packing import needs_onednn, packed_calls
from tests.runtime.disk_caches import cache_in, logged
from tests.test_saved_graphs import no_rules_of_other_tests, run  # noqa: F401
from xla_dynamo.kernels import measurements, product_choices, product_forms, tuning
from xla_dynamo.kernels.measurements import Measurement
from xla_dynamo.kernels.product_choices import COLUMNS, FORMS, ROWS, XLA, Choice, Sizes
from xla_dynamo.process_state import replaced
from xla_dynamo.runtime.buffers import export_buffer

pytestmark = needs_onednn
BFLOAT16 = {"rtol": 2e-2, "atol": 1e-1}
X, Y = torch.randn(40, 24), torch.randn(24, 56)
SIZES = Sizes(torch.float32, 1, 40, 24, 56, False, False)


@pytest.fixture(autouse=True)
def folder(tmp_path):
    """The folder of the disk cache, empty; and nothing was measured before."""
    with replaced(), cache_in(tmp_path / "cache") as folder:
        yield folder


def as_in_a_new_process(path):
    """Forget what was measured; only the folder is left."""
    vars(measurements._known).update(vars(measurements._Known()))
    return cache_in(path)


def let_be_fastest(monkeypatch, *fastest):
    """What is timed takes a second, but these forms less and less."""

    def median_seconds(calls):
        for call in calls.values():
            call()
        return {n: 1 - 0.1 * (fastest.index(n) + 1 if n in fastest else 0) for n in calls}

    monkeypatch.setattr(tuning, "median_seconds", median_seconds)


def plans_of(f, *args, **options):
    """The plans of a compiled function, whose results are eager's."""
    torch._dynamo.reset()
    run, built = watched(f, fullgraph=True, **options)
    with torch.no_grad():
        torch.testing.assert_close(run(*args), f(*args), rtol=2e-5, atol=1e-4)
    return [call for event in built for call in packed_calls(event.program)]


@pytest.mark.parametrize("fastest", FORMS)
def test_the_fastest_form_is_taken(monkeypatch, fastest):
    let_be_fastest(monkeypatch, fastest)
    plans = plans_of(torch.matmul, X, Y, tune=True)
    assert product_choices.choice(SIZES).plain == fastest
    assert len(plans) == (fastest != XLA)
    again = plans_of(lambda x, y: x @ y, X, Y)  # whoever does not ask takes it, too
    assert len(again) == len(plans)


@pytest.mark.parametrize("fastest", [XLA, ROWS, COLUMNS])
def test_a_weight_is_packed_if_that_is_faster(monkeypatch, fastest):
    let_be_fastest(monkeypatch, COLUMNS, *(["packed, " + fastest] * (fastest != XLA)))
    model = nn.Linear(24, 56).eval()
    (plan,) = plans_of(model, X, tune=True, freeze=True)
    assert bool(plan.keys) == (fastest != XLA)
    (sizes,) = map(Sizes.of_question, measurements.everything())
    assert product_choices.choice(sizes) == Choice(COLUMNS, fastest)


def test_what_is_really_measured():
    """Nothing is replaced: each form was computed and timed, and the answer is the fastest one."""
    plans_of(nn.Linear(300, 200).eval(), torch.randn(64, 300), tune=True, freeze=True)
    ((question, found),) = measurements.everything().items()
    assert question == "product float32 1 64 300 200 False True"
    assert found.seconds.keys() == {XLA, ROWS, COLUMNS, "packed, rows", "packed, columns"}
    best = min(found.seconds[form] for form in FORMS)
    assert found.seconds[found.answer["plain"]] <= best / 0.97


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turns", [(x, y) for x in (False, True) for y in (False, True)])
@pytest.mark.parametrize(("stack", "rows"), [(1, 1), (1, 9), (3, 1), (3, 9)])
def test_all_forms_compute_the_product(dtype, turns, stack, rows):
    sizes = Sizes(dtype, stack, rows, 20, 12, *turns)
    x, y = product_forms.factors(sizes)
    exact = (x.mT if turns[0] else x).double() @ (y.mT if turns[1] else y).double()
    forms = product_forms.forms_of(sizes)
    assert len(forms) == (5 if stack == 1 else 3)
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype is torch.float32 else BFLOAT16
    for call in forms.values():
        torch.testing.assert_close(export_buffer(call()).double(), exact, **tolerance)


def test_a_later_process_measures_nothing(monkeypatch, folder):
    let_be_fastest(monkeypatch, ROWS)
    assert run(torch.matmul, X, Y, tune=True)[1] == 0
    with as_in_a_new_process(folder.path):
        monkeypatch.setattr(tuning, "median_seconds", lambda calls: pytest.fail("measured again"))
        assert product_choices.choice(SIZES).plain == ROWS
        assert run(torch.matmul, X, Y, tune=True)[1] == 1  # nor does it lower the graph again


def test_another_processor_has_others(monkeypatch, folder):
    let_be_fastest(monkeypatch, ROWS)
    plans_of(torch.matmul, X, Y, tune=True)
    monkeypatch.setattr(measurements, "processor", lambda: "another model")
    with as_in_a_new_process(folder.path):
        assert measurements.everything() == {}
        let_be_fastest(monkeypatch, COLUMNS)
        plans_of(torch.matmul, X, Y, tune=True)
        assert product_choices.choice(SIZES).plain == COLUMNS
    monkeypatch.undo()
    with as_in_a_new_process(folder.path):
        assert product_choices.choice(SIZES).plain == ROWS


def test_a_program_that_was_saved_before_is_not_taken(monkeypatch, folder):
    monkeypatch.setattr(product_choices, "shipped", lambda sizes: Choice(XLA, XLA))
    assert [run(torch.matmul, X, Y)[1] for _ in range(2)] == [0, 1]
    let_be_fastest(monkeypatch, ROWS)
    tuning.measure([SIZES])
    assert [run(torch.matmul, X, Y)[1] for _ in range(2)] == [0, 1]
    assert len(plans_of(torch.matmul, X, Y)) == 1


def test_what_two_processes_measure_is_kept(folder):
    one, other = (Measurement({"plain": XLA, "packed": XLA}, {XLA: n}) for n in (1.0, 2.0))
    measurements.add({"one": one})
    path = folder.path
    with as_in_a_new_process(path):
        measurements.everything()
        with cache_in(path):  # a third process writes meanwhile
            pass
        measurements.add({"other": other})
    with as_in_a_new_process(path):
        assert measurements.everything().keys() == {"one", "other"}


@pytest.mark.parametrize(
    "written", ["", "[]", "{", '{"a": 1}', '{"a": {"answer": {"plain": 1}, "seconds": {}}}',
                '{"a": {"answer": {}, "seconds": {"xla": "fast"}}}']
)  # fmt: skip
def test_an_entry_of_another_form_is_not_used(folder, written):
    folder.write(measurements.KIND, measurements._key(), written.encode())
    with logged() as lines:
        assert measurements.everything() == {}
    assert "measurements are not used" in lines[0]


@pytest.mark.parametrize("answer", [{}, {"plain": "fast", "packed": XLA}, {"plain": XLA}])
def test_an_answer_that_is_no_choice_is_none(answer):
    measurements.add({SIZES.question: Measurement(answer, {})})
    assert product_choices.choice(SIZES) == product_choices.shipped(SIZES)


def test_tuning_leaves_torch_as_it_was(monkeypatch):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.device("meta"):
        torch.compile(torch.matmul, backend="openxla", options={"tune": True})(X, Y)
    assert torch.equal(torch.rand(3), expected)
    assert product_choices.choice(SIZES) is not None


def test_gradients_are_measured_too():
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    f = torch.compile(lambda x, y: x @ y, backend="openxla", options={"tune": True})
    f(x, y).sum().backward()
    torch.testing.assert_close(x.grad, Y.sum(1).expand(40, 24))
    assert len(measurements.everything()) == 3


def test_threads_measure_one_after_another(monkeypatch):
    running = []

    def median_seconds(calls):
        running.append(1)
        assert len(running) == 1
        running.pop()
        return dict.fromkeys(calls, 1.0)

    monkeypatch.setattr(tuning, "median_seconds", median_seconds)
    every = [Sizes(torch.float32, 1, 8, 8, n) for n in range(8, 14)]
    threads = [threading.Thread(target=tuning.measure, args=(every[i:],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measurements.everything().keys() == {sizes.question for sizes in every}


def test_what_is_empty_or_too_large_is_not_measured():
    every = [Sizes(torch.float32, 1, 0, 8, 8), Sizes(torch.float32, 1, 1 << 15, 1 << 15, 8)]
    assert not tuning.measure(every)


def test_a_form_that_cannot_be_computed_leaves_no_answer(monkeypatch):
    def fail(sizes):
        raise tuning.OneDNNError("unimplemented")

    monkeypatch.setattr(tuning, "forms_of", fail)
    assert tuning.measure([SIZES])
    assert measurements.find(SIZES.question) == Measurement({}, {})
    assert len(plans_of(torch.matmul, X, Y, tune=True)) <= 1


def test_the_table_has_every_family_in_full():
    for family, by_dtype in json.loads(product_choices.TABLE.read_text()).items():
        assert by_dtype.keys() == {"float32", "bfloat16"}, family
        for rows in by_dtype.values():
            assert len(rows) > 100 or rows == []  # oneDNN has no bfloat16 for AVX2
            assert {form for row in rows for form in row[4:]} <= {*FORMS}
            assert all(len(row) == 6 and min(row[:4]) >= 1 for row in rows)


def test_the_most_similar_product_is_taken(monkeypatch):
    rows = [[1, 8, 64, 64, XLA, XLA], [1, 512, 64, 64, ROWS, ROWS], [12, 8, 64, 64, COLUMNS, XLA]]
    tables = {"a family": {"float32": rows}}
    monkeypatch.setattr(product_choices, "_tables", lambda: tables)
    monkeypatch.setattr(product_choices, "family", lambda: "a family")
    assert product_choices.choice(Sizes(torch.float32, 1, 400, 70, 60)) == Choice(ROWS, ROWS)
    assert product_choices.choice(Sizes(torch.float32, 20, 5, 70, 60)) == Choice(COLUMNS, XLA)
    assert product_choices.choice(Sizes(torch.bfloat16, 1, 400, 70, 60)) is None


def test_on_a_family_without_a_table_products_are_as_they_were(monkeypatch):
    """XLA's own, or its call of oneDNN; they are plans once they were measured."""
    monkeypatch.setattr(product_choices, "family", lambda: "a family of tomorrow")
    assert plans_of(torch.matmul, X, Y) == []
    let_be_fastest(monkeypatch, COLUMNS)
    assert len(plans_of(torch.matmul, X, Y, tune=True)) == 1


def test_questions_are_read_as_they_were_written():
    assert Sizes.of_question(SIZES.question) == SIZES
    assert Sizes.of_question("attention float32 1 2 3") is None


def test_max_autotune_tunes():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU()).eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="openxla", mode="max-autotune")
        x = X[:, :1].expand(40, 64)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(measurements.everything()) == 1


def test_bounded_programs_ask_nothing():
    f = torch.compile(F.linear, backend="openxla", dynamic=True, options={"tune": True})
    for rows in (3, 5):
        x, w = torch.randn(rows, 8), torch.randn(4, 8)
        torch.testing.assert_close(f(x, w), F.linear(x, w))
