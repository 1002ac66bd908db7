"""What a request says of its tokens: stop strings, schemas, penalties, bias, and how likely."""

import concurrent.futures
import json
from typing import Literal

import pydantic
import pytest
import torch
from pydantic import Field

from tests.serving.running import events

PATHS = ["/v1/completions", "/v1/chat/completions"]
MESSAGES = [{"role": "user", "content": "Who is it?"}]


class Owner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = Field(max_length=3)


class Pet(pydantic.BaseModel):
    """What schemas have: nested objects, bounds, choices, lists, and nothing more."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    owner: Owner | None
    colors: list[Literal["red", "black"]] = Field(max_length=2)


def answered(served, path, stream=False, **more):
    """The text of an answer, and its last choice, or its only one."""
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": "once"}
    body = {**asked, "temperature": 0, "stream": stream, **more}
    if not stream:
        status, found = served.ask(path, body)
        assert status == 200, found
        choice = found["choices"][0]
        text = choice["message"]["content"] if "chat" in path else choice["text"]
        return text, {**choice, "usage": found["usage"]}
    *pieces, last, end = events(served.send(path, body)[1])
    assert end == "[DONE]"
    choices = [piece["choices"][0] for piece in pieces]
    texts = [c["delta"].get("content") or "" if "chat" in path else c["text"] for c in choices]
    noted = [c["logprobs"] for c in choices if c.get("logprobs")]
    return "".join(texts), {**last["choices"][0], "usage": last["usage"], "noted": noted}


def whole(alone, path, tokens):
    return alone.chatted(MESSAGES, tokens) if "chat" in path else alone.completed("once", tokens)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_stop_strings(served, alone, path, stream):
    """The text ends before the first one, and so does the work."""
    text = whole(alone, path, 60)
    for stop in (text[20:23], [text[41:44], "never there", text[20]]):
        stops = [stop] if isinstance(stop, str) else stop
        end = min(place for s in stops if (place := text.find(s)) >= 0)
        found, last = answered(served, path, stream, max_tokens=60, stop=stop)
        assert found == text[:end]
        assert last["finish_reason"] == "stop"
        assert last["usage"]["completion_tokens"] <= end + 3  # a token is a letter
    # One that is begun at the end is no stop string, and is sent.
    found, last = answered(served, path, stream, max_tokens=60, stop=text[-2:] + "\x00")
    assert (found, last["finish_reason"]) == (text, "length")
    # One that ends with the last token that was asked for is one.
    most = text.find(text[20:23]) + 3
    found, last = answered(served, path, stream, max_tokens=most, stop=text[20:23])
    assert (found, last["finish_reason"]) == (text[: most - 3], "stop")


def test_a_stopped_request_costs_no_more_tokens(served, alone):
    text, before = alone.completed("once", 60), served.metrics()
    end = text.find(text[10])
    answered(served, PATHS[0], max_tokens=60, stop=text[10])
    after = served.metrics()
    name, stopped = "vllm:generation_tokens_total", "vllm:request_success_total{stop}"
    assert after[name] - before[name] == end + 1
    assert after[stopped] - before[stopped] == 1
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0


def test_answers_fit_their_schema_beside_others(served, alone):
    """Whatever the temperature; in streams too; the others have the answers of `generate`."""
    wanted = {"name": "pet", "schema": Pet.model_json_schema(), "strict": True}
    form = {"type": "json_schema", "json_schema": wanted}

    def pet(n):
        how = {"temperature": n % 3 * 0.7, "seed": n}
        return answered(served, PATHS[n % 2], n % 4 < 2, response_format=form, **how)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        pets = [pool.submit(pet, n) for n in range(12)]
        others = [pool.submit(served.completed, f"beside {n}", 40) for n in range(6)]
        found = [future.result() for future in pets]
        texts = [future.result() for future in others]
    for text, last in found:
        Pet.model_validate_json(text)
        assert last["finish_reason"] == "stop"
    assert len({text for text, _ in found}) > 3
    assert texts == [alone.completed(f"beside {n}", 40) for n in range(6)]
    assert served.metrics()["xla_dynamo:compilations_since_warm_up"] == 0


def test_any_object_of_json(served, alone):
    """Such as a model writes that likes to close what it has opened."""
    ends = {str(alone.tokenizer.convert_tokens_to_ids(letter)): 30 for letter in '"}]:'}
    ended = 0
    for seed in range(12):
        how = {"temperature": 1.0, "seed": seed, "max_tokens": 100, "logit_bias": ends}
        form = {"type": "json_object"}
        text, last = answered(served, PATHS[0], response_format=form, **how)
        assert text.startswith("{")
        if last["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)
            ended += 1
    assert ended > 3


def test_a_class_is_a_schema_for_openais_client(served):
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none")
    found = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Pet, max_tokens=100
    )
    assert isinstance(found.choices[0].message.parsed, Pet)


def test_an_answer_that_its_bound_cuts_says_so(served):
    form = {"type": "json_object"}
    text, last = answered(served, PATHS[1], response_format=form, max_tokens=1)
    assert (text, last["finish_reason"]) == ("{", "length")


def reference(alone, tokens, change=None):
    """The tokens behind "once", and the logits that each was chosen from, one after another."""
    ids, found = alone.tokenizer("once")["input_ids"], []
    logits = []
    for _ in range(tokens):
        with torch.no_grad():
            row = alone.model(torch.tensor([ids + found])).logits[0, -1]
        logits.append(row)
        found.append(int((row if change is None else change(row.clone(), found)).argmax()))
    return found, logits


@pytest.mark.parametrize("stream", [False, True])
def test_how_likely_tokens_are(served, alone, stream):
    tokens, logits = reference(alone, 8)
    expected = [row.log_softmax(-1) for row in logits]
    _, last = answered(served, PATHS[0], stream, max_tokens=8, logprobs=2)
    parts = last["noted"] if stream else [last["logprobs"]]
    texts = alone.tokenizer.convert_ids_to_tokens(tokens)
    assert [t for part in parts for t in part["tokens"]] == [t.replace("Ġ", " ") for t in texts]
    told = [p for part in parts for p in part["token_logprobs"]]
    found = [float(row[t]) for row, t in zip(expected, tokens, strict=True)]
    assert told == pytest.approx(found, abs=1e-4)
    best = [sorted(top.values(), reverse=True) for part in parts for top in part["top_logprobs"]]
    for one, row in zip(best, expected, strict=True):
        assert one == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
    assert [n for part in parts for n in part["text_offset"]] == list(range(8))


@pytest.mark.parametrize("stream", [False, True])
def test_how_likely_the_tokens_of_a_chat_are(served, stream):
    """None of a stop string, nor of what is held back for one."""
    text, _ = answered(served, PATHS[1], max_tokens=20)
    stop = text[9:12]
    how = {"logprobs": True, "top_logprobs": 3, "max_tokens": 20, "stop": stop}
    found, last = answered(served, PATHS[1], stream, **how)
    parts = last["noted"] if stream else [last["logprobs"]]
    noted = [each for part in parts for each in part["content"]]
    assert "".join(each["token"] for each in noted) == found == text[: text.find(stop)]
    assert all(bytes(each["bytes"]).decode() == each["token"] for each in noted)
    assert all(len(each["top_logprobs"]) == 3 for each in noted)
    assert all(each["logprob"] == each["top_logprobs"][0]["logprob"] for each in noted)


def test_bias_and_penalties(served, alone):
    plain, _ = reference(alone, 20)

    def text(tokens):
        return alone.tokenizer.decode(tokens, skip_special_tokens=True)

    def penalized(row, before):
        for token in before:
            row[token] -= 1.5
        for token in set(before):
            row[token] -= 0.5
        return row

    expected, _ = reference(alone, 20, penalized)
    assert expected != plain
    how = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "max_tokens": 20}
    assert answered(served, PATHS[0], **how)[0] == text(expected)

    def biased(row, _):
        row[plain[0]] -= 100
        return row

    expected, _ = reference(alone, 20, biased)
    how = {"logit_bias": {str(plain[0]): -100}, "max_tokens": 20}
    assert answered(served, PATHS[0], **how)[0] == text(expected)
    letter = alone.tokenizer.convert_tokens_to_ids("q")
    how = {"logit_bias": {str(letter): 100}, "max_tokens": 5}
    assert answered(served, PATHS[1], **how)[0] == "qqqqq"


@pytest.mark.parametrize("path", PATHS)
def test_several_choices(served, path):
    """Each is what its seed alone gives, in one piece and in streams, of which one is cut."""
    asked = {"messages": MESSAGES} if "chat" in path else {"prompt": "once"}
    how = {**asked, "temperature": 1.5, "max_tokens": 15, "stop": "a"}
    alone = [answered(served, path, **how, seed=7 + n) for n in range(3)]
    assert len({text for text, _ in alone}) == 3
    status, found = served.ask(path, {**how, "seed": 7, "n": 3})
    assert status == 200, found
    texts = [c["message"]["content"] if "chat" in path else c["text"] for c in found["choices"]]
    assert texts == [text for text, _ in alone]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    ends = [choice["finish_reason"] for choice in found["choices"]]
    assert ends == [last["finish_reason"] for _, last in alone]
    used = sum(last["usage"]["completion_tokens"] for _, last in alone)
    assert found["usage"]["completion_tokens"] == used
    *pieces, end = events(served.send(path, {**how, "seed": 7, "n": 3, "stream": True})[1])
    assert end == "[DONE]"
    assert len({piece["id"] for piece in pieces}) == 1
    texts = [""] * 3
    for piece in pieces:
        (choice,) = piece["choices"]
        text = choice["delta"].get("content") if "chat" in path else choice["text"]
        texts[choice["index"]] += text or ""
    assert texts == [text for text, _ in alone]


def test_all_choices_end_with_their_client(served):
    before = served.metrics()
    connection, response = served.send(
        PATHS[0], {"prompt": "leave", "max_tokens": 120, "n": 3, "stream": True, "temperature": 0}
    )
    response.readline()
    connection.sock.close()
    connection.close()
    response.close()
    aborted = "vllm:request_success_total{abort}"
    served.until(lambda: served.metrics()[aborted] == before[aborted] + 3)
    served.until(lambda: served.metrics()["vllm:num_requests_running"] == 0)
