"""The types of `/v1/chat/completions`: pydantic models that only validate.

A documented field is honoured, or refused by name, never ignored. A field that only describes the caller or the call
(`user`, `metadata`, ...) is accepted and has no effect. It knows no tokenizer, no model and no HTTP.
"""

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BaseModel, BeforeValidator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.interface.wire.attached import FilePart, files_first, part_of
from app.interface.wire.custom_tools import or_custom
from app.interface.wire.fields import (
    MAX_CHAT_TOP_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOOLS,
    CacheRetention,
    Dropped,
    Identifier,
    Metadata,
    OutputTokens,
    ReasoningEffort,
    ServiceTier,
    Text,
    ThinkingBudget,
    Unsupported,
    Verbosity,
    Wire,
    kind_of,
    only,
)
from app.interface.wire.generation import ContextUse, FinishReason, GenerationRequest, ReasoningCut, Usage
from app.interface.wire.template_variables import TemplateVariables
from app.interface.wire.tools import AllowedTools, ChatTool, CustomAsFunction, ToolChoice


def _only_text(value: object) -> object:
    if isinstance(value, str) and value != "text":
        raise PydanticCustomError("unsupported", 'is not supported; only "text" and "file" are')
    return value


class TextPart(Wire):
    """One text part of a message's content."""

    type: Annotated[Literal["text"], BeforeValidator(_only_text)]
    text: Text
    cache_control: Dropped = None


Part = Annotated[Annotated[TextPart, Tag("a text")] | Annotated[FilePart, Tag("a file")], part_of("file")]


def _as_json(value: object) -> object:
    return orjson.dumps(value).decode() if isinstance(value, dict) else value


class FunctionCall(Wire):
    """A call that the assistant made in an earlier turn."""

    name: Identifier
    arguments: Annotated[Text | None, BeforeValidator(_as_json)] = None
    """JSON as a string, which may be truncated, as in an answer that reached its limit; or an object."""
    parsed_arguments: Dropped = None
    provider_specific_fields: Dropped = None

    @property
    def arguments_text(self) -> str:
        """The arguments as written; an empty object if there are none."""
        return self.arguments if self.arguments and not self.arguments.isspace() else "{}"


class ToolCall(Wire):
    """An entry of an assistant message's `tool_calls`."""

    id: Identifier
    type: Annotated[Literal["function"], only("function")] = "function"
    function: FunctionCall
    index: Dropped = None
    extra_content: Dropped = None
    provider_specific_fields: Dropped = None


class CustomCall(Wire):
    """A call of a custom tool that the assistant made in an earlier turn."""

    name: Identifier
    input: Text


class CustomToolCall(Wire):
    """An entry of an assistant message's `tool_calls`, of a custom tool."""

    id: Identifier
    type: Literal["custom"]
    custom: CustomCall
    index: Dropped = None

    def as_function(self) -> ToolCall:
        """Returns the call as the model wrote it."""
        arguments = orjson.dumps({"input": self.custom.input}).decode()
        return ToolCall(id=self.id, function=FunctionCall(name=self.custom.name, arguments=arguments))


class Message(Wire):
    """One message of the conversation.

    Clients return answers as they got them, from this service or another, and with fields that they added.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[Text, Tag("text")] | Annotated[list[Part], Field(fail_fast=True), Tag("parts")],
            kind_of("should be a string or a list of parts", {str: "text", list: "parts"}),
        ]
        | None
    ) = None
    name: Identifier | None = None
    tool_call_id: Identifier | None = None
    tool_calls: (
        Annotated[
            list[Annotated[ToolCall, or_custom(CustomToolCall, CustomToolCall.as_function)]], Field(fail_fast=True)
        ]
        | None
    ) = None
    audio: Unsupported = None
    function_call: Unsupported = None
    refusal: Text | None = None
    """The assistant's, of another service: its content where it has no other."""
    reasoning_content: Text | None = None
    """The assistant's thought before the answer."""
    reasoning: Text | None = None
    """An alias of `reasoning_content`, to which it is copied."""
    annotations: Dropped = None
    cache_control: Dropped = None
    copilot_cache_control: Dropped = None
    parsed: Dropped = None
    provider_specific_fields: Dropped = None
    reasoning_cut: Dropped = None
    reasoning_details: Dropped = None
    reasoning_opaque: Dropped = None
    reasoning_text: Dropped = None
    thinking_blocks: Dropped = None

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.content is None and self.refusal is not None:
            object.__setattr__(self, "content", self.refusal)
        if self.reasoning_content is None and self.reasoning is not None:
            object.__setattr__(self, "reasoning_content", self.reasoning)  # the model is frozen
        return self

    @property
    def texts(self) -> list[str]:
        """The texts of its parts, in the order of a prompt."""
        if isinstance(self.content, list):
            return [part.text for part in files_first(self.content)]
        return [self.content or ""]


class ChatReasoning(Wire):
    """`reasoning`, as in OpenRouter's API: other names of fields of the request."""

    effort: ReasoningEffort | None = None
    """`reasoning_effort`."""
    max_tokens: ThinkingBudget | None = None
    """`thinking_budget`."""
    enabled: bool | None = None
    """`enable_thinking`."""
    exclude: Annotated[bool | None, only(False)] = None


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: OutputTokens = None
    metadata: Metadata | None = None
    """Kept with a stored completion; this API stores none, so it has no effect."""
    safety_identifier: Identifier | None = None
    store: Annotated[bool | None, only(False)] = None
    service_tier: ServiceTier | None = None
    """Without effect: there is one tier."""
    modalities: Annotated[Any, only(["text"])] = None
    reasoning_effort: ReasoningEffort | None = None
    """Without effect if the model does not reason."""
    verbosity: Verbosity | None = None
    """Without effect: no served model knows it."""
    enable_thinking: bool | None = None
    """Extension: whether the model thinks; takes precedence over `reasoning_effort`."""
    thinking_budget: ThinkingBudget | None = None
    """Extension: the most tokens of its thought. Then the end of the thought is written, and the answer follows."""
    reasoning: ChatReasoning | None = None
    """Extension: the same three by OpenRouter's names."""
    chat_template_kwargs: TemplateVariables | None = None
    """Extension: variables of the model's chat template; they take precedence over all these."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_CHAT_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    """Extension: the last message is an answer that was begun, and the model goes on with it."""
    add_generation_prompt: bool | None = None
    """Extension: false: the prompt does not open an answer."""
    echo: bool | None = None
    """Extension, with `continue_final_message`: the answer's text includes what was begun."""
    truncation: Literal["auto", "disabled"] | None = None
    """Extension, as in responses: with "auto" the oldest turns are left out if the conversation is too long."""
    functions: Annotated[Any, only([])] = None
    function_call: Annotated[str | None, only("none")] = None
    audio: Unsupported = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: CacheRetention | None = None
    """Without effect: the prefix cache keeps what it has room for."""
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _offers_what_is_allowed(self) -> Self:
        """Leaves out the functions that `tool_choice` does not allow."""
        if isinstance(self.tool_choice, AllowedTools):
            allowed = self.tool_choice.allowed_tools
            names = {one.function.name for one in allowed.tools}
            if unknown := names - {tool.function.name for tool in self.tools or ()}:
                raise PydanticCustomError("invalid", f"'tool_choice': no function {min(unknown)} in 'tools'")
            object.__setattr__(self, "tools", [tool for tool in self.tools or () if tool.function.name in names])
            object.__setattr__(self, "tool_choice", allowed.mode)
        return self

    @property
    def custom_tools(self) -> frozenset[str]:
        """The names of the custom tools."""
        return frozenset(tool.function.name for tool in self.tools or () if isinstance(tool, CustomAsFunction))

    @property
    def scores(self) -> int | None:
        """The number of top tokens to score at each position; None: no scores."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def budget_field(self) -> str | None:
        """The field that limits the thought's tokens; None: none does."""
        if (self.thinking_budget or 0) > 0:
            return "thinking_budget"
        has_other = self.reasoning is not None and (self.reasoning.max_tokens or 0) > 0
        return "reasoning.max_tokens" if has_other else None

    @property
    def output_limit(self) -> int | None:
        """The maximum of output tokens; None: the client sets none."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class AssistantMessage(BaseModel):
    """The message of a choice."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: Annotated[str | None, Field(exclude_if=lambda thought: thought is None)] = None
    """Extension: the model's thought; absent if it did not think."""
    reasoning_cut: Annotated[ReasoningCut | None, Field(exclude_if=lambda cut: cut is None)] = None
    """Extension: what ended the thought, if it was not the model."""
    refusal: None = None
    tool_calls: Annotated[list[dict[str, Any]] | None, Field(exclude_if=lambda calls: calls is None)] = None


class ChatChoice(BaseModel):
    """One of the `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: FinishReason
    token_ids: Annotated[list[int] | None, Field(exclude_if=lambda tokens: tokens is None)] = None
    """Extension, with `return_token_ids`: all of its tokens, without the one that ended it."""


class ChatCompletion(BaseModel):
    """A complete chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    context: Annotated[ContextUse | None, Field(exclude_if=lambda context: context is None)] = None
    """Extension: present if the request lets old turns be left out."""
    prompt_token_ids: Annotated[list[int] | None, Field(exclude_if=lambda tokens: tokens is None)] = None
    """Extension, with `return_token_ids`."""
