"""A compiled `optimizer.step` changes parameters and state as the eager one does."""

import copy
import functools

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

from tests.compiling import compiled
from xla_dynamo.runtime import metrics

INFO = {info.name: info for info in optim_db}
# Dynamo does not trace these: their steps run in eager torch.
SPARSE, CLOSURE = "SparseAdam", "LBFGS"
TRACED = [name for name in INFO if name not in (SPARSE, CLOSURE)]
# Adafactor reads its step count as a number: unless Dynamo keeps such numbers, it runs eagerly.
WHOLE = [name for name in TRACED if name != "Adafactor"]
FOREACH = [name for name in WHOLE if "foreach" in INFO[name].supported_impls]
FUSED = [name for name in WHOLE if "fused" in INFO[name].supported_impls]
CAPTURABLE = [name for name in WHOLE if INFO[name].has_capturable_arg]


def parameters(name, dtype, real):
    """A matrix, and what else an optimizer takes: a vector, a number, a complex matrix."""
    torch.manual_seed(1)
    tensors = [torch.randn(4, 3, dtype=dtype)]
    if name != "Muon":
        tensors += [torch.randn(5, dtype=dtype), torch.randn((), dtype=dtype)]
        if INFO[name].supports_complex and not real:
            tensors.append(torch.randn(2, 3, dtype=torch.complex64))
    return [torch.nn.Parameter(t) for t in tensors]


def after_steps(name, kwargs, backend, *, dtype=torch.float32, real=False, steps=5):
    """The parameters and the optimizer's state after some steps on given gradients."""
    params = parameters(name, dtype, real)
    optimizer = INFO[name].optim_cls(params, **copy.deepcopy(kwargs))
    step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
    for seed in range(steps):
        torch.manual_seed(seed)
        for p in params:
            p.grad = torch.randn_like(p)
        step()
    return params, optimizer.state_dict()["state"]


def assert_steps_as_eager(
    name, kwargs, reference=None, *, tolerance=1e-5, executables=1, **options
):
    """Compare compiled steps with eager ones (with the arguments `reference`, if given).

    The first step, which sees no state yet, may have an executable of its own.
    """
    metrics.clear_all()
    actual = after_steps(name, kwargs, "openxla", **options)
    compiled = metrics.counter_value("UncachedCompile") or 0
    assert compiled in (executables, 2 * executables)
    expected = after_steps(name, kwargs if reference is None else reference, None, **options)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance / 10)


def configurations(name):
    """The arguments that torch's own tests give an optimizer, the richest ones last."""
    return [given.kwargs for given in INFO[name].optim_inputs_func("cpu", torch.float32)]


EVERY = [
    pytest.param(name, {**kwargs, **form}, id=f"{name}-{kwargs}-{form}")
    for name in WHOLE
    for kwargs in configurations(name)
    for form in ({}, *([{"foreach": True}] if name in FOREACH else []))
]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", WHOLE)
def test_one_by_one(name):
    assert_steps_as_eager(name, configurations(name)[-1])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", FOREACH)
def test_foreach(name):
    assert_steps_as_eager(name, {**configurations(name)[-1], "foreach": True})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kwargs"), EVERY)
def test_every_configuration(name, kwargs):
    assert_steps_as_eager(name, kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_capturable(name, foreach):
    """Eager refuses it on the CPU; the numbers are those without it."""
    kwargs = configurations(name)[-1]
    assert_steps_as_eager(name, {**kwargs, "capturable": True, "foreach": foreach}, kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.bfloat16, 2e-2)], ids=str
)
@pytest.mark.parametrize("name", WHOLE)
def test_dtypes(name, dtype, tolerance):
    """Where eager reads the step count into Python, compiled code has it in float32."""
    assert_steps_as_eager(
        name, configurations(name)[-1], dtype=dtype, tolerance=tolerance, real=True
    )


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_run_in_torch(name):
    assert_steps_as_eager(
        name, {**configurations(name)[-1], "fused": True}, executables=0, real=True
    )


def test_adafactor():
    assert_steps_as_eager("Adafactor", {"weight_decay": 0.1}, executables=0, real=True)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        after = after_steps("Adafactor", {"weight_decay": 0.1}, "openxla")
    assert metrics.counter_value("UncachedCompile") >= 1
    expected = after_steps("Adafactor", {"weight_decay": 0.1}, None)
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [{}, {"foreach": True, "capturable": True}], ids=str)
def test_a_schedule_of_a_tensor_compiles_once(form):
    def run(backend, **form):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(3)), torch.nn.Parameter(torch.randn(2, 2))]
        optimizer = torch.optim.AdamW(params, lr=torch.tensor(0.1), **form)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        for _ in range(6):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
            schedule.step()
        return params, optimizer.state_dict()["state"], optimizer.param_groups[0]["lr"]

    metrics.clear_all()
    actual = run("openxla", **form)
    assert metrics.counter_value("UncachedCompile") == 1
    torch.testing.assert_close(actual, run(None))


def test_a_schedule_of_numbers():
    def run(backend):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(3))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        for _ in range(6):
            weight.grad = torch.randn(3)
            step()
            schedule.step()
        return weight

    torch.testing.assert_close(run("openxla"), run(None))


def test_a_state_that_is_loaded_again():
    def run(backend):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(3))
        state = None
        for _ in range(2):
            optimizer = torch.optim.Adam([weight])
            if state is not None:
                optimizer.load_state_dict(state)
            step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
            for _ in range(2):
                weight.grad = torch.randn(3)
                step()
            state = copy.deepcopy(optimizer.state_dict())
        return weight, state

    torch.testing.assert_close(run("openxla"), run(None))


def test_closures_and_parameter_groups():
    def run(backend):
        torch.manual_seed(0)
        a, b = (torch.nn.Parameter(torch.randn(3)) for _ in range(2))
        groups = [{"params": [a]}, {"params": [b], "lr": 0.5, "weight_decay": 0.1}]
        optimizer = torch.optim.SGD(groups, lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = (a * b + a.square()).sum()
            loss.backward()
            return loss

        def step():
            return optimizer.step(closure)

        step = torch.compile(step, backend=backend) if backend else step
        return [step().detach() for _ in range(3)], a, b

    torch.testing.assert_close(run("openxla"), run(None))


def test_parameters_without_a_gradient_are_left_alone():
    def run(backend):
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
        optimizer = torch.optim.Adam(params, lr=0.1)
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        for turn in (0, 1, 0):
            params[turn].grad, params[1 - turn].grad = torch.ones(3), None
            step()
        return params, optimizer.state_dict()

    torch.testing.assert_close(run("openxla"), run(None))


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("clip", ["norm", "value"])
def test_clipped_gradients(clip, foreach):
    def clipped(params):
        if clip == "norm":
            return torch.nn.utils.clip_grad_norm_(params, 0.5, foreach=foreach)
        return torch.nn.utils.clip_grad_value_(params, 0.5, foreach=foreach)

    def run(f):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(n)) for n in (3, 5)]
        for p in params:
            p.grad = torch.randn_like(p)
        return f(params), [p.grad for p in params]

    metrics.clear_all()
    options = {"fallback": "error"}
    actual = run(compiled(clipped, **options))
    assert metrics.counter_value("UncachedCompile") == 1
    torch.testing.assert_close(actual, run(clipped))


def test_lbfgs_runs_in_torch():
    def run(backend):
        torch.manual_seed(0)
        randn = functools.partial(torch.randn, dtype=torch.float64)
        weight, x, y = torch.nn.Parameter(randn(3)), randn(8, 3), randn(8)
        optimizer = torch.optim.LBFGS([weight], lr=0.5, line_search_fn="strong_wolfe")

        def loss():
            return (x @ weight - y).square().sum()

        loss = torch.compile(loss, backend=backend) if backend else loss

        def closure():
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        return [step(closure).detach() for _ in range(3)], weight

    torch.testing.assert_close(run("openxla"), run(None))


def test_sparse_adam_runs_in_torch():
    def run(backend):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 3, 3])).square().sum().backward()
            step()
        return table.weight

    metrics.clear_all()
    torch.testing.assert_close(run("openxla"), run(None))
    assert not metrics.counter_value("UncachedCompile")
