"""`xla-dynamo serve` answers as `generate` does, and refuses what it cannot do."""

import concurrent.futures
import json

import pytest

from tests.documentation.blocks import blocks
from tests.serving.running import events

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is it?"}]


def test_concurrent_requests_of_mixed_lengths_have_the_answers_of_generate(served, alone):
    """More than a batch takes, prompts of several pieces, and ones that begin alike."""
    alike = "to be or not to be? " * 4
    asked = [("x", 20), ("hello there", 3), ("a" * 90, 30), (alike, 7), (alike + "or", 40),
             ("1 2 3", 1), ("é€😀", 12), ("y" * 40, 60)]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda request: served.completed(*request), asked))
    assert found == [alone.completed(*request) for request in asked]
    assert len(set(found)) > 4


def test_a_chat(served, alone):
    body = {"messages": MESSAGES, "max_completion_tokens": 9, "model": "tiny", "temperature": 0}
    status, found = served.ask("/v1/chat/completions", body)
    assert status == 200, found
    answer = alone.chatted(MESSAGES, 9)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": answer}
    assert found["object"] == "chat.completion"
    assert found["model"] == "tiny"
    assert found["usage"]["completion_tokens"] == 9


def test_the_question_of_the_tutorial(served, capsys):
    """The block of docs/tutorial.md that asks a server, sent to the one of the tests."""
    served.connect().close()
    (block,) = (b for b in blocks("docs/tutorial.md") if b.run_by and "urllib" in b.code)
    here = block.code.replace("localhost:8000", f"127.0.0.1:{served.port}")
    assert here != block.code
    names = {}
    exec(compile(here, "docs/tutorial.md", "exec"), names)
    assert names["choice"]["finish_reason"] in ("length", "stop")
    assert capsys.readouterr().out.strip().endswith(names["choice"]["finish_reason"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams(served, alone, path):
    """The pieces are the answer, the last but one says why it ended, and the last that it did."""
    is_chat = path == "/v1/chat/completions"
    asked = {"messages": MESSAGES} if is_chat else {"prompt": "once"}
    body = {**asked, "max_tokens": 12, "stream": True, "temperature": 0}
    _, response = served.send(path, body)
    assert response.getheader("content-type").startswith("text/event-stream")
    *pieces, last, end = events(response)
    choices = [piece["choices"][0] for piece in pieces]
    texts = [c["delta"].get("content", "") if is_chat else c["text"] for c in choices]
    expected = alone.chatted(MESSAGES, 12) if is_chat else alone.completed("once", 12)
    assert "".join(texts) == expected
    assert len([text for text in texts if text]) > 3
    assert last["choices"][0]["finish_reason"] == "length"
    assert end == "[DONE]"


def test_a_stream_of_one_token(served, alone):
    """Its first result is its last: nobody may miss it."""
    body = {"prompt": "q", "max_tokens": 1, "stream": True, "temperature": 0}
    for _ in range(20):
        _, response = served.send("/v1/completions", body)
        first, *_ = events(response)
        assert first["choices"][0]["text"] == alone.completed("q", 1)


def test_openais_own_client(served, alone):
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["tiny"]
    given = {"model": "tiny", "messages": MESSAGES, "max_tokens": 9, "temperature": 0}
    expected = alone.chatted(MESSAGES, 9)
    assert client.chat.completions.create(**given).choices[0].message.content == expected
    pieces = client.chat.completions.create(**given, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == expected
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.chat.completions.create(**{**given, "model": "gpt-5"})


def test_draws_depend_on_the_seed_and_the_request_alone(served):
    """Beside others that take the likeliest token, and with other temperatures."""

    def drawn(seed, temperature=1.5):
        return served.completed("draw", 24, seed=seed, temperature=temperature, top_p=0.95)

    first = drawn(1)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        beside = pool.submit(served.completed, "x", 60)
        again, other = pool.submit(drawn, 1), pool.submit(drawn, 2)
        assert again.result() == first
        assert other.result() != first
        assert beside.result() == served.completed("x", 60)
    assert drawn(1, temperature=1e-6) == served.completed("draw", 24)


BAD = [
    (b'{"prompt": "x"', 400, "not an object of JSON"),
    (b"[]", 400, "not an object of JSON"),
    (b"\xff\xfe", 400, "body"),
    (b'{"prompt": "\\ud800"}', 400, "surrogate"),
    (b"[" * 100_000, 400, "body"),
    (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", 400, "body"),
    ({}, 400, "prompt"),
    ({"prompt": ""}, 400, "no token"),
    ({"prompt": 5}, 400, "prompt"),
    ({"prompt": ["x"]}, 400, "prompt"),
    ({"prompt": "x", "max_tokens": "5"}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": "x", "max_tokens": 10**6}, 400, "127 at most"),
    ({"prompt": "x", "max_tokens": True}, 400, "max_tokens"),
    ({"prompt": "x" * 100, "max_tokens": 100}, 400, "128 at most"),
    ({"prompt": "x" * 128}, 400, "the prompt has 128 tokens"),
    ({"prompt": "x" * 1_000_000}, 400, "the prompt has 1000000 tokens"),
    ({"prompt": "x" * (1 << 20)}, 413, "bytes"),
    ({"prompt": "x", "temperature": -1}, 400, "temperature"),
    ({"prompt": "x", "temperature": "hot"}, 400, "temperature"),
    (b'{"prompt": "x", "temperature": NaN}', 400, "temperature"),
    ({"prompt": "x", "top_p": 0}, 400, "top_p"),
    ({"prompt": "x", "seed": 1 << 70}, 400, "seed"),
    ({"prompt": "x", "stream": "yes"}, 400, "stream"),
    ({"prompt": "x", "n": 0}, 400, "n"),
    ({"prompt": "x", "n": 9}, 400, "n"),
    ({"prompt": "x", "best_of": 2}, 400, "best_of is not supported"),
    ({"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
    ({"prompt": "x", "stop": ""}, 400, "stop"),
    ({"prompt": "x", "stop": 5}, 400, "stop"),
    ({"prompt": "x", "presence_penalty": 2.5}, 400, "presence_penalty"),
    ({"prompt": "x", "logit_bias": {"5000": 1}}, 400, "'5000' is no token of this model"),
    ({"prompt": "x", "logit_bias": {"a": 1}}, 400, "'a' is no token of this model"),
    ({"prompt": "x", "logit_bias": {"5": 101}}, 400, "logit_bias.5"),
    ({"prompt": "x", "logprobs": 6}, 400, "logprobs"),
    ({"prompt": "x", "logprobs": True}, 400, "logprobs"),
    ({"prompt": "x", "generation_config": "{}"}, 400, "generation_config"),
    ({"prompt": "x", "model": "gpt-5"}, 404, "is not served here"),
    ({"prompt": "x", "model": ["tiny"]}, 400, "model"),
]


def of_schema(schema):
    """A chat whose answer has to fit a schema."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": MESSAGES, "response_format": wanted}


BAD_CHATS = [
    ({}, 400, "messages"),
    ({"messages": []}, 400, "messages"),
    ({"messages": "hi"}, 400, "messages"),
    ({"messages": [{}]}, 400, "messages.0.role"),
    ({"messages": [{"role": "king", "content": "hi"}]}, 400, "role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "content"),
    ({"messages": [{"role": "user", "content": {"a": 1}}]}, 400, "content"),
    ({"messages": MESSAGES, "top_logprobs": 2}, 400, "top_logprobs needs logprobs"),
    ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
    ({"messages": MESSAGES, "response_format": {"type": "xml"}}, 400, "response_format"),
    ({"messages": MESSAGES, "response_format": {"type": "json_schema"}}, 400, "json_schema"),
    (of_schema({"type": "objct"}), 400, "Invalid type: objct"),
    (of_schema({"properties": 3}), 400, "properties must be an object"),
    (of_schema({"$ref": "#/nowhere"}), 400, "'/nowhere' does not exist"),
    (of_schema({"type": "string", "pattern": "("}), 400, "unclosed group"),
    (of_schema({"not": {"type": "string"}}), 400, 'Unimplemented keys: ["not"]'),
    (of_schema({"type": "string", "minLength": 3, "maxLength": 2}), 400, "schema"),
]


@pytest.mark.parametrize(
    ("path", "cases"), [("/v1/completions", BAD), ("/v1/chat/completions", BAD_CHATS)]
)
def test_what_is_wrong_is_a_clear_refusal(served, alone, path, cases):
    for body, status, said in cases:
        for stream in (False, True) if isinstance(body, dict) and "stream" not in body else (None,):
            given = body if stream is None else {**body, "stream": stream}
            found, answer = served.ask(path, given)
            error = answer["error"]
            assert (found, set(error)) == (status, {"message", "type", "param", "code"}), answer
            assert said in error["message"], answer
    assert served.completed("x", 5) == alone.completed("x", 5)


def test_other_paths_and_methods(served):
    assert served.ask("/v1/models")[1]["data"][0]["id"] == "tiny"
    for path in ("/", "/reset", "/load_model", "/v1/responses", "/docs", "/v1/systemone"):
        assert served.ask(path, {"model": "tiny"})[0] == 404
    assert served.ask("/v1/completions")[0] == 405


def test_a_client_that_goes_away_is_forgotten(served, alone):
    """In a stream behind its first token, and in one piece: the worker is free for others."""
    _leave_until_noticed(served, lambda connection: connection.getresponse().readline(), True)
    _leave_until_noticed(served, lambda _: None, False)
    assert served.metrics()["vllm:kv_cache_usage_perc"] == 0
    assert served.completed("next", 8) == alone.completed("next", 8)


def _leave_until_noticed(served, wait, is_stream):
    """Ask and go away, until the server was slower than the client: its answer is a short one."""
    body = {"prompt": "leave", "max_tokens": 120, "stream": is_stream, "temperature": 0}
    raw = json.dumps(body).encode()
    for _ in range(30):
        before = _ended(served)
        connection = served.connect()
        connection.request("POST", "/v1/completions", raw, {"content-type": "application/json"})
        wait(connection)
        served.until(lambda: _in_work(served) or _ended(served) != before)  # noqa: B023
        connection.sock.close()
        connection.close()
        served.until(lambda: not _in_work(served) and _ended(served) != before)  # noqa: B023
        after = _ended(served)
        assert sum(after.values()) == sum(before.values()) + 1
        if after["abort"] > before["abort"]:
            return
    raise AssertionError("30 requests were answered before the client could leave")


def _in_work(served):
    told = served.metrics()
    return told["vllm:num_requests_running"] + told["vllm:num_requests_waiting"] > 0


def _ended(served):
    """How many requests have ended, by the reason."""
    told = served.metrics()
    return {r: told[f"vllm:request_success_total{{{r}}}"] for r in ("stop", "length", "abort")}


def test_metrics(served):
    prompt = "a prompt of more than one page of thirty-two tokens"
    before = served.metrics()
    served.completed(prompt, 10)
    served.completed(prompt, 10)
    served.ask("/v1/completions", {"prompt": 1})
    after = served.metrics()

    def more(name):
        return after[name] - before.get(name, 0)

    assert more("vllm:prompt_tokens_total") == 2 * len(prompt)
    assert more("vllm:generation_tokens_total") == 20
    assert more("vllm:prefix_cache_queries_total") == 2 * len(prompt)
    assert more("vllm:prefix_cache_hits_total") in (32, 64)
    assert more("vllm:time_to_first_token_seconds_count") == 2
    assert more("vllm:inter_token_latency_seconds_count") == 18
    assert more("vllm:e2e_request_latency_seconds_count") == 2
    assert more("vllm:request_success_total{length}") == 2
    assert more("xla_dynamo:requests_refused_total{400}") == 1
    assert after["vllm:num_requests_waiting"] == after["vllm:num_requests_running"] == 0
    assert after["xla_dynamo:compilations_since_warm_up"] == 0
