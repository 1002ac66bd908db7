"""transformers' handlers of requests, for one model that is ready, and within bounds."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import jinja2
from starlette.responses import Response, StreamingResponse
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.utils import (
    BaseHandler,
    CBGenerateManager,
    CBWorkerDeadError,
    GenerationState,
)

from xla_dynamo.serving.engine import Engine
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
from xla_dynamo.serving.sampling import Sampling

_ERROR = 'data: {"error": "'


class OneModel(ModelManager):
    """The one model of a server, which is never unloaded."""

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        """Take a name, a model and its tokenizer."""
        super().__init__(device="cpu")
        self.force_model = name
        self._pair = model, tokenizer

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
        self._cb = engine
        self._bounds = bounds

    def init_cb(self, model: Any, gen_config: Any) -> None:
        """Nothing: the engine is there."""

    def is_alive(self) -> bool:
        return self._cb.is_alive()

    def _take(self, inputs: Any, config: Any, request_id: str) -> None:
        """Bound the length of an answer, and say how it is drawn."""
        asked = config.max_new_tokens if config.is_asked_for else None
        config.max_new_tokens = answer_tokens(len(inputs["input_ids"]), asked, self._bounds)
        self._cb.draw(request_id, Sampling.of(config, config.seed))

    def generate_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str, **kw: Any
    ) -> Any:
        self._take(inputs, gen_config, request_id)
        return super().generate_streaming(model, processor, inputs, gen_config, request_id, **kw)

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, request_id: str
    ) -> Any:
        self._take(inputs, gen_config, request_id)
        try:
            return await super().generate_non_streaming(
                model, processor, inputs, gen_config, request_id
            )
        except CBWorkerDeadError:
            raise
        except RuntimeError as error:  # what transformers raises for a request that has failed
            raise RequestError(503, str(error), code="generation_failed") from error


class _Checked(BaseHandler):
    """A handler that answers only what it can."""

    form: type[Form]

    def __init__(self, model_manager: OneModel, state: OneEngine, bounds: Bounds) -> None:
        super().__init__(model_manager, state)
        self._bounds = bounds

    async def handle_request(self, body: dict[str, Any], request_id: str) -> Response:
        """Answer a request.

        Raises:
            RequestError: it asks for something that is wrong, or too much.
        """
        form = checked(self.form, body, self._bounds)
        plain = form.model_dump(exclude_none=True, exclude={"stream_options"})
        plain["max_tokens"] = form.asked_tokens()
        plain.pop("max_completion_tokens", None)
        try:
            response = await super().handle_request(plain, request_id)  # type: ignore[misc]
        except (jinja2.TemplateError, ValueError, KeyError, TypeError) as error:
            # A chat template raises what it likes, and does not know all roles and contents.
            message = f"the messages do not fit the model's chat template: {error}"
            raise RequestError(400, message, "messages") from error
        if isinstance(response, StreamingResponse):
            response.body_iterator = _with_end(response.body_iterator)
        return response

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
    async with contextlib.aclosing(parts):
        async for part in parts:
            if part.startswith(_ERROR):  # a text that is not quoted as JSON has it
                message = part.removeprefix(_ERROR).rstrip().removesuffix('"}')
                yield f"data: {json.dumps(error_body(500, message))}\n\n"
            else:
                yield part
    yield "data: [DONE]\n\n"


class Chat(_Checked, ChatCompletionHandler):
    """/v1/chat/completions."""

    form = ChatForm


class Completion(_Checked, CompletionHandler):
    """/v1/completions."""

    form = CompletionForm
