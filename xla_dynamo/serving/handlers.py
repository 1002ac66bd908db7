"""transformers' handlers of requests, for one model that is ready, and within bounds."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import jinja2
from starlette.responses import JSONResponse, Response, StreamingResponse
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import (
    BaseHandler,
    CBGenerateManager,
    CBWorkerDeadError,
    GenerationState,
)

from xla_dynamo.serving import logprobs
from xla_dynamo.serving.choices import events_of, merged_bodies, merged_streams
from xla_dynamo.serving.engine import Engine
from xla_dynamo.serving.grammars import Grammars, SchemaError
from xla_dynamo.serving.request_forms import (
    Bounds,
    ChatForm,
    CompletionForm,
    Form,
    RequestError,
    answer_tokens,
    checked,
    error_body,
)
from xla_dynamo.serving.sampling import Choosing, Sampling, TokenLogprob
from xla_dynamo.serving.stops import StopFinder
from xla_dynamo.serving.streams import Stream, pieces_of

_ERROR = 'data: {"error": "'


class OneModel(ModelManager):
    """The one model of a server, which is never unloaded.

    Attributes:
        grammars: of its structured answers.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        """Take a name, a model and its tokenizer."""
        super().__init__(device="cpu")
        self.force_model = name
        self._pair = model, tokenizer
        ends = model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else ends or []
        size = model.config.get_text_config().vocab_size
        self.grammars = Grammars(tokenizer, size, [end for end in ends if end >= 0])

    def load_model_and_processor(self, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The model and the tokenizer."""
        return self._pair

    @staticmethod
    def process_model_name(model_id: str) -> str:
        """The name itself: it has no revision."""
        return model_id

    def list_models(self, cache_dir: str | None = None) -> list[dict[str, Any]]:
        """The one model, as OpenAI lists it."""
        return [{"id": self.force_model, "object": "model", "created": 0, "owned_by": "user"}]

    def shutdown(self) -> None:
        """Nothing: the process ends."""


class OneEngine(GenerationState):
    """All requests go to one engine."""

    def __init__(self, engine: Engine, bounds: Bounds) -> None:
        """Take the engine, and what a request may ask."""
        super().__init__(continuous_batching=True)
        self.engine = engine
        self._cb_manager = _Generation(engine, bounds)

    def get_manager(self, model_id: str, use_cb: bool = False) -> "_Generation":
        """What generates, whatever the model."""
        return self._cb_manager


class _Generation(CBGenerateManager):
    def __init__(self, engine: Engine, bounds: Bounds) -> None:
        super().__init__()
        self._cb: Any = engine
        self._bounds = bounds

    def init_cb(self, model: Any, gen_config: Any) -> None:
        """Nothing: the engine is there."""

    def is_alive(self) -> bool:
        return bool(self._cb.is_alive())

    def _begin(
        self, inputs: Any, config: Any, request_id: str, streaming: bool
    ) -> tuple[Choosing, Callable[[], None]]:
        """How the tokens of a request are chosen, and what begins it within its bounds."""
        self._check_alive(request_id)
        asked = config.max_new_tokens if config.is_asked_for else None
        config.max_new_tokens = answer_tokens(len(inputs["input_ids"]), asked, self._bounds)
        choosing = self._cb.asked.get(request_id) or Choosing()
        choosing.sampling = Sampling.of(config, config.seed)
        add = functools.partial(
            self._cb.add_request,
            inputs["input_ids"],
            request_id=request_id,
            choosing=None if choosing.is_plain else choosing,
            streaming=streaming,
            max_new_tokens=config.max_new_tokens,
            eos_token_id=config.eos_token_id,
        )
        return choosing, add

    def generate_streaming(
        self,
        model: Any,
        processor: Any,
        inputs: Any,
        gen_config: Any,
        request_id: str,
        response_parser: Any = None,
    ) -> Any:
        choosing, add = self._begin(inputs, gen_config, request_id, streaming=True)
        add()
        stream = Stream(self._cb, request_id, processor, gen_config, choosing, response_parser)
        self._cb.register_result_handler(request_id, stream.take)
        return stream.queue, stream

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str
    ) -> Any:
        choosing, add = self._begin(inputs, gen_config, request_id, streaming=False)
        came: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def take(output: Any) -> None:
            if not came.done():
                came.set_result(output)

        self._cb.register_result_handler(request_id, take)
        add()
        output = await came
        if error := output.error or choosing.error:
            if not self.is_alive():
                raise CBWorkerDeadError(f"the worker has died: {error}")
            raise RequestError(503, error, code="generation_failed")
        tokens = output.generated_tokens
        text = processor.decode(tokens, skip_special_tokens=True)
        if choosing.is_over:
            gen_config.max_new_tokens = None  # by which transformers tells why the answer ended
        if choosing.stops is not None and choosing.stops.is_found:
            text = choosing.stops.passed
        return text, len(inputs["input_ids"]), tokens


# What transformers' handlers are given of a form; the engine sees to the rest.
_OF_TRANSFORMERS = frozenset(
    {"model", "prompt", "suffix", "messages", "tools", "chat_template_kwargs"}
    | {"max_tokens", "temperature", "top_p", "seed", "stream"}
)


class _Checked(BaseHandler):
    """A handler that answers only what it can."""

    form: type[Form]

    def __init__(self, model_manager: OneModel, state: OneEngine, bounds: Bounds) -> None:
        super().__init__(model_manager, state)
        self._engine, self._bounds = state.engine, bounds
        model, self._tokenizer = model_manager.load_model_and_processor()
        self._vocabulary = model.config.get_text_config().vocab_size
        self._grammars = model_manager.grammars

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Response:
        """Answer a request.

        Raises:
            RequestError: it asks for something that is wrong, or too much.
        """
        form = checked(self.form, body, self._bounds)
        number = form.n or 1
        names = [f"{request_id}-{i}" for i in range(number)] if number > 1 else [request_id]
        self._engine.begin_choices(request_id, names)
        tasks = [
            asyncio.ensure_future(self._choice(form, name, number))
            for number, name in enumerate(names)
        ]
        try:
            responses = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # those that one which has failed has left
                task.cancel()
        if isinstance(responses[0], StreamingResponse):
            streams = [response.body_iterator for response in responses]
            parts = streams[0] if len(streams) == 1 else merged_streams(streams, request_id)
            return StreamingResponse(_with_end(parts), media_type="text/event-stream")
        if len(responses) == 1:
            return responses[0]
        return JSONResponse(merged_bodies([json.loads(r.body) for r in responses], request_id))

    async def _choice(self, form: Form, request_id: str, number: int) -> Any:
        """The answer with one choice."""
        choosing = await self._choosing(form)
        self._engine.asked[request_id] = choosing
        plain = form.model_dump(exclude_none=True, include=set(_OF_TRANSFORMERS))
        plain["max_tokens"] = form.asked_tokens()
        if form.seed is not None:
            plain["seed"] = form.seed_of(number)
        try:
            response = await super().handle_request(plain, request_id)  # type: ignore[misc]
        except (jinja2.TemplateError, ValueError, KeyError, TypeError) as error:
            # A chat template raises what it likes, and does not know all roles and contents.
            message = f"the messages do not fit the model's chat template: {error}"
            raise RequestError(400, message, "messages") from error
        is_whole = not isinstance(response, StreamingResponse)
        if is_whole and (choosing.stops is not None or choosing.top is not None):
            told = json.loads(response.body)
            self._complete(told["choices"][0], choosing)
            return JSONResponse(told)
        return response

    async def _choosing(self, form: Form) -> Choosing:
        """How the tokens of a request are chosen; its sampling comes with its configuration."""
        found = Choosing(
            bias=form.bias(self._vocabulary),
            presence=form.presence_penalty or 0.0,
            frequency=form.frequency_penalty or 0.0,
        )
        if (top := form.likeliest()) is not None:
            found.top = min(top, self._vocabulary)
        if stops := form.stops():
            found.stops, found.text_of = StopFinder(stops), pieces_of(self._tokenizer)
        if (schema := form.schema_wanted()) is not None:
            try:
                found.grammar = await asyncio.to_thread(self._grammars.of, schema)
            except SchemaError as error:
                message = f"the schema cannot be used: {error}"
                raise RequestError(400, message, "response_format", "invalid_schema") from error
        return found

    def _complete(self, choice: dict[str, Any], choosing: Choosing) -> None:
        """Add to a choice what transformers does not know of."""
        noted = choosing.noted
        if noted:
            pieces, offsets, end = pieces_of(self._tokenizer), [], 0
            for each in noted:
                offsets.append(end)
                end += len(pieces(each.token))
            if choosing.stops is not None and choosing.stops.is_found:
                kept = sum(offset < len(choosing.stops.passed) for offset in offsets)
                noted, offsets = noted[:kept], offsets[:kept]
            choice["logprobs"] = self._logprobs(noted, offsets)

    def _logprobs(self, noted: Sequence[TokenLogprob], offsets: Sequence[int]) -> Any:
        raise NotImplementedError

    def _text_of(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))

    def _with_logprobs(self, event: str, piece: Any) -> str:
        """An event of a stream, with how likely the tokens of its piece were."""
        if not getattr(piece, "noted", None):
            return event
        told = json.loads(event.removeprefix("data: "))
        told["choices"][0]["logprobs"] = self._logprobs(piece.noted, piece.offsets)
        return f"data: {json.dumps(told)}\n\n"

    def _build_generation_config(self, body: dict[str, Any], own: Any, use_cb: bool = False) -> Any:
        """The configuration of a request; what it does not say is as the model has it."""
        seed = body.pop("seed", None)
        config = super()._build_generation_config(body, own, use_cb=use_cb)
        config.seed = seed
        config.is_asked_for = body.get("max_tokens") is not None
        if body.get("temperature"):
            config.do_sample = True
        return config


async def _with_end(parts: Any) -> AsyncIterator[Any]:
    """The events of a stream, and the one that says to OpenAI's clients that it is over."""
    async with contextlib.aclosing(events_of(parts)) as events:
        async for part in events:
            if part.startswith(_ERROR):  # a text that is not quoted as JSON has it
                message = part.removeprefix(_ERROR).rstrip().removesuffix('"}')
                yield f"data: {json.dumps(error_body(500, message))}\n\n"
            else:
                yield part
    yield "data: [DONE]\n\n"


class Chat(_Checked, ChatCompletionHandler):
    """/v1/chat/completions."""

    form = ChatForm

    def _complete(self, choice: dict[str, Any], choosing: Choosing) -> None:
        super()._complete(choice, choosing)
        message = choice["message"]
        if choosing.stops is not None and isinstance(message.get("content"), str):
            # A model's own template may have taken it from the tokens.
            finder = StopFinder(choosing.stops.strings)
            message["content"] = finder.feed(message["content"]) + finder.rest()

    def _logprobs(self, noted: Sequence[TokenLogprob], offsets: Sequence[int]) -> Any:
        return logprobs.of_chat(noted, self._text_of)

    def _build_chunk_sse(self, *args: Any, content: Any = None, **kwargs: Any) -> str:
        event = super()._build_chunk_sse(*args, content=content, **kwargs)
        return self._with_logprobs(event, content)


class Completion(_Checked, CompletionHandler):
    """/v1/completions."""

    form = CompletionForm

    def _logprobs(self, noted: Sequence[TokenLogprob], offsets: Sequence[int]) -> Any:
        return logprobs.of_completion(noted, offsets, self._text_of)

    def _build_chunk_sse(self, *args: Any, text: Any = "", **kwargs: Any) -> str:
        return self._with_logprobs(super()._build_chunk_sse(*args, text=text, **kwargs), text)
