"""What a request may say, without a server."""

import pytest

from xla_dynamo.serving.request_forms import (
    Bounds,
    ChatForm,
    CompletionForm,
    RequestError,
    answer_tokens,
    checked,
)

BOUNDS = Bounds(name="m", longest=100, prompt=80, answer=50)


def test_what_changes_nothing_is_accepted():
    neutral = {"n": 1, "stop": None, "logprobs": False, "frequency_penalty": 0, "user": "me"}
    form = checked(CompletionForm, {"prompt": "x", **neutral, "temperature": 1}, BOUNDS)
    assert (form.prompt, form.temperature, form.asked_tokens()) == ("x", 1.0, None)


def test_the_newer_name_of_max_tokens_goes_first():
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    body = {"messages": [message], "max_tokens": 9, "max_completion_tokens": 7, "model": "m"}
    assert checked(ChatForm, body, BOUNDS).asked_tokens() == 7


@pytest.mark.parametrize(
    ("prompt", "asked", "given"),
    [(1, None, 50), (60, None, 40), (80, 20, 20), (60, 40, 40)],
)
def test_answers_fit_behind_their_prompts(prompt, asked, given):
    assert answer_tokens(prompt, asked, BOUNDS) == given


@pytest.mark.parametrize(("prompt", "asked"), [(0, None), (81, 1), (60, 41)])
def test_what_does_not_fit(prompt, asked):
    with pytest.raises(RequestError, match=r"no token|at most") as raised:
        answer_tokens(prompt, asked, BOUNDS)
    assert raised.value.status == 400


def test_errors_are_openais():
    with pytest.raises(RequestError, match="extra") as raised:
        checked(CompletionForm, {"prompt": "x", "extra": 1}, BOUNDS)
    error = raised.value.body()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "extra")
