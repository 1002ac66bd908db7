"""The lazy device after an error, in several threads, and in other processes."""

import signal
import threading

import pytest
import torch

import xla_dynamo
from tests.fresh_process import run
from xla_dynamo.lazy import contents, execution

XLA = xla_dynamo.device()


def test_an_exception_inside_a_step_leaves_the_device_usable():
    model = torch.nn.Linear(2, 2, device=XLA)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        x = torch.ones(1, 2, device=XLA)
        try:
            loss = model(x).square().sum()
            if step == 1:
                model(torch.ones(1, 3, device=XLA))
        except RuntimeError as error:
            assert "mat1 and mat2 shapes cannot be multiplied" in str(error)  # noqa: PT017
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        xla_dynamo.sync()
        losses.append(loss.item())
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)


def test_what_cannot_be_compiled_is_told_and_stays_pending(monkeypatch):
    def fail(*args, **kwargs):
        raise xla_dynamo.CompileError("PJRT said no")

    x = torch.ones(7, device=XLA)
    xla_dynamo.sync()
    y = (x + 1).cumsum(0) * 1.75
    with monkeypatch.context() as patched:
        patched.setattr(execution, "compile_torch_graph", fail)
        with pytest.raises(xla_dynamo.CompileError, match="PJRT said no"):
            y.cpu()
        assert x.tolist() == [1] * 7
    assert y.tolist() == [3.5 * n for n in range(1, 8)]


def test_what_cannot_be_compiled_is_told_once(monkeypatch):
    """Later steps leave it out, and what it reads stays as it was."""

    def fail(*args, **kwargs):
        raise xla_dynamo.CompileError("PJRT said no")

    x = torch.ones(7, device=XLA)
    xla_dynamo.sync()
    with monkeypatch.context() as patched:
        patched.setattr(execution, "compile_torch_graph", fail)
        y = x.cumsum(0) * 1.25
        with pytest.raises(xla_dynamo.CompileError, match="PJRT said no"):
            xla_dynamo.sync()
    x += 1
    xla_dynamo.sync()
    assert contents.cell_of(y).value.record is not None
    torch.compile(lambda t: t.add_(1), backend="openxla")(x)
    assert x.tolist() == [3] * 7
    assert y.tolist() == [1.25 * n for n in range(1, 8)]


def test_two_threads_record_and_compute():
    failures = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(10):
                host = torch.randn(5, 5, generator=generator)
                x = host.to(XLA)
                x[0] += seed
                host[0] += seed
                if seed:
                    xla_dynamo.sync()
                torch.testing.assert_close((x @ x).cpu(), host @ host)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_nobody_reads_is_never_computed_and_freed():
    before = len(contents.live_cells())
    x = torch.ones(3, device=XLA)
    for _ in range(5000):  # a chain of records, freed one by one
        x = x + 1
    assert len(contents.live_cells()) == before + 1
    del x
    assert len(contents.live_cells()) == before


def test_nothing_is_claimed_before_the_device_is_asked_for():
    done = run(
        "import torch, xla_dynamo\n"
        "assert torch.utils.backend_registration._privateuse1_backend_name == 'privateuseone'\n"
        "torch.compile(lambda x: x + 1, backend='openxla')(torch.ones(2))\n"
        "assert not hasattr(torch, 'xla') and not torch.accelerator.is_available()\n"
        "print(xla_dynamo.device(), torch.ones(2, device='xla').sum().item())\n"
        "xla_dynamo.sync()\n"
    )
    assert done.stdout == "xla:0 2.0\n", done.stderr


def test_autograd_that_ran_before_is_a_warning():
    done = run(
        "import torch, warnings\n"
        "torch.ones(1, requires_grad=True).backward()\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import xla_dynamo\n    xla_dynamo.device()\n"
        "print(*(w.message for w in caught))\n"
        "print(torch.ones(2, device='xla').tolist())\n"
    )
    assert "call xla_dynamo.device() before the first backward()" in done.stdout, done.stderr
    assert "[1.0, 1.0]" in done.stdout


def test_a_place_that_is_taken_is_an_error():
    done = run(
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('npu')\n"
        "import xla_dynamo\n"
        "xla_dynamo.device()\n"
    )
    assert "XlaDynamoError: cannot make the 'xla' device: another package" in done.stderr
    assert "'npu'" in done.stderr


def test_checks_raise_at_once():
    """Operators without results, such as the check behind `inv`, are not left pending."""
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.zeros(3, 3, device="xla"))
    assert torch.linalg.inv(2 * torch.eye(3, device="xla")).sum().item() == 1.5


@pytest.fixture
def ctrl_c():
    """Python's own handler, which a process that was started in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("interrupted", ["lazily", "compiled"])
def test_an_interrupted_step_leaves_its_values(interrupted, monkeypatch):
    """A program takes the memory of what it changes, so its results must not be lost."""
    from xla_dynamo.lazy.compiled_calls import LazyTensors

    def add(x):
        return x.add_(1)

    x = torch.zeros(21, device=XLA)
    step = torch.compile(add, backend="openxla") if interrupted == "compiled" else add
    for _ in range(2):
        step(x)
        xla_dynamo.sync()
    owner, name = (
        (LazyTensors, "over") if interrupted == "compiled" else (execution.CompiledSlice, "run")
    )
    whole = getattr(owner, name)

    def interrupting(*args):
        result = whole(*args)
        signal.raise_signal(signal.SIGINT)  # as Ctrl-C while the program ran
        return result

    def run_step():
        step(x)
        xla_dynamo.sync()

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupting)
        with pytest.raises(KeyboardInterrupt):
            run_step()
    assert x.tolist() == [3] * 21
    run_step()
    assert x.tolist() == [4] * 21
