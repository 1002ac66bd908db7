"""What a request may say: the bodies of OpenAI's completions, checked before anything runs."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field

_SEEDS = 1 << 63
_MOST_CHOICES = 8


class RequestError(Exception):
    """A request cannot be answered; becomes OpenAI's error object.

    Attributes:
        status: the status of HTTP.
        message: what is wrong, and what to do.
        param: the field of the body that is, or None.
        code: a word for it, as OpenAI has, or None.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        return error_body(self.status, self.message, self.param, self.code)


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object for a status of HTTP."""
    kinds = {404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What one request may ask for.

    Attributes:
        name: the name of the one model.
        longest: the most tokens of prompt and answer together.
        prompt: the most tokens of a prompt.
        answer: the most tokens of an answer.
    """

    name: str
    longest: int
    prompt: int
    answer: int


class _PlainText(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]


class _AnyObject(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["json_object"]


class _NamedSchema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    wanted: dict[str, Any] | bool = Field(alias="schema")  # pydantic has a method of that name


class _OfSchema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["json_schema"]
    json_schema: _NamedSchema


_Stop = Annotated[str, Field(min_length=1)]
_Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Form(BaseModel):
    """What the bodies of all completions have in common."""

    model_config = ConfigDict(strict=True, extra="forbid")
    # What is asked for as if it were not: accepted where it changes nothing.
    neutral: ClassVar[Mapping[str, Any]] = {
        "best_of": 1,
        "logprobs": False,
        "top_logprobs": 0,
        "echo": False,
    }
    # What a server may leave aside.
    aside: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    )

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-_SEEDS, lt=_SEEDS)] | None = None
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=4)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] | None = None
    logit_bias: dict[str, _Bias] | None = None
    response_format: (
        Annotated[_PlainText | _AnyObject | _OfSchema, Field(discriminator="type")] | None
    ) = None

    def stops(self) -> list[str]:
        """The strings that end the answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def schema_wanted(self) -> Any:
        """The JSON schema that the answer has to fit, a dict or a bool; None for any text."""
        match self.response_format:
            case _AnyObject():
                return {"type": "object"}
            case _OfSchema(json_schema=named):
                return named.wanted
        return None

    def seed_of(self, number: int) -> int | None:
        """The seed of a choice, by its number; that of the first is the request's."""
        if self.seed is None or number == 0:
            return self.seed
        return (self.seed + number) % _SEEDS

    def likeliest(self) -> int | None:
        """How many of the likeliest tokens are to be told for each; None to tell nothing."""
        return None

    def bias(self, vocabulary: int) -> dict[int, float]:
        """What is added to the logits, by token.

        Raises:
            RequestError: 400, there is no such token of so many.
        """
        found = {}
        for name, number in (self.logit_bias or {}).items():
            if not (name.isascii() and name.isdigit() and int(name) < vocabulary):
                message = f"logit_bias: {name!r} is no token of this model, 0 to {vocabulary - 1}"
                raise RequestError(400, message, "logit_bias")
            found[int(name)] = number
        return found

    def asked_tokens(self) -> int | None:
        """How many tokens the answer may have at most; None where that is not said."""
        return self.max_tokens


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatForm(Form):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def likeliest(self) -> int | None:
        """How many of the likeliest tokens are to be told for each; None to tell nothing.

        Raises:
            RequestError: 400, some are asked for, and logprobs are not.
        """
        if self.top_logprobs and not self.logprobs:
            raise RequestError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
        return self.top_logprobs or 0 if self.logprobs else None

    def asked_tokens(self) -> int | None:
        """How many tokens the answer may have at most; None where that is not said."""
        asked = self.max_completion_tokens
        return self.max_tokens if asked is None else asked


class CompletionForm(Form):
    """The body of /v1/completions."""

    prompt: str
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    def likeliest(self) -> int | None:
        """How many of the likeliest tokens are to be told for each; None to tell nothing."""
        return self.logprobs


_AForm = TypeVar("_AForm", bound=Form)


def checked(form: type[_AForm], body: Mapping[str, Any], bounds: Bounds) -> _AForm:
    """The body of a request, if it can be answered.

    Raises:
        RequestError: 400 for a field that is wrong, not known or not supported, 404 for another
            model.
    """
    given = dict(body)
    for name, neutral in form.neutral.items():
        value = given.get(name)
        if value is None or (value == neutral and type(value) is type(neutral)):
            given.pop(name, None)
        elif name not in form.model_fields:
            raise RequestError(400, f"{name} is not supported by this server", name, "unsupported")
    for name in form.aside:
        given.pop(name, None)
    try:
        json.dumps(given, ensure_ascii=False).encode()
        found = form.model_validate(given)
    except UnicodeEncodeError as error:
        raise RequestError(400, "the body has half of a surrogate pair in a text") from error
    except RecursionError as error:
        raise RequestError(400, "the body is nested too deeply") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RequestError(400, f"{place}: {first['msg']}", place, first["type"]) from error
    if found.model not in (None, bounds.name):
        message = f"the model {found.model!r} is not served here, but {bounds.name!r}"
        raise RequestError(404, message, "model", "model_not_found")
    asked = found.asked_tokens()
    if asked is not None and asked > bounds.answer:
        message = f"max_tokens is {asked}, and this server gives {bounds.answer} at most"
        raise RequestError(400, message, "max_tokens", "max_tokens_exceeded")
    return found


def answer_tokens(prompt: int, asked: int | None, bounds: Bounds) -> int:
    """How many tokens an answer may have behind a prompt of so many tokens.

    Raises:
        RequestError: 400, the prompt is empty or too long, alone or with what is asked for.
    """
    if prompt == 0:
        raise RequestError(400, "the prompt has no token", "prompt", "empty_prompt")
    if prompt > min(bounds.prompt, bounds.longest - 1):
        message = (
            f"the prompt has {prompt} tokens, and this server takes "
            f"{min(bounds.prompt, bounds.longest - 1)} at most"
        )
        raise RequestError(400, message, "prompt", "context_length_exceeded")
    room = bounds.longest - prompt
    if asked is None:
        return min(room, bounds.answer)
    if asked > room:
        message = (
            f"the prompt has {prompt} tokens and max_tokens is {asked}: together this server takes "
            f"{bounds.longest} at most"
        )
        raise RequestError(400, message, "max_tokens", "context_length_exceeded")
    return asked
