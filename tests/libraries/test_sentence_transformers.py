"""sentence-transformers: a compiled model encodes texts of several lengths."""

import numpy as np
import sentence_transformers
import transformers
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch._dynamo.utils import counters

from tests.libraries import tiny_text
from tests.libraries.recipes import run_recipe


def test_encode(tmp_path):
    tiny_text.bert(transformers.BertModel).save_pretrained(tmp_path)
    tiny_text.tokenizer().save_pretrained(tmp_path)
    transformer = Transformer(str(tmp_path))
    model = sentence_transformers.SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu"
    )
    texts = ["a good film", "bad film"]
    longer = ["a good good bad film", "a film"]
    expected, expected_longer = model.encode(texts), model.encode(longer)
    counters.clear()
    names = run_recipe("sentence-transformers", model=model)
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-6)
    np.testing.assert_allclose(model.encode(longer), expected_longer, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
