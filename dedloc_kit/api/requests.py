"""What callers may ask for. All that is not named here is refused by name, unless it is null."""

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from dedloc_kit.api.errors import ApiError
from dedloc_kit.records.record import Record

MOST_ANSWERS = 8
"""To one prompt: they are computed together, and each takes room on every server."""
MOST_PROMPTS = 32
"""In one request: one after the other takes one of the places."""

Stop = Annotated[str, Field(min_length=1, max_length=200)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[TokenId], Field(min_length=1)]


_Zero = Annotated[float, Field(ge=0, le=0)]
_Nothing = Annotated[list[Any], Field(max_length=0)]


class StreamOptions(Record):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class ResponseFormat(Record):
    type: Literal["text"]


class _Neutral(Record):
    """What clients write out though it changes nothing; every other value is refused."""

    frequency_penalty: _Zero | None = None
    presence_penalty: _Zero | None = None
    logit_bias: dict[str, _Zero] | None = None
    tools: _Nothing | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    functions: _Nothing | None = None
    function_call: Literal["none", "auto"] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    suffix: Literal[""] | None = None


class _Request(_Neutral):
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    # They change nothing about an answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def answers(self) -> int:
        """How many are wanted to each prompt."""
        return self.n or 1

    @property
    def choices(self) -> int:
        """How many are wanted in all."""
        return self.answers

    def stops(self) -> list[str]:
        """The texts before which the answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def with_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(Record):
    type: Literal["text"]
    text: str


class ChatMessage(Record):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None
    """Chat templates know none."""
    tool_calls: _Nothing | None = None
    annotations: _Nothing | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates take it; they know no developer."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ChatRequest(_Request):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def alternatives(self) -> int | None:
        """How many likeliest tokens are told beside each one of the answer; None for no logarithms at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def longest(self) -> tuple[str, int | None]:
        """How many tokens an answer has at most, and the parameter that says so; None where none does."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens


def _kind_of_prompt(given: Any) -> str:
    """By its beginning, so that what is wrong behind that is named."""
    if not isinstance(given, list):
        return "a text"
    match given[:1]:
        case [str()]:
            return "texts"
        case [list()]:
            return "lists of tokens"
    return "tokens"


class CompletionRequest(_Request):
    prompt: Annotated[
        Annotated[str, Tag("a text")]
        | Annotated[Tokens, Tag("tokens")]
        | Annotated[list[str], Field(max_length=MOST_PROMPTS), Tag("texts")]
        | Annotated[list[Tokens], Field(max_length=MOST_PROMPTS), Tag("lists of tokens")],
        Discriminator(_kind_of_prompt),
    ]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    """All that are made are told, so it must be `n`."""

    @property
    def choices(self) -> int:
        return self.answers * len(self.prompts())

    def prompts(self) -> list[str | list[int]]:
        """Each as text or tokens."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return [*self.prompt]

    def alternatives(self) -> int | None:
        """As in `ChatRequest`."""
        return self.logprobs

    def longest(self) -> tuple[str, int | None]:
        """As in `ChatRequest`."""
        return "max_tokens", self.max_tokens


AnyRequest: TypeAlias = ChatRequest | CompletionRequest
Request = TypeVar("Request", ChatRequest, CompletionRequest)
_FIELDS = {
    name
    for model in (ChatRequest, CompletionRequest, ChatMessage, TextPart, StreamOptions, ResponseFormat)
    for name in model.model_fields
}


def parse(kind: type[Request], body: bytes) -> Request:
    """The request in a body. Raises ApiError, which names a parameter that is wrong."""
    try:
        asked: Request = TypeAdapter(kind).validate_json(_given(body))
    except ValidationError as error:
        # Where a value may be of several kinds, the innermost finding is about the one that was meant.
        finding = max(error.errors(include_url=False, include_context=False), key=lambda found: len(found["loc"]))
        raise _refusal(finding["type"], finding["loc"], finding["msg"]) from None
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options is for streamed answers only; set stream to true", param="stream_options")
    if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if isinstance(asked, CompletionRequest) and asked.echo and asked.logprobs is not None:
        raise ApiError(400, "echo cannot be had with logprobs: those of a prompt are not computed", param="echo")
    if isinstance(asked, CompletionRequest) and (asked.best_of or asked.answers) != asked.answers:
        raise ApiError(400, "best_of must be n: all answers are told", param="best_of", code="invalid_value")
    return asked


def _given(body: bytes) -> bytes:
    """The body without what is null, which means the same in JSON as nothing; unchanged if it is no JSON."""
    try:
        return to_json(_without_nulls(from_json(body)), inf_nan_mode="constants")
    except ValueError:
        return body


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_nulls(each) for name, each in value.items() if each is not None}
        case list():
            return [_without_nulls(each) for each in value]
    return value


def _refusal(kind: str, location: tuple[int | str, ...], reason: str) -> ApiError:
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON ({reason})", code="invalid_json")
    param = _parameter(location, unknown=kind == "extra_forbidden")
    if location[:1] and location[0] in _Neutral.model_fields:
        message = f"this server does not know the parameter {param}, but for values that change nothing"
        return ApiError(400, message, param=param, code="unknown")
    match kind:
        case "extra_forbidden":
            return ApiError(400, f"this server does not know the parameter {param}", param=param, code="unknown")
        case "missing":
            return ApiError(400, f"{param} is missing", param=param, code="missing_required_parameter")
        case _:
            where = param or "the request"
            return ApiError(400, f"{where}: {reason[0].lower()}{reason[1:]}", param=param, code="invalid_value")


def _parameter(location: tuple[int | str, ...], unknown: bool) -> str | None:
    """As `messages[0].content`; without what pydantic puts in between for the kinds that a value may be of."""
    text = ""
    for place, part in enumerate(location):
        if isinstance(part, int):
            text += f"[{part}]"
        elif part in _FIELDS or (unknown and place == len(location) - 1):
            text += f".{part:.80}" if text else f"{part:.80}"
    return text or None
