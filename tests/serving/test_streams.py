"""The pieces of an answer while its tokens come, without a server."""

import asyncio
import types

import pytest
from transformers.cli.serving.utils import ReasoningText, _StreamError

from xla_dynamo.serving.sampling import Choosing, TokenLogprob
from xla_dynamo.serving.stops import StopFinder
from xla_dynamo.serving.streams import Stream
from xla_dynamo.serving.tiny_model import byte_tokenizer


class Parser:
    """Takes what comes in front of a "|" for reasoning, as templates of models say."""

    initial_events = ()
    field = "reasoning_content"

    def feed(self, text):
        if text == "|":
            self.field = "content"
            return []
        return [{"type": "region_chunk", "field": self.field, "text": text}]

    def finalize(self):
        return {}, [{"type": "region_chunk", "field": self.field, "text": "!"}]


def streamed(text, choosing, parser=None, error=None):
    """What comes of a text, a token at a time: the items of the queue, and the configuration."""
    tokenizer, config = byte_tokenizer(), types.SimpleNamespace(max_new_tokens=len(text))
    tokens = tokenizer(text)["input_ids"]

    async def run():
        stream = Stream(None, "x", tokenizer, config, choosing, parser)
        for n in range(1, len(tokens) + 1):
            is_last = n == len(tokens)
            output = types.SimpleNamespace(
                generated_tokens=tokens[:n],
                error=error if is_last else None,
                is_finished=lambda is_last=is_last: is_last,
            )
            stream.take(output)
        return [stream.queue.get_nowait() for _ in range(stream.queue.qsize())]

    return asyncio.run(run()), config


def test_letters_of_several_tokens_come_whole():
    found, config = streamed("é€😀", Choosing())
    assert found == ["é", "€", "😀", None]
    assert config.max_new_tokens == len("é€😀")


def test_reasoning_is_apart_and_may_have_what_stops_the_answer():
    choosing = Choosing(stops=StopFinder(["b"]), is_over=True)
    found, config = streamed("ab|xby", choosing, Parser())
    assert found == ["a", "b", "x", None]
    assert [isinstance(item, ReasoningText) for item in found] == [True, True, False, False]
    assert config.max_new_tokens is None


def test_what_a_parser_has_at_the_end_comes_too():
    assert streamed("a|x", Choosing(), Parser())[0] == ["a", "x", "!", None]


def test_tokens_are_told_with_the_text_that_they_are_in():
    tokens = byte_tokenizer()("aEN.")["input_ids"]
    noted = [TokenLogprob(token, -1.0, ()) for token in tokens]
    choosing = Choosing(stops=StopFinder(["END"]), top=0, noted=noted)
    (*pieces, end), _ = streamed("aEN.", choosing)
    assert (pieces, end) == (["a", "EN."], None)  # "EN" could have begun what stops it
    assert [[each.token for each in piece.noted] for piece in pieces] == [tokens[:1], tokens[1:]]
    assert [piece.offsets for piece in pieces] == [[0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("choosing", "error"), [(Choosing(), "no room"), (Choosing(error="no room"), None)]
)
def test_an_error_ends_the_stream(choosing, error):
    found, _ = streamed("a", choosing, error=error)
    assert found[0] == "a"
    assert isinstance(found[1], _StreamError)
    assert found[1].msg == "no room"
