"""Small models with their inputs, and losses of both sides."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers


def bert():
    """A BERT of one layer, and a batch of token ids and classes."""
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    return model, (torch.randint(0, 100, (8, 16)), torch.randint(0, 2, (8,)))


def resnet():
    """A ResNet of two blocks, and a batch of images and classes."""
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=2
    )
    model = transformers.ResNetForImageClassification(config).eval()
    return model, (torch.randn(8, 3, 32, 32), torch.randint(0, 2, (8,)))


class _Classes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
        )

    def forward(self, x):
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.layers(x))


def mlp():
    """Two layers and a normalization, and a batch of vectors and classes."""
    return _Classes(), (torch.randn(8, 4), torch.randint(0, 2, (8,)))


def torch_loss(model, x, classes):
    """Cross entropy."""
    return torch.nn.functional.cross_entropy(model(x).logits, classes)


def jax_loss(function, params, x, classes):
    """Cross entropy."""
    logs = jax.nn.log_softmax(function(params, x)["logits"])
    return -jnp.take_along_axis(logs, classes[:, None], 1).mean()


def arrays_of(tensors):
    """JAX's copies of tensors."""
    return [jnp.asarray(t.numpy()) for t in tensors]


def assert_gradients(model, gradients, rtol=1e-3, atol=1e-6):
    """Compare with what `backward` left at a model's parameters."""
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        expected = parameter.grad.numpy()
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            gradients[name], expected, rtol=rtol, atol=atol + 1e-5 * scale, err_msg=name
        )
