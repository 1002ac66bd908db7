"""Real models, every family: one graph, nothing run by eager, equal to eager."""

import pytest
import torch

from bench.accuracy import relative_error
from bench.models import (
    BFLOAT16,
    FAMILIES,
    MODELS,
    QUICK,
    RUNTIMES,
    STANDARD,
    TRAINING,
    build,
    build_double,
    randomize_constants,
)
from bench.models.registry import register
from bench.models.suites import SUITES
from tests.compiling import compiled
from xla_dynamo.runtime import metrics

# transformers and torch.jit grumble about themselves while they are imported.
pytestmark = [pytest.mark.filterwarnings("ignore")]

# A model of each family; of the others, a run has every tenth (and of all of them the half).
ALWAYS = {
    "bert", "convnext", "diffusion_unet", "dlrm", "gcn", "gpt2", "lstm_language_model", "mixtral",
    "mobilenet_v3", "resnet50", "t5", "whisper",
}  # fmt: skip
each_model = pytest.mark.parametrize(
    "name",
    [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.every(10)) for n in MODELS],
)


def test_every_model_says_what_it_is():
    for name, model in MODELS.items():
        assert model.family in FAMILIES, name
        assert model.batch >= 1, name
        assert {"full"} <= model.suites <= {"full", *SUITES}, name
        assert model.trains or "training" not in model.suites, name


def test_suites_are_of_the_promised_sizes():
    members = {s: {n for n, m in MODELS.items() if s in m.suites} for s in SUITES}
    assert members == {suite: set(names) for suite, names in SUITES.items()}
    assert members["quick"] < members["standard"]
    assert len(QUICK) == 8
    assert len(set(STANDARD)) == len(STANDARD) >= 40
    assert len(MODELS) >= 75
    assert len(TRAINING) == 12
    assert len(BFLOAT16) == 10
    assert len(RUNTIMES) == 16
    convolutional = {"convnet", "classic"}  # of the classics, a U-Net
    assert sum(MODELS[name].family in convolutional for name in RUNTIMES) == 8


def test_every_family_has_models_in_the_standard_suite():
    assert {MODELS[name].family for name in STANDARD} == set(FAMILIES)


@pytest.mark.parametrize(("name", "family"), [("bert", "text"), ("new", "poetry")])
def test_names_are_new_and_families_known(name, family):
    with pytest.raises(ValueError, match=f"{name}|{family}"):
        register(name, torch.nn.Linear, {}, {}, MODELS["bert"].inputs, family=family)


def test_weights_are_those_of_the_seed():
    first, again, other = (build("dlrm", "tiny", seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not all(torch.equal(first[k], other[k]) for k in first)


def test_constants_are_randomized():
    norm = torch.nn.BatchNorm1d(50)
    randomize_constants(norm, seed=0)
    for tensor in norm.weight, norm.bias, norm.running_mean, norm.running_var:
        assert tensor.unique().numel() > 40
    assert bool((norm.running_var > 0.5).all())


@pytest.mark.parametrize("name", TRAINING)
def test_the_loss_reaches_every_parameter(name):
    model = build(name, "tiny").train()
    MODELS[name].loss(model(**MODELS[name].inputs("tiny", 2))).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("batch", [2, pytest.param(1, marks=pytest.mark.slow)])
@each_model
def test_agrees_with_eager(name, batch):
    model = build(name, "tiny")
    torch.manual_seed(1)
    inputs = MODELS[name].inputs("tiny", batch)
    whole = MODELS[name].whole
    metrics.clear_all()
    with torch.no_grad():
        expected = model(**inputs)
        actual = compiled(model, fullgraph=whole)(**inputs)
    assert relative_error(expected, actual) <= 1e-4
    if whole:
        assert metrics.counter_value("UncachedCompile") == 1  # the whole model is one executable


@pytest.mark.parametrize("name", ["bert", "resnet50"])
def test_agrees_with_float64(name):
    """The reference for float32 is exact arithmetic: we are as close to it as eager is."""
    model = build_double(name, "tiny")
    torch.manual_seed(1)
    inputs = MODELS[name].inputs("tiny", 16)  # of few, a machine's kernels may be lucky
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        exact = model(**wide)
        assert relative_error(exact, compiled(model, fullgraph=False)(**wide)) <= 1e-12
        narrow = model.float()
        actual = compiled(narrow)(**inputs)
        expected = narrow(**inputs)
    assert distance(exact, actual) <= 2 * distance(exact, expected) + 1e-7


def distance(exact, result) -> float:
    """Relative root mean square error of the first output."""
    e, r = exact[0].double(), result[0].double()
    return float((e - r).norm() / e.norm())
