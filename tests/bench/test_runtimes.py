"""OpenVINO and ONNX Runtime as backends: a model's own inputs and outputs, and clear refusals."""

import copy

import pytest
import torch

from bench import __main__ as command_line
from bench import peers, run, runtimes
from bench.backends import BACKENDS
from bench.worker import Subject, Task

pytestmark = [pytest.mark.filterwarnings("ignore")]


def runs_itself(program, tensors, threads):
    """A stand-in for a runtime: torch runs the exported program, and the tensors are new."""
    return lambda given: [t.clone() for t in program.module()(*given)]


def needing(name):
    missing = peers.missing(BACKENDS[name].packages)
    reason = f"needs {', '.join(missing)}: pip install '.[peers]'"
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=reason))


RUNTIMES = [needing("openvino"), needing("onnxruntime")]


class Nested(torch.nn.Module):
    """All that a runtime's row of tensors cannot tell: names, nesting, constants, unused inputs."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 4)

    def forward(self, unused, x, *, scale, more, flag=False):
        y = self.linear(x) * more["factor"] * scale
        return {
            "y": (y, None, [y > 0 if flag else y < 0]),
            "count": torch.arange(3) + more["ids"].sum(),
            "echo": x,
            "copy": more["factor"].clone(),
            "again": y,
            "kind": "nested",
        }


def arguments(size=2, flag=True):
    more = {"factor": torch.randn(size, 4), "ids": torch.randint(0, 9, (5,))}
    x = torch.randn(6, size).t()  # not contiguous
    return (torch.ones(7), x), {"scale": 0.5, "more": more, "flag": flag}


def check(expected, actual):
    assert actual.pop("kind") == expected.pop("kind")
    assert actual["y"][1] is None
    torch.testing.assert_close(actual, expected)


def nested(name):
    if name == "stand-in":
        model = Nested().eval()
        return model, runtimes.Exported(name, model, runs_itself)
    model = Nested().eval()
    return model, BACKENDS[name].compile(model)


@pytest.mark.parametrize("name", ["stand-in", *RUNTIMES])
def test_inputs_and_outputs_are_the_models_own(name, tmp_path, monkeypatch):
    """Cold, then warm with other values; a later call leaves an earlier result as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    model, compiled = nested(name)
    calls = [arguments(), arguments()]
    with torch.no_grad():
        expected = [model(*given, **named) for given, named in copy.deepcopy(calls)]
        results = [compiled(*given, **named) for given, named in calls]
    for wanted, result in zip(expected, results, strict=True):
        check(wanted, result)
    assert not (tmp_path / "intel").exists()  # where OpenVINO counts its reports


@pytest.mark.parametrize("name", ["stand-in", *RUNTIMES])
def test_what_a_runtime_refuses(name):
    _, compiled = nested(name)
    given, named = arguments()
    with pytest.raises(NotImplementedError, match=f"{name} runs inference alone"):
        compiled(*given, **named)
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.float16),
        pytest.raises(NotImplementedError, match="no autocast to torch"),
    ):
        compiled(*given, **named)
    with torch.no_grad():
        compiled(*given, **named)
        for other in (arguments(size=3), arguments(flag=False)):
            with pytest.raises(ValueError, match=f"{name} was made for"):
                compiled(*other[0], **other[1])


def test_outputs_that_are_no_tensors():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return x + 1, object()

    compiled = runtimes.Exported("stand-in", Odd(), runs_itself)
    with torch.no_grad(), pytest.raises(Exception, match="returns a object"):
        compiled(torch.ones(2))


def test_a_runtime_that_loses_an_output():
    def losing(program, tensors, threads):
        return lambda given: program.module()(*given)[:-1]

    compiled = runtimes.Exported("stand-in", Nested().eval(), losing)
    given, named = arguments()
    with torch.no_grad(), pytest.raises(RuntimeError, match="computes 4 tensors, the runtime 3"):
        compiled(*given, **named)


@pytest.mark.parametrize("name", RUNTIMES)
def test_real_models(name):
    """A convolutional one, and one with two inputs that are integers."""
    for model in ("resnet50", "bert"):
        task = Task(model, size="tiny", batch=2)
        eager, other = Subject(task, "eager"), Subject(task, name)
        eager.first(), other.first()
        torch.testing.assert_close(dict(other.result), dict(eager.result), rtol=1e-4, atol=1e-4)


def test_training_is_refused():
    runtimes_alone = Subject(Task("dlrm", "training", size="tiny", batch=2), "openvino")
    with pytest.raises(NotImplementedError, match="openvino runs inference alone"):
        runtimes_alone.step()


def test_missing_packages_are_named(monkeypatch, capsys):
    monkeypatch.setattr(peers, "missing", lambda packages: [p for p in packages if p != "onnx"])
    with pytest.raises(SystemExit):
        command_line.main(["run", "--backends", "eager,onnxruntime"])
    told = capsys.readouterr().err
    assert "onnxruntime needs onnxruntime, onnxscript: pip install '.[peers]'" in told


def test_missing_packages():
    assert peers.missing(["torch", "no_such_package"]) == ["no_such_package"]


def test_rounds_begin_after_a_pause(monkeypatch):
    """Each in its turn: no worker is asked while another's threads may still spin."""
    events = []

    class Quick:
        def __init__(self, name):
            self.name = name

        def ask(self, what, timeout, **more):
            events.append(self.name)
            return {"seconds": 0.001}

    monkeypatch.setattr(run.time, "sleep", events.append)
    measured = run.ModelRun(Task("dlrm"), ["a", "b"], run.Limits(), lambda step: None)
    measured.workers = {name: Quick(name) for name in "ab"}
    measured._time(rounds=2, seconds=0.1, pause=0.25)
    assert events[0::2] == [0.25] * 6
    assert events[1::2] == ["a", "b", "b", "a", "a", "b"]
    assert measured.rows["a"]["ms"] == [1.0, 1.0]
