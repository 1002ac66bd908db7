"""The text of an answer while it comes: what may be sent of it, and how likely its tokens were."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers.cli.serving.utils import CBStreamer, _StreamError, response_events_to_chunks

from xla_dynamo.serving.sampling import Choosing, TokenLogprob
from xla_dynamo.serving.stops import StopFinder


def pieces_of(tokenizer: Any) -> Callable[[int], str]:
    """What says, for one token after another, which text each adds to an answer."""
    stream, backend = DecodeStream([], skip_special_tokens=True), tokenizer.backend_tokenizer
    return lambda token: stream.step(backend, token) or ""


class Piece(str):
    """A piece of an answer.

    Attributes:
        noted: how likely its tokens were, if that is asked for.
        offsets: where in the answer each of them begins.
    """

    noted: Sequence[TokenLogprob] = ()
    offsets: Sequence[int] = ()


class Stream(CBStreamer):
    """Brings the tokens of a request as pieces of text into a queue, and None at the end."""

    def __init__(
        self,
        engine: Any,
        request_id: str,
        tokenizer: Any,
        config: Any,
        choosing: Choosing,
        parser: Any,
    ) -> None:
        """Take the request, and what takes its text apart, or None.

        Of `config`, transformers' `GenerationConfig`, `max_new_tokens` becomes None if the answer
        ends for another reason: transformers asks it why.
        """
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        backend = tokenizer.backend_tokenizer
        super().__init__(engine, request_id, backend, loop, self.queue, parser)
        self._config, self._choosing = config, choosing
        self._finder = StopFinder(choosing.stops.strings if choosing.stops else ())
        self._offsets: list[int] = []
        self._length = self._told = 0

    def take(self, output: Any) -> None:
        """Take what transformers says of the request, with all of its tokens so far."""
        try:
            self.put(output)
            if error := output.error or self._choosing.error:
                self.queue.put_nowait(_StreamError(error))
                self.queue.put_nowait(None)
            elif output.is_finished():
                self.end()
        except Exception as error:  # it must not be lost with the one who called
            self.queue.put_nowait(_StreamError(f"{type(error).__name__}: {error}"))

    def put(self, output: Any) -> None:
        """Bring the new tokens of an output."""
        tokens = output.generated_tokens[self.total_tokens :]
        for token in tokens:
            self.total_tokens += 1
            self._offsets.append(self._length)
            text = self._decode_stream.step(self._tokenizer, token) or ""
            self._length += len(text)
            events = [text] if self._parser is None else self._parsed(self._parser.feed(text))
            for item in events:
                self._send(item)

    def end(self) -> None:
        """Bring what was held back, and None."""
        if self._choosing.is_over:
            self._config.max_new_tokens = None
        if self._parser is not None:
            for item in self._final_events():
                self._send(item)
        self._send_text(self._finder.rest(), is_last=not self._finder.is_found)
        self.queue.put_nowait(None)

    def _parsed(self, events: Any) -> list[Any]:
        return list(response_events_to_chunks(events))

    def _final_events(self) -> list[Any]:
        try:
            return self._parsed(self._parser.finalize()[1])
        except (ValueError, RuntimeError):  # the answer ended inside of a call of a tool
            return []

    def _send(self, item: Any) -> None:
        if type(item) is str:
            self._send_text(self._finder.feed(item), is_last=False)
        elif not self._finder.is_found:
            self.queue.put_nowait(item)

    def _send_text(self, text: str, is_last: bool) -> None:
        piece = Piece(text)
        if self._choosing.top is not None:
            upto = self._told
            sent = len(self._finder.passed)
            while upto < self.total_tokens and (is_last or self._offsets[upto] < sent):
                upto += 1
            piece.noted = self._choosing.noted[self._told : upto]
            piece.offsets = self._offsets[self._told : upto]
            self._told = upto
        if piece or piece.noted:
            self.queue.put_nowait(piece)
