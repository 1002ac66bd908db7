"""How likely the tokens of an answer were, as OpenAI's objects say it."""

from collections.abc import Callable, Sequence
from typing import Any

from xla_dynamo.serving.sampling import TokenLogprob

# The text of a token by itself.
TextOf = Callable[[int], str]


def of_chat(noted: Sequence[TokenLogprob], text_of: TextOf) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/chat/completions, or of a part of one in a stream."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = text_of(token)
        # A token of some of the bytes of a letter has no text by itself.
        raw = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": raw}

    return {
        "content": [
            {
                **one(each.token, each.logprob),
                "top_logprobs": [one(*pair) for pair in each.likeliest],
            }
            for each in noted
        ],
        "refusal": None,
    }


def of_completion(
    noted: Sequence[TokenLogprob], offsets: Sequence[int], text_of: TextOf
) -> dict[str, Any]:
    """`logprobs` of a choice of /v1/completions; `offsets` say where in the text tokens begin."""
    return {
        "tokens": [text_of(each.token) for each in noted],
        "token_logprobs": [each.logprob for each in noted],
        "top_logprobs": [
            {text_of(token): logprob for token, logprob in each.likeliest} for each in noted
        ],
        "text_offset": list(offsets),
    }
