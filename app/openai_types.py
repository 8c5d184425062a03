"""The wire: OpenAI's requests as pydantic models. Validation, and nothing else; answers are in `app.answer_types`.

A documented field is honoured, or refused by name: it is never ignored. A field that only describes the
caller or the call (`user`, `metadata`, ...) is accepted, for there is nothing to do. It knows no tokenizer,
no model and no HTTP.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_CHOICES = 128
"""The largest `n`, and the most sequences (prompts x n) of one request; the service may allow fewer."""
MAX_STOP_CHARS = 512
MAX_STOPS = 4
MAX_LOGIT_BIASES = 1024
MAX_TOKENS = 2**31 - 1
MAX_MESSAGES = 65536
MAX_TOOLS = 128
MAX_CHAT_TOP_LOGPROBS = 20
MAX_COMPLETION_LOGPROBS = 20
"""OpenAI's own limit is 5; evaluation harnesses ask for more."""
MAX_FIELDS = 64
"""Of one object: pydantic reports every unknown field, and a hostile body could hold a million."""


@dataclass(frozen=True, slots=True, init=False)
class only:  # noqa: N801  # an annotation: it reads as a function
    """A documented field with some values supported: null, and those that ask for what happens anyway."""

    allowed: tuple[object, ...]

    def __init__(self, *allowed: object) -> None:
        object.__setattr__(self, "allowed", allowed)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checked before the type is."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Those values, and null where there may be one."""
        has_null = cast(Any, schema)["schema"]["type"] in ("nullable", "any")
        values = [*self.allowed, *([None] if has_null else [])]
        return {"enum": values} if self.allowed else {"type": "null", "description": "Not supported."}

    def _check(self, value: object) -> object:
        if value is None or any(type(value) is type(good) and value == good for good in self.allowed):
            return value
        hint = f"; only {' or '.join(map(json.dumps, self.allowed))} is" if self.allowed else ""
        raise PydanticCustomError("unsupported", f"is not supported{hint}")


@dataclass(frozen=True, slots=True)
class at_most:  # noqa: N801
    """An object of bounded size, checked before its entries are."""

    entries: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Checked before the type is."""
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The object's own, with the bound."""
        return {**handler(schema), "maxProperties": self.entries}

    def _check(self, value: object) -> object:
        if isinstance(value, dict) and len(value) > self.entries:
            raise PydanticCustomError("too_long", f"has more than {self.entries} entries")
        return value


def kind_of(message: str, kinds: dict[type, str]) -> Discriminator:
    """Tells a union's members apart by the JSON type, so that an error speaks of the one that was meant."""

    def kind(value: object) -> str | None:
        return kinds.get(type(value))

    return Discriminator(kind, custom_error_type="wrong_type", custom_error_message=message)


Unsupported = Annotated[Any, only()]

Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(ge=1e-30, le=1, allow_inf_nan=False)]
"""As float32 it must be above 0."""
TopK = Annotated[int, Field(ge=-1, lt=2**31)]
"""0, or -1 as other servers write it: off."""
MinP = Annotated[float, Field(ge=0, le=0.999999, allow_inf_nan=False)]
"""Tokens less likely than this share of the likeliest one's probability are out."""
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
"""Over prompt and output; 1: off."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(max_length=2**26)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Identifier = Annotated[str, StringConstraints(max_length=512)]
FunctionName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Wire(BaseModel):
    """Base of all requests: no coercion, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _has_few_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise PydanticCustomError("too_long", f"has more than {MAX_FIELDS} fields")
        return value


class StreamOptions(Wire):
    """`stream_options`."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[bool | None, only(False)] = None


class _Request(Wire):
    """What chat completions and completions share."""

    model: Identifier
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: (
        Annotated[
            Annotated[StopString, Tag("one")]
            | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True), Tag("many")],
            kind_of("should be a string or a list of strings", {str: "one", list: "many"}),
        ]
        | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=256, fail_fast=True)] | None = None
    """Extension: tokens that end the output; they are not in it."""
    ignore_eos: bool | None = None
    """Extension: the output goes on to its limit, whatever the model says."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    """Extension: no end, and none of `stop_token_ids`, before so many tokens."""
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """Extension, like the next two."""
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})$")],
                Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)],
            ],
            at_most(MAX_LOGIT_BIASES),
        ]
        | None
    ) = None
    """Token id, as a string, to what is added to its logit."""
    seed: Seed | None = None
    use_beam_search: bool | None = None
    """Extension: beam search, as wide as `num_beams`, `best_of` or `n` says."""
    num_beams: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Extension. Above 1: beam search."""
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    num_beam_groups: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    diversity_penalty: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    penalty_alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """Extension. Above 0: contrastive search among the `top_k` likeliest tokens."""
    user: Identifier | None = None
    on_overflow: Literal["refuse", "shift"] | None = None
    """Extension: where the context is full, refuse, or go on without the oldest tokens; none: as the model is set."""
    context_window: Annotated[int, Field(ge=256, lt=2**31)] | None = None
    """Extension, with "shift": tokens that are seen at once, in whole blocks of 128; none: the context."""
    n_keep: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """Extension, with "shift": first tokens that stay; -1: the prompt; none: the system prompt."""
    n_discard: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """Extension, with "shift": tokens that go at a time; -1 or none: half of what does not stay."""

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


# --- chat completions ---------------------------------------------------------------------------------------


def _only_text(value: object) -> object:
    if isinstance(value, str) and value != "text":
        raise PydanticCustomError("unsupported", 'is not supported; only "text" is')
    return value


class TextPart(Wire):
    """One text part of a message's content."""

    type: Annotated[Literal["text"], BeforeValidator(_only_text)]
    text: Text


class FunctionCall(Wire):
    """A call that the assistant made, in an earlier turn."""

    name: Identifier
    arguments: Text
    """JSON, as a string."""


class ToolCall(Wire):
    """An entry of an assistant message's `tool_calls`."""

    id: Identifier
    type: Annotated[Literal["function"], only("function")] = "function"
    function: FunctionCall


class Message(Wire):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[Text, Tag("text")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("parts")],
            kind_of("should be a string or a list of text parts", {str: "text", list: "parts"}),
        ]
        | None
    ) = None
    name: Identifier | None = None
    tool_call_id: Identifier | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    refusal: Unsupported = None
    annotations: Annotated[Any, only([])] = None


class JsonSchema(Wire):
    """A named schema that the answer has to follow."""

    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Wire):
    """`response_format`: plain text, any JSON object, or what a schema says."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("invalid", "needs 'json_schema' where its type is json_schema, and only there")
        return self


class FunctionDefinition(Wire):
    """A function that the model may call."""

    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Wire):
    """An entry of `tools`."""

    type: Annotated[Literal["function"], only("function")]
    function: FunctionDefinition


class NamedFunction(Wire):
    """Which function to call."""

    name: FunctionName


class NamedToolChoice(Wire):
    """`tool_choice` of one function."""

    type: Annotated[Literal["function"], only("function")]
    function: NamedFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")] | Annotated[NamedToolChoice, Tag("named")],
    kind_of('should be "none", "auto", "required" or name a function', {str: "mode", dict: "named"}),
]


class ChatCompletionRequest(_Request):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    response_format: ResponseFormat | None = None
    metadata: (
        Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], at_most(16)] | None
    ) = None
    """Kept with a stored completion; we store none, so there is nothing to keep."""
    safety_identifier: Identifier | None = None
    prompt_cache_key: Identifier | None = None
    store: Annotated[bool | None, only(False)] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
    modalities: Annotated[Any, only(["text"])] = None
    reasoning_effort: Annotated[str | None, only("none")] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_CHAT_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[str | None, only("none")] = None
    audio: Unsupported = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    @property
    def scores(self) -> int | None:
        """How many likely tokens to score beside each; None: no scores."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def output_limit(self) -> tuple[int | None, str]:
        """The most output tokens, and the field that says so."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"


# --- completions --------------------------------------------------------------------------------------------


def prompt_kind(value: object) -> str | None:
    """Which of a prompt's four forms a value means to be."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    kinds: dict[type, str] = {str: "texts", int: "tokens", list: "many_tokens"}
    return kinds.get(type(first))


Tokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Prompt = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True), Tag("texts")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[list[Tokens], Field(max_length=MAX_CHOICES, fail_fast=True), Tag("many_tokens")],
    Discriminator(
        prompt_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string, a list of strings, a list of token ids, or a list of those",
    ),
]


class CompletionRequest(_Request):
    """`POST /v1/completions`."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """So many are made of each prompt, and the `n` likeliest answered."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    suffix: Annotated[str | None, only("")] = None

    @property
    def scores(self) -> int | None:
        """How many likely tokens to score beside each; None: no scores."""
        return self.logprobs

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """The prompts, each a text or a list of token ids."""
        match self.prompt:
            case str(text):
                return [text]
            case [int(), *_] as token_ids:
                return [cast(list[int], token_ids)]
            case prompts:
                return cast(list[str] | list[list[int]], prompts)
