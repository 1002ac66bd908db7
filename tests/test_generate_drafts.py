"""`xla_dynamo.generate` with drafts: transformers' tokens, verified by few programs."""

import pytest
import torch
import transformers

import xla_dynamo
from tests.test_generate import check, encoder_decoder, gpt2, llama, prompt, sliding
from xla_dynamo.generation.replaced_methods import method_replaced

pytestmark = [
    pytest.mark.usefixtures("others_may_warn", "cold"),
    pytest.mark.skipif(
        not hasattr(transformers.Cache, "is_croppable"),
        reason="this transformers takes no tokens back from a static cache",
    ),
]


class Streamer(transformers.generation.BaseStreamer):
    """How many tokens come at a time, without the prompt."""

    def __init__(self):
        self.counts = []

    def put(self, value):
        self.counts.append(value.numel())

    def end(self):
        self.counts = self.counts[1:]


def drafting(model, tokens=3, **settings):
    """A model that drafts so many tokens, however sure it is."""
    config = model.generation_config
    config.num_assistant_tokens, config.assistant_confidence_threshold = tokens, 0.0
    config.update(**settings)
    return model


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [llama, gpt2, sliding])
def test_tokens_looked_up_in_the_prompt(make):
    check(make(), prompt().repeat(1, 3), max_new_tokens=30, prompt_lookup_num_tokens=3)


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [llama, gpt2, sliding])
def test_tokens_of_a_model_that_drafts(make):
    check(make(), prompt(), max_new_tokens=20, assistant_model=drafting(make()))


def test_a_draft_that_is_often_wrong():
    draft = drafting(llama())
    with torch.no_grad():
        draft.lm_head.weight[7] += 0.3
    streamer = Streamer()
    check(llama(), prompt(), max_new_tokens=20, assistant_model=draft, streamer=streamer)
    assert len(set(streamer.counts)) > 1


def test_a_program_verifies_all_that_is_looked_up(executables):
    """There are two: of one token, and of those looked up and one."""
    model, streamer = llama(), Streamer()
    kwargs = {"prompt_lookup_num_tokens": 4, "streamer": streamer}
    check(model, prompt().repeat(1, 3), max_new_tokens=30, **kwargs)
    assert executables() == 2
    assert max(streamer.counts) > 1
    check(model, prompt(length=7).repeat(1, 2), max_new_tokens=19, **kwargs)
    assert executables() == 2


def test_a_program_for_each_power_of_two_verifies_drafts(executables):
    model, draft = llama(), drafting(llama(), 5, num_assistant_tokens_schedule="constant")
    streamer = Streamer()
    kwargs = {"assistant_model": draft, "streamer": streamer}
    check(model, prompt(), max_new_tokens=23, **kwargs)
    assert max(streamer.counts) > 4
    # A step of either model, and verifications of eight tokens; of fewer where the text ends.
    assert executables() <= 5
    before = executables()
    draft.generation_config.num_assistant_tokens = 7
    check(model, prompt(length=4), max_new_tokens=23, **kwargs)
    assert executables() <= before + 1


def test_what_fills_up_teaches_the_draft_nothing():
    """A schedule by successes goes as it does in transformers."""
    counts = []
    for generate in (lambda model, **kw: model.generate(**kw), xla_dynamo.generate):
        draft = drafting(llama(), 4, num_assistant_tokens_schedule="heuristic")
        with torch.no_grad():
            draft.lm_head.weight[7] += 0.3
        more = {"assistant_model": draft, "pad_token_id": 0, "eos_token_id": None}
        generate(llama(), inputs=prompt(), max_new_tokens=24, **more)
        counts.append(draft.generation_config.num_assistant_tokens)
    assert counts[0] == counts[1] != 4


@pytest.mark.parametrize("way", ["looked up", "drafted"])
def test_drawn_tokens_are_the_same_of_a_seed(way):
    kwargs = {"assistant_model": drafting(llama())} if way == "drafted" else {}
    kwargs |= {"prompt_lookup_num_tokens": 3} if way == "looked up" else {}
    check(llama(), prompt().repeat(1, 2), max_new_tokens=9, do_sample=True, **kwargs)


def test_the_end_of_a_text():
    model, ids = llama(), prompt().repeat(1, 3)
    end = int(model.generate(ids, max_new_tokens=20, pad_token_id=0)[0, 25])
    check(model, ids, max_new_tokens=20, eos_token_id=end, prompt_lookup_num_tokens=4)


def test_the_last_position_of_a_model():
    """Nothing is filled up beyond the positions that have embeddings."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    ids, kwargs = prompt(length=4).repeat(1, 3), {"max_length": 32, "pad_token_id": 0}
    expected = model.generate(ids, eos_token_id=None, **kwargs)
    for more in ({"prompt_lookup_num_tokens": 5}, {"assistant_model": drafting(model, 6)}):
        actual = xla_dynamo.generate(model, ids, eos_token_id=None, **kwargs, **more)
        assert torch.equal(actual, expected)


def test_the_model_stays_as_it_was():
    model = llama()
    check(model, prompt(), max_new_tokens=4, prompt_lookup_num_tokens=3)
    assert "_get_candidate_generator" not in vars(model)
    check(model, prompt(2), max_new_tokens=4)


def test_models_with_an_encoder_are_refused():
    with pytest.raises(ValueError, match="a draft for a model with an encoder"):
        xla_dynamo.generate(encoder_decoder(), prompt(), prompt_lookup_num_tokens=3)


def test_assistants_that_read_the_models_states_are_refused():
    class Gemma4AssistantForCausalLM(transformers.LlamaForCausalLM):
        pass

    draft = Gemma4AssistantForCausalLM(llama().config)
    with pytest.raises(ValueError, match="an assistant that reads the model's states"):
        xla_dynamo.generate(llama(), prompt(), assistant_model=draft)


def test_older_releases_of_transformers_are_refused(monkeypatch):
    monkeypatch.delattr(transformers.Cache, "is_croppable")
    with pytest.raises(RuntimeError, match="24 or newer, or leave out"):
        xla_dynamo.generate(llama(), prompt(), prompt_lookup_num_tokens=3)


def test_a_users_own_method_is_called_and_stays():
    class Model:
        def ask(self, x):
            return x

    def doubled(ask):
        return lambda x: 2 * ask(x)

    model = Model()
    with method_replaced(model, "ask", doubled):
        assert model.ask(3) == 6
        with method_replaced(model, "ask", doubled):  # as another thread may
            assert model.ask(3) == 6
    assert "ask" not in vars(model)
    model.ask = own = lambda x: -x
    with method_replaced(model, "ask", doubled), method_replaced(model, "ask", doubled):
        assert model.ask(3) == -6
    assert model.ask is own
