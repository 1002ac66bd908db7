"""The recipe of LoRA: adapters learn, the model beneath them stays, and both are kept."""

import peft
import pytest
import torch
import transformers

from docs.examples.recipes import lora

SMALL = ["--layers", "1", "--batch", "4"]


@pytest.mark.every(2)
def test_lora(tmp_path, split_graphs, others_may_warn):
    text = tmp_path / "text"
    text.write_text("The adapters learn this one sentence, and no other. " * 100)
    out = ["--out", str(tmp_path / "out"), "--text", str(text)]
    losses, merged = lora.main([*SMALL, *out, "--pretraining", "20", "--steps", "60"])
    assert losses[-1] < 0.6 * losses[0]
    assert not split_graphs
    assert (tmp_path / "out" / "lora.png").stat().st_size > 10_000
    assert isinstance(merged, transformers.LlamaForCausalLM)


@pytest.mark.every(3)
def test_a_folder_of_a_model(tmp_path, others_may_warn):
    torch.manual_seed(1)
    base = lora.small_model(300, 1)
    base.save_pretrained(tmp_path / "model")
    tokenizer = transformers.GPT2Tokenizer().train_new_from_iterator(["a text"], 300)
    tokenizer.save_pretrained(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--out", str(tmp_path / "out")]
    _, merged = lora.main([*arguments, "--steps", "5", "--batch", "2"])
    # What was saved, on the model of the folder, is the merged model; embeddings are not adapted.
    tuned = peft.PeftModel.from_pretrained(base, tmp_path / "out" / "adapters")
    tokens = torch.randint(300, (1, 8))
    with torch.no_grad():
        torch.testing.assert_close(tuned(tokens).logits, merged(tokens).logits)
    assert torch.equal(merged.model.embed_tokens.weight, base.model.embed_tokens.weight)
