"""Models of transformers that compute their own loss: one graph, eager's loss and gradients.

The suite of transformers compiles each of its models for training, too, with padded texts. It does
so for Inductor.
"""

import copy
from typing import Any

import pytest
import torch

from bench.models import MODELS, build

# Kinds of models: encoders, with relative positions too; decoders, with a sliding window, with soft
# caps, with experts; a state space; texts and sounds to texts; images, and images with text.
KINDS = (
    "bert", "deberta_v2", "llama", "mistral", "gemma2", "qwen3_moe", "mamba2", "t5", "bart",
    "whisper", "vit", "clip",
)  # fmt: skip


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model, which draws no random numbers in training mode."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def model_of(name: str) -> Any:
    model: Any = without_dropout(build(name, "tiny").train())
    if model.config.is_encoder_decoder:  # they shift the labels
        model.config.decoder_start_token_id = model.config.pad_token_id = 0
    # The loss of images would otherwise write it in the first call, which the second one notices.
    model.config.problem_type = "single_label_classification"
    return model


def batch_of(name: str, model: Any) -> dict[str, Any]:
    """Inputs with labels: texts of two lengths, some of whose places have no label."""
    batch = MODELS[name].inputs("tiny", 2)
    texts = batch.pop("decoder_input_ids", batch.get("input_ids"))
    if "attention_mask" in batch:
        batch["attention_mask"][0, -3:] = 0
    if name == "clip":
        batch["return_loss"] = True
    elif texts is None:
        batch["labels"] = torch.randint(0, model.config.num_labels, (2,))
    else:
        batch["labels"] = torch.randint(0, 99, texts.shape)
        batch["labels"][1, :2] = -100
    return batch


@pytest.mark.every(4)
@pytest.mark.parametrize("name", KINDS)
def test_loss_and_gradients(name, traces, executables):
    model = model_of(name)
    twin = copy.deepcopy(model)
    fast = torch.compile(twin, backend="openxla", fullgraph=True)
    for _ in range(2):
        batch = batch_of(name, model)
        losses = [m(**batch).loss for m in (model, fast)]
        for m, loss in zip((model, twin), losses, strict=True):
            m.zero_grad()
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
        expected, actual = ({key: p.grad for key, p in m.named_parameters()} for m in (model, twin))
        assert any(gradient is not None and gradient.any() for gradient in expected.values())
        assert_same_gradients(actual, expected)
    assert traces() == 1
    assert executables() == 2  # forward and backward


def assert_same_gradients(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert [k for k, g in actual.items() if g is None] == [
        k for k, g in expected.items() if g is None
    ]
    torch.testing.assert_close(
        {k: g for k, g in actual.items() if g is not None},
        {k: g for k, g in expected.items() if g is not None},
        rtol=1e-4,
        atol=1e-5,
    )
