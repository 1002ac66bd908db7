"""`explain`: graphs and why they broke, what runs eagerly, recompilations, costs."""

import gc
import inspect
import re
import threading
import weakref
from html.parser import HTMLParser

import pytest
import torch

import xla_dynamo
from xla_dynamo.dynamo import dynamo_trace
from xla_dynamo.torch_private import current_region


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        h = self.linear(x).relu()
        torch._dynamo.graph_break()  # the line of the break
        h = torch.nn.functional.huber_loss(h, x) * h
        return h[h > 0].sum()  # the line of what runs eagerly


def line_of(text):
    with open(__file__) as file:
        (number,) = [n for n, line in enumerate(file, 1) if text in line and "line_of(" not in line]
    return number


@pytest.fixture(scope="module")
def report():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch._dynamo.reset()
        explained = xla_dynamo.explain(Model())
        explained(torch.randn(8, 16)).result.backward()
        return explained(torch.randn(9, 16))


def test_a_graph_break_has_its_line(report):
    (graph_break,) = report.graph_breaks
    assert graph_break.line.file == __file__
    assert graph_break.line.line == line_of("# the line of the break")
    assert graph_break.line.function == "forward"
    assert "graph_break" in graph_break.reason


def test_what_runs_eagerly_has_its_line(report):
    for _, operator in report.eager_operators:
        assert operator.name == "aten.index.Tensor"
        assert (operator.line.file, operator.line.function) == (__file__, "forward")
        assert operator.line.line == line_of("# the line of what runs eagerly")
        assert "depends on values" in operator.eager
    assert len(report.eager_operators) == 2  # in both compilations


def test_a_recompilation_has_its_reason_and_line(report):
    first, second = report.recompiles
    assert first.recompiled == "tensor 'x' size mismatch at index 0. expected 8, actual 9"
    assert first.line.file == __file__
    assert first.line.line == line_of("def forward(self, x):")
    assert first.line.function == second.line.function == "forward"
    assert second.line.line == line_of("# the line of the break")


def test_graphs_and_executables(report):
    kinds = [graph.kind for graph in report.graphs]
    first, second = ["forward", "forward", "backward", "backward"], ["forward", "backward"] * 2
    assert kinds == [*first, *second]
    assert [g.parts for g in report.graphs if g.kind == "forward"] == [1, 2, 1, 2]
    linear = report.executables[0]
    assert linear.graph is report.graphs[0]
    assert linear.reason == "the graph is new"
    assert 2 * 8 * 16 * 16 <= linear.cost.flops <= 2 * 8 * 16 * 16 * 1.2
    assert linear.cost.argument_bytes == 4 * (8 * 16 + 16 * 16 + 16)
    assert "stablehlo.dot_general" in linear.stablehlo
    assert "HloModule" in linear.hlo
    counted = re.search(r", u0 = (\d+)$", report.executables[2].name)
    assert int(counted[1]) == report.executables[2].sizes["u0"] > 0
    assert report.executables[2].part == 2


def test_what_was_decomposed(report):
    origins = [o.decomposed_from for o in report.graphs[1].operators]
    assert "aten.huber_loss.default" in origins
    relu = [o for o in report.graphs[0].operators if o.name == "aten.relu.default"]
    assert [o.decomposed_from for o in relu] == [None]


def test_compile_time_by_stage(report):
    assert list(report.seconds) == ["Dynamo", "AOTAutograd", "lowering", "XLA"]
    assert all(s > 0 for s in report.seconds.values())
    frames = sum(frame.seconds for frame in report.frames)
    assert report.seconds["Dynamo"] + report.seconds["AOTAutograd"] < frames


def test_it_prints_well(report):
    text = str(report)
    assert text.startswith("8 graphs, 1 graph break, 2 recompilations, 8 executables, 2 operators")
    for heading in ("Graph breaks", "Recompilations", "Operators in eager torch", "Graphs",
                    "Executables", "Compile time"):  # fmt: skip
        assert f"\n{heading}" in text
    assert "…" not in text, "nothing is cut off"


class Balanced(HTMLParser):
    """Raises unless every element that is opened is closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        assert tag not in ("script", "link", "img"), "the page stands alone"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page(report):
    parser = Balanced()
    parser.feed(report.html())
    assert parser.open == []
    text = "".join(parser.text)
    assert report.summary() in text
    assert f"{__file__}:{line_of('# the line of what runs eagerly')} in forward" in text
    assert "size mismatch at index 0. expected 8, actual 9" in text
    assert "tensor<8x16xf32>" in text, "angle brackets are escaped"
    assert "HloModule" in text
    assert report._repr_html_() == report.html()


def test_nothing_to_report():
    report = xla_dynamo.explain(lambda x: x)(3)
    assert report.result == 3
    assert str(report).startswith("0 graphs, 0 graph breaks")
    assert "<h1>" in report.html()


def test_a_function_that_was_compiled_before():
    compiled = torch.compile(Model(), backend="openxla")
    x = torch.randn(8, 16)
    compiled(torch.randn(7, 16))
    compiled(x)
    for fn in (compiled, torch.compile(compiled._orig_mod.forward, backend="openxla")):
        report = xla_dynamo.explain(fn)(x)
        assert report.graphs
        assert not report.recompiles
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)


def test_a_module_compiled_in_place():
    model = Model()
    model.compile(backend="openxla")
    report = xla_dynamo.explain(model)(torch.randn(8, 16))
    assert len(report.graph_breaks) == 2  # outside of `fixture`, the mask breaks the graph too


def test_a_module_of_torchs_own_is_named():
    explained = xla_dynamo.explain(torch.nn.Linear(4, 4))
    explained(torch.randn(3, 4))
    assert "Linear" in str(explained(torch.randn(5, 4)))
    assert "external_utils" not in str(explained.report)


def test_sizes_that_come_again_after_they_were_dropped():
    options = {"buckets": "exact", "max_executables": 1}
    explained = xla_dynamo.explain(lambda x: x.sin(), dynamic=True, options=options)
    for n in (3, 4, 4, 3):
        report = explained(torch.randn(n))
    reasons = [built.reason for built in report.executables]
    assert reasons[0] == "the first call"
    assert reasons[1] == "x.size()[0] is 4, not 3", "the user's name of it"
    assert reasons[2] == "dropped before, since max_executables is 1"
    assert [list(built.sizes.values()) for built in report.executables] == [[3], [4], [3]]


def test_a_training_step():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = xla_dynamo.train_step(model, lambda m, x: m(x).square().mean(), optimizer)
    explained = xla_dynamo.explain(step)
    report = explained(torch.randn(8, 4))
    (graph,) = report.graphs
    assert graph.kind == "training step"
    assert not report.recompiles
    assert report.result.dim() == 0
    assert all(s > 0 for s in report.seconds.values())
    optimizer.param_groups[0]["momentum"] = 0.5
    (again,) = explained(torch.randn(8, 4)).recompiles
    assert again.recompiled == "(0, 'momentum', None) is 0.5, not 0"
    assert again.line.line == line_of("m(x).square().mean()")
    assert len(report.graphs) == 2
    with pytest.raises(xla_dynamo.OptionError, match="its own options"):
        xla_dynamo.explain(step, dynamic=True)


def test_nothing_is_kept_for_ever():
    def explained_and_dropped():
        model = Model()
        report = xla_dynamo.explain(model)(torch.randn(8, 16))
        return weakref.ref(model), weakref.ref(report), weakref.ref(report.graphs[0])

    found = explained_and_dropped()
    gc.collect()
    assert [ref() for ref in found] == [None] * 3
    assert not any(type(h) is dynamo_trace._Listener for h in dynamo_trace._TRACE.handlers)


def test_a_report_goes_on_without_what_made_it():
    report = xla_dynamo.explain(torch.nn.Linear(4, 4))(torch.randn(2, 4))
    gc.collect()
    report.result.sum().backward()
    assert [graph.kind for graph in report.graphs] == ["forward", "backward"]
    assert len(report.executables) == 2


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters, reason="torch 2.13"
)
def test_it_does_not_use_up_the_limit_of_recompilations():
    def f(x):
        return x * 2

    for _ in range(torch._dynamo.config.recompile_limit + 2):
        assert len(xla_dynamo.explain(f)(torch.ones(3)).graphs) == 1
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        torch.compile(f, backend="openxla")(torch.ones(3))


def test_the_limit_of_recompilations_is_named():
    explained = xla_dynamo.explain(lambda x, word: x * len(word))
    limit = torch._dynamo.config.recompile_limit
    for n in range(limit + 3):
        report = explained(torch.ones(2), "a" * n)
    assert len(report.graphs) == limit
    assert len(report.recompiles) == limit - 1
    (given_up,) = report.graph_breaks
    assert "recompile limit" in given_up.reason
    assert given_up.line.line == line_of("lambda x, word: x * len(word)")


def test_times_are_those_of_each_stage_after_a_reset():
    explained = xla_dynamo.explain(lambda x: x.softmax(-1).relu().sum())
    before = 0.0
    for n in (3, 4, 5):
        report = explained(torch.ones(n, 4, requires_grad=True))
        report.result.backward()  # a graph of a frame that is over
        torch._dynamo.reset()
        assert report.seconds["AOTAutograd"] > before
        before = report.seconds["AOTAutograd"]


def test_what_other_backends_compile_is_not_reported():
    other = torch.compile(lambda x: x.sin(), backend="aot_eager")

    @torch.compiler.disable
    def middle(x):
        return other(x)

    explained = xla_dynamo.explain(lambda x: middle(x * 2) + 1)
    explained(torch.ones(4))
    report = explained(torch.ones(5))
    assert len(report.graphs) == 4
    assert len(report.graph_breaks) == 1
    assert len(report.recompiles) == (2 if current_region() is not None else 3)


def test_a_break_in_torchs_own_code_is_the_users_line():
    report = xla_dynamo.explain(torch.nn.LSTM(4, 4))(torch.ones(2, 3, 4))
    for graph_break in report.graph_breaks:
        assert graph_break.line.file == __file__


def test_within_a_compiled_function():
    @torch.compile(backend="openxla")
    def outer(x):
        return xla_dynamo.explain(lambda x: x * 2)(x + 1).result

    torch.testing.assert_close(outer(torch.ones(3)), torch.full((3,), 4.0))


@torch.library.custom_op("xla_dynamo_tests::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


def test_a_functionalized_operator_has_its_own_name():
    report = xla_dynamo.explain(lambda x: (increase(x), x * 2)[1])(torch.ones(3))
    ((_, operator),) = report.eager_operators
    assert operator.name == "xla_dynamo_tests.increase.default"


def test_another_thread_is_not_reported():
    explained = xla_dynamo.explain(torch.sin)
    others = torch.compile(torch.cos, backend="openxla")

    def fn(x):
        thread = threading.Thread(target=others, args=(x,))
        thread.start()
        thread.join()
        return explained(x)

    report = fn(torch.randn(3))
    assert [o.name for graph in report.graphs for o in graph.operators] == ["aten.sin.default"]
    assert len(report.frames) == 1


def test_wrong_arguments():
    with pytest.raises(TypeError, match="needs a function or a module, not int"):
        xla_dynamo.explain(3)
    with pytest.raises(xla_dynamo.OptionError, match="unknown option 'fallbak'"):
        xla_dynamo.explain(torch.sin, options={"fallbak": "error"})


def test_an_error_in_the_function_is_the_functions_own():
    explained = xla_dynamo.explain(lambda x: {}[x.shape])
    with pytest.raises(KeyError):
        explained(torch.randn(3))
    assert explained.report.graphs == []
