"""Small models of several families, with random weights, as they are exported and called."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import Dim

VOCABULARY = 61


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its calls.

    Attributes:
        make: makes the model.
        calls: makes the calls' inputs, (args, kwargs), for a size or two; the first is exported.
        sizes: the arguments of `calls`, one tuple for each call.
        dynamic_shapes: as for `torch.export.export`.
        trains: whether the model is in training mode, so that it changes buffers.
    """

    make: Callable[[], nn.Module]
    calls: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]
    sizes: Sequence[tuple[int, ...]] = ((2,),)
    dynamic_shapes: Any = None
    trains: bool = False

    def model(self) -> nn.Module:
        """The model, of the same weights each time."""
        torch.manual_seed(0)
        return self.make().train(self.trains)

    def export(self, model: nn.Module) -> torch.export.ExportedProgram:
        """The model, exported with the first call's inputs."""
        args, kwargs = self.calls(*self.sizes[0])
        shapes = self.dynamic_shapes
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)


class Outputs(NamedTuple):
    """Nested outputs: a tuple with names, a dict, a list and a number."""

    hidden: torch.Tensor
    parts: dict[str, list[torch.Tensor]]
    count: int


class Nested(nn.Module):
    """Takes and returns nested containers; one output is an input, one a view of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]], *, scale: float = 1.0):
        """The outputs."""
        x, named = pair
        y = self.linear(x) * scale + named["bias"]
        return Outputs(y, {"views": [x, x.t()], "mean": [y.mean()]}, x.shape[1])


class Recurrent(nn.Module):
    """A bidirectional LSTM over embeddings."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 12)
        self.lstm = nn.LSTM(12, 8, 2, batch_first=True, bidirectional=True)

    def forward(self, ids: torch.Tensor):
        """The last layer's outputs, and the states."""
        return self.lstm(self.embedding(ids))


class Residual(nn.Module):
    """A small residual convolutional net with batch norms."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=4), nn.BatchNorm2d(8), nn.SiLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor):
        """The logits."""
        x = self.pool(self.stem(x))
        return self.head(x + self.block(x))


def ids(*shape: int) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(VOCABULARY, shape)


def images(batch: int) -> Any:
    """A call with images."""
    return (torch.randn(batch, 3, 16, 16),), {}


def masked(batch: int, length: int = 6) -> Any:
    """A call with keyword arguments: tokens, and a mask that hides the last one of a row."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -1] = 0
    return (), {"input_ids": ids(batch, length), "attention_mask": mask}


def _transformers(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")
        known = {"vocab_size": VOCABULARY} if "image_size" not in settings else {}
        return _OF_CONFIG[name](config(**known, **settings))

    return make


def _model(name: str) -> Callable[[Any], nn.Module]:
    def make(config: Any) -> nn.Module:
        import transformers

        return getattr(transformers, name)(config)

    return make


_OF_CONFIG: Mapping[str, Callable[[Any], nn.Module]] = {
    "Bert": _model("BertModel"),
    "GPT2": _model("GPT2LMHeadModel"),
    "Llama": _model("LlamaForCausalLM"),
    "T5": _model("T5ForConditionalGeneration"),
    "ViT": _model("ViTForImageClassification"),
    "ConvNext": _model("ConvNextForImageClassification"),
}
_BATCH = Dim("batch")

CASES: Mapping[str, Case] = {
    "nested": Case(
        Nested, lambda n: (((torch.randn(n, 6), {"bias": torch.randn(6)}),), {"scale": 0.5})
    ),
    "residual_dynamic_batch": Case(Residual, images, ((3,), (1,)), ({0: _BATCH},)),
    "residual_training": Case(Residual, images, ((4,), (4,), (4,)), None, True),
    "recurrent": Case(Recurrent, lambda n: ((ids(n, 5),), {})),
    "bert_keywords": Case(
        _transformers(
            "Bert",
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=32,
        ),
        masked,
    ),
    "gpt2_dynamic": Case(
        _transformers(
            "GPT2", n_embd=16, n_layer=2, n_head=4, n_positions=32, use_cache=False, bos_token_id=0
        ),
        lambda batch, length: ((), {"input_ids": ids(batch, length)}),
        ((2, 7), (1, 5), (3, 32), (1, 2)),
        {"input_ids": {0: _BATCH, 1: Dim("length", min=2, max=32)}},
    ),
    "llama": Case(
        _transformers(
            "Llama",
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            use_cache=False,
        ),
        lambda n: ((ids(n, 7),), {}),
    ),
    "t5": Case(
        _transformers(
            "T5", d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, use_cache=False
        ),
        lambda n: ((), {"input_ids": ids(n, 7), "decoder_input_ids": ids(n, 4)}),
    ),
    "vit_dynamic_batch": Case(
        _transformers(
            "ViT",
            image_size=16,
            patch_size=4,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
        ),
        images,
        ((3,), (1,), (5,)),
        {"pixel_values": {0: _BATCH}},
    ),
    "convnext": Case(
        _transformers(
            "ConvNext",
            image_size=16,
            patch_size=2,
            hidden_sizes=[8, 8],
            depths=[1, 1],
            num_stages=2,
        ),
        images,
    ),
}
