"""Names of `torch_xla.debug` do what PyTorch/XLA's do."""

import logging
import math
import socket
import threading

import pytest
import torch

import xla_dynamo
from tests.fresh_process import run
from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.lazy import steps
from xla_dynamo.torch_xla.forms import (
    frame_reports,
    metrics_comparison,
    model_comparison,
    profiler,
    saved_models,
    surroundings,
    utilities,
)

REPORT = """text of something else
Metric: InboundData
  TotalSamples: 1728
  Accumulator: 10GB
  Rate: 16.8665 / second
  Percentiles: 1%=393.00KB; 50%=1.54MB; 99%=12.00B
Metric: TransferToDeviceTime
  TotalSamples: 2616
  Accumulator: 04d17h11m07s495ms546.299us
  ValueRate: 783ms426.227us / second
  Percentiles: 1%=05m003ms; 99%=05m129ms
Metric: Sizes
  TotalSamples: 2
  Accumulator: 9000.00
  Percentiles: 50%=4500.00
Counter: MarkStep
  Value: 40
"""


def test_reports_are_parsed():
    assert metrics_comparison.parse_metrics_report(REPORT) == pytest.approx(
        {
            "InboundData__TotalSamples": 1728,
            "InboundData__Accumulator_mb": 10000,
            "InboundData__Percentile_1_mb": 0.393,
            "InboundData__Percentile_50_mb": 1.54,
            "InboundData__Percentile_99_mb": 12e-6,
            "TransferToDeviceTime__TotalSamples": 2616,
            "TransferToDeviceTime__Accumulator_sec": 407467.495546299,
            "TransferToDeviceTime__Percentile_1_sec": 300.003,
            "TransferToDeviceTime__Percentile_99_sec": 300.129,
            "Sizes__TotalSamples": 2,
            "Sizes__Accumulator": 9000,
            "Sizes__Percentile_50": 4500,
            "MarkStep__Value": 40,
        }
    )
    pairs = metrics_comparison.parse_metrics_report(REPORT, dehumanize=False)
    assert pairs["InboundData__Accumulator_mb"] == (10000.0, "10GB")
    with pytest.raises(ValueError, match="no number"):
        metrics_comparison.parse_metrics_report(REPORT.replace("10GB", "10QB"))


def test_own_reports_are_parsed():
    xla_dynamo.metrics.clear_all()
    (torch.ones(3, device="xla") * 17 + 3).cpu()
    xla_dynamo.sync()
    found = metrics_comparison.parse_metrics_report(xla_dynamo.metrics.metrics_report())
    assert found["ExecuteTime__TotalSamples"] == found["xla::mul__Value"] == 1
    told = xla_dynamo.metrics.metric_data("ExecuteTime")[1] * 1e-9
    assert found["ExecuteTime__Accumulator_sec"] == pytest.approx(told, abs=1e-9)
    assert found["InboundData__Accumulator_mb"] == pytest.approx(12e-6)


def test_reports_are_compared():
    more = REPORT.replace("40", "46")
    points = metrics_comparison.get_data_points_from_metrics_reports([REPORT, more, ""])
    assert points["MarkStep__Value"] == [40, 46, None]
    assert metrics_comparison.compare_metrics(points, more) == ""
    most = REPORT.replace("40", "60") + "Counter: aten::sort\n  Value: 1\n"
    assert metrics_comparison.compare_metrics(points, most) == (
        "MarkStep__Value failed its expression check. Expression: v <= v_mean + (v_stddev * 2.0)."
        "  Mean: 43.0.  Stddev: 3.0.  Actual Value: 60\n"
        "Found new aten counter: aten::sort__Value: 1\n"
    )
    own = {"base_expression": "True", "MarkStep__Value_expression": "v < v_mean"}
    assert metrics_comparison.compare_metrics(points, REPORT, own) == ""
    assert "MarkStep__Value failed" in metrics_comparison.compare_metrics(points, more, own)


def test_tensors_are_compared():
    one = torch.tensor([[1.0, 2, math.inf], [math.nan, 5, 6]])
    other = torch.tensor([[1.0, 2.5, math.inf], [math.nan, math.nan, 7]])
    told = model_comparison.compare_tensors(one, other)
    assert told == (
        "[1, 1]: 5.0 vs. nan\terror=inf\n"
        "[1, 2]: 6.0 vs. 7.0\terror=1.0\n"
        "[0, 1]: 2.0 vs. 2.5\terror=0.5\n"
    )
    assert model_comparison.compare_tensors(one, one.clone()) == ""
    assert model_comparison.compare_tensors(one, other, rtol=0.3).count("\n") == 1
    told = model_comparison.compare_tensors(torch.zeros(9), torch.ones(9), max_diffs=2)
    assert told.splitlines()[-1] == "... aborting after 2 differences"
    assert len(told.splitlines()) == 3
    assert "[1] vs. [2]" in model_comparison.compare_tensors(torch.ones(1), torch.ones(2))
    assert model_comparison.compare_tensors(torch.tensor(3), torch.tensor(4)).startswith("[]: 3 vs")


def test_runs_are_compared(tmp_path, monkeypatch):
    for folder, last in (("a", 2.0), ("b", 3.0)):
        model_comparison.configure(tmp_path / folder)
        x = torch.ones(2, device="xla")
        assert model_comparison.save("x", x) is x
        model_comparison.save("x", x * last)
        model_comparison.save("y", x * last, step=0)
        model_comparison.save(None, x, step=1)
        model_comparison.save("x", x, step=1)
    model_comparison.save("only", x)
    model_comparison.configure(None)
    model_comparison.save("nowhere", x)
    assert (tmp_path / "a" / "step-0" / "y.0").exists()
    assert [*(tmp_path / "a" / "step-1").glob("test_torch_xla_debug.py.l*.0")]
    told = model_comparison.compare(tmp_path / "a", tmp_path / "b")
    assert told == (
        'Changes in saved tensor "y" with id=0 at step=0\n'
        "  [0]: 2.0 vs. 3.0\terror=1.0\n  [1]: 2.0 vs. 3.0\terror=1.0\n"
        'Changes in saved tensor "x" with id=1\n'
        "  [0]: 2.0 vs. 3.0\terror=1.0\n  [1]: 2.0 vs. 3.0\terror=1.0\n"
        f"Mismatch: only.0 not in {tmp_path / 'a'}\n"
    )
    assert model_comparison.compare(tmp_path / "a", tmp_path / "a") == ""
    assert model_comparison.compare(tmp_path / "a", tmp_path / "b", atol=2).count("Changes") == 0
    monkeypatch.setenv("MODELCMP_SAVEDIR", str(tmp_path / "c"))
    model_comparison.save("z", x)
    assert torch.load(tmp_path / "c" / "z.0").tolist() == [1, 1]


def test_dumps_of_frames(tmp_path, monkeypatch):
    stack = "[TAG aten::sort From Thread 140]\nPython Frames:\nf (a.py:3)\n\n"
    other = "C++ Frames:\ng (b.cc:4)\n*** End stack trace ***\n[TAG x From Thread 1]\n\n"
    dump = tmp_path / "dump"
    dump.write_text(stack + other + stack)
    found = frame_reports.parse_frames(dump.read_text().splitlines(keepends=True))
    sort = 'Unlowered Op: "aten::sort"\nPython Frames:\nf (a.py:3)\n'
    assert found == {sort: 2, 'Unlowered Op: "x"\n': 1}
    told = []
    monkeypatch.setattr(logging.getLogger("pt-xla-profiler"), "warning", told.append)
    frame_reports.process_frames(dump)
    assert told.index("FRAME (count=2):") < told.index("FRAME (count=1):")
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(tmp_path / "told"))
    frame_reports.process_frames(dump)
    assert f"FRAME (count=2):\n{sort}\n" in (tmp_path / "told").read_text()


def profiles(folder):
    return [*folder.rglob("*.xplane.pb")]


def step():
    with profiler.StepTrace("a_step", step_num=3), profiler.Trace("a_block"):
        return torch.ones(3, device="xla") + 1


def test_a_server_of_this_process_is_profiled(tmp_path):
    port = surroundings.get_free_tcp_ports()[0]
    server = profiler.start_server(port)
    assert server.port == port
    with pytest.raises(RuntimeError, match="no profiler server at port"):
        profiler.start_server(port)
    step()  # compiled
    known = {*threading.enumerate()}
    profiler.trace_detached(f"localhost:{port}", tmp_path, duration_ms=100, delay_ms=1)
    (thread,) = {*threading.enumerate()} - known
    while thread.is_alive():
        assert step().tolist() == [2] * 3
    assert b"a_block" in profiles(tmp_path)[0].read_bytes()
    with pytest.raises(XlaDynamoError, match="pip install xprof"):
        profiler.trace(f"localhost:{port},10.0.0.1:80", tmp_path)
    del server
    profiler.start_server(port)  # and it is gone


def test_one_profile_at_a_time(tmp_path):
    profiler.start_trace(tmp_path)
    with pytest.raises(RuntimeError, match="Only one profile may be run at a time"):
        profiler.start_trace(tmp_path)
    profiler.stop_trace()
    assert len(profiles(tmp_path)) == 1
    with pytest.raises(RuntimeError, match="No profile started"):
        profiler.stop_trace()
    (tmp_path / "file").touch()
    for start in (profiler.start_trace, lambda folder: profiler.trace("localhost:1", folder)):
        with pytest.raises(RuntimeError):
            start(tmp_path / "file")
    profiler.start_trace(tmp_path / "again")  # and none has been left running
    profiler.stop_trace()


def test_a_traced_step_ends_with_a_sync():
    xla_dynamo.metrics.clear_all()
    steps.set_tracer_marked_step(False)
    with profiler.StepTrace("step", step_num=1):
        x = torch.ones(3, device="xla") + 1
    assert xla_dynamo.metrics.counter_value("MarkStep") == 1
    assert steps.get_tracer_marked_step()
    with pytest.raises(ZeroDivisionError), profiler.StepTrace("step", step_num=2):
        x / (1 // 0)
    assert xla_dynamo.metrics.counter_value("MarkStep") == 1
    assert not steps.get_tracer_marked_step()


def test_loaders_end_no_step_that_a_trace_has_ended():
    xla_dynamo.metrics.clear_all()
    for batch in xla_dynamo.MpDeviceLoader([torch.ones(2)] * 3, "xla"):
        with profiler.StepTrace("step", step_num=1):
            x = batch + 1
    assert xla_dynamo.metrics.counter_value("MarkStep") == 3
    assert not steps.get_tracer_marked_step()
    for batch in xla_dynamo.MpDeviceLoader([torch.ones(2)] * 3, "xla"):
        x += batch
    assert xla_dynamo.metrics.counter_value("MarkStep") == 6
    assert x.tolist() == [5, 5]


def test_functions_as_modules():
    module = saved_models.wrap_func_as_nn_module(lambda x, y: x - y)
    assert not module.training
    assert module(torch.tensor(3), torch.tensor(1)) == 2
    if not saved_models.has_tf_package():
        with pytest.raises(ModuleNotFoundError, match="tensorflow"):
            saved_models.load_save_model_and_inference("nowhere", (torch.ones(1),))


def test_metrics_are_written_to_a_summary():
    written = {}

    class Writer:
        def add_scalar(self, name, value, step):
            written[name, step] = value

    xla_dynamo.metrics.clear_all()
    torch.tensor([3, 0], device="xla").nonzero()
    utilities.write_to_summary(Writer(), 4, {"loss": 0.5}, write_xla_metrics=True)
    assert written["loss", 4] == 0.5
    assert written["aten::nonzero__Value", 4] == written["aten_ops_sum", 4] == 1
    assert written["TransferToDeviceTime__TotalSamples", 4] == 1


IN_A_PROCESS = """
import sys, unittest
from xla_dynamo.torch_xla.forms.utilities import mp_test

@mp_test
def ends(code):
    sys.exit(code)

class Case(unittest.TestCase):
    @mp_test
    def runTest(self):
        self.assertEqual(2, self.expected)

case = Case()
case.expected = 2
case.runTest()
case.expected = 3
try:
    case.runTest()
except AssertionError as error:
    print(ends(0), ends(3), error)
"""


def test_a_test_in_a_process_of_its_own():
    assert run(IN_A_PROCESS).stdout == "0 3 the process of the test ended with the code 1\n"


def test_profiles_know_the_programs_of_the_device(tmp_path):
    x = torch.randn(64, 64).to("xla")
    (x @ x).cpu()  # compiled, and known by its line
    with torch.profiler.profile() as outer, xla_dynamo.profile() as p:
        (x @ x).cpu()
    assert p.programs == 1
    assert sum(op.flops for op in p.operations) == 2 * 64**3
    assert any(e.name.startswith("xla_dynamo: lazy tensors of ") for e in outer.events())


def test_a_server_answers_as_xprof_asks():
    port = surroundings.get_free_tcp_ports()[0]
    server = profiler.start_server(port)
    with socket.create_connection(("localhost", port), timeout=10) as caller:
        # HTTP/2's preface and empty settings, with which each client of gRPC begins.
        caller.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        answer = caller.recv(9)
    assert answer[3] == 4, "a frame of settings"
    del server
