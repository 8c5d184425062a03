"""The types of `/v1/messages`, Anthropic's API: pydantic models that only validate.

It knows no model and no HTTP. What only describes the caller or the call is accepted without effect.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from app.interface.wire.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    Dropped,
    Identifier,
    MinP,
    ModelName,
    ReasoningEffort,
    RepetitionPenalty,
    Seed,
    Shallow,
    Temperature,
    TopK,
    TopP,
    Unsupported,
    Wire,
    only,
)
from app.interface.wire.generation import MAX_STOPS, ContextUse, StopString
from app.interface.wire.message_blocks import InputTurn, Texts, block_kind
from app.interface.wire.message_tools import MessagesTool, MessagesToolChoice
from app.interface.wire.template_variables import TemplateVariables

# --- requests -----------------------------------------------------------------------------------------------

Display = Literal["summarized", "omitted"]


class ThinkingEnabled(Wire):
    """The model thinks, at most so many tokens."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    display: Display | None = None
    """"omitted": the thought is not shown; its block has only a signature. Nothing is summarized."""


class ThinkingAdaptive(Wire):
    """The model thinks as long as it likes."""

    type: Literal["adaptive"]
    display: Display | None = None


class ThinkingDisabled(Wire):
    """The model does not think."""

    type: Literal["disabled", "between_tools"]


def _thinking_kind(value: object) -> str | None:
    kind = block_kind(value)
    kinds = {"enabled": "enabled", "adaptive": "adaptive", "disabled": "disabled", "between_tools": "disabled"}
    return f"thinking {kinds[kind]}" if kind in kinds else None


ThinkingConfig = Annotated[
    Annotated[ThinkingEnabled, Tag("thinking enabled")]
    | Annotated[ThinkingAdaptive, Tag("thinking adaptive")]
    | Annotated[ThinkingDisabled, Tag("thinking disabled")],
    Discriminator(
        _thinking_kind,
        custom_error_type="wrong_type",
        custom_error_message='should be an object whose type is "enabled", "adaptive", "disabled" or "between_tools"',
    ),
]


class OutputFormat(Wire):
    """`output_config.format`: the answer is JSON of a schema."""

    type: Annotated[Literal["json_schema"], only("json_schema")]
    schema_: Annotated[dict[str, Any], Shallow(), Field(alias="schema")]


class OutputConfig(Wire):
    """`output_config`."""

    effort: ReasoningEffort | None = None
    """Without effect if the model does not reason."""
    format: OutputFormat | None = None
    task_budget: Dropped = None


class MessagesMetadata(Wire):
    """`metadata`."""

    user_id: Annotated[str, Field(max_length=65536)] | None = None
    """Without effect."""


class CountTokensRequest(Wire):
    """`POST /v1/messages/count_tokens`: what a prompt is made of."""

    model: ModelName = ""
    """Absent: the first of `/v1/models`."""
    messages: Annotated[list[InputTurn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: Texts | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older name of `output_config.format`."""
    cache_control: Dropped = None
    """Without effect, like the next three: the prefix cache needs no marks, and nothing is edited on the server."""
    context_management: Dropped = None
    speed: Literal["standard", "fast"] | None = None
    user_profile_id: Identifier | None = None
    mcp_servers: Annotated[Any, only([])] = None
    chat_template_kwargs: TemplateVariables | None = None
    """Extension, as in chat completions."""

    @property
    def format(self) -> OutputFormat | None:
        """The answer's format, by either name."""
        newer = None if self.output_config is None else self.output_config.format
        return self.output_format if newer is None else newer


class MessagesRequest(CountTokensRequest):
    """`POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    """More than the context leaves is cut to that."""
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: MessagesMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    """Without effect, like the next two: there is one tier, in one place."""
    inference_geo: Dropped = None
    diagnostics: Dropped = None
    container: Unsupported = None
    min_p: MinP | None = None
    """Extension, as in chat completions; so are the rest."""
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    prompt_cache_key: Identifier | None = None
    truncation: Literal["auto", "disabled"] | None = None
    on_overflow: Literal["refuse", "shift"] | None = None

    @property
    def shows_thoughts(self) -> bool:
        """Whether thoughts are part of the answer; otherwise only their signatures are."""
        return getattr(self.thinking, "display", None) != "omitted"

    @property
    def stream_options(self) -> None:
        """Nothing: Anthropic's API has no such options."""

    @property
    def return_progress(self) -> bool:
        """Whether a stream tells the prompt's progress; Anthropic's has no event for it."""
        return False


# --- answers ------------------------------------------------------------------------------------------------


class PromptLength(BaseModel):
    """`POST /v1/messages/count_tokens`."""

    input_tokens: int


class AnswerText(BaseModel):
    """The text of an answer."""

    type: Literal["text"] = "text"
    text: str = ""
    citations: None = None


class AnswerThinking(BaseModel):
    """The model's thought; empty if the client asked not to see it."""

    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: str = ""


class AnswerToolUse(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = {}


class ThinkingTokens(BaseModel):
    """`output_tokens_details`."""

    thinking_tokens: int


class MessagesUsage(BaseModel):
    """The tokens of an answer."""

    input_tokens: int
    """Prompt tokens that were computed."""
    cache_creation_input_tokens: int = 0
    """Tokens written to an explicit prompt cache, which this service does not have."""
    cache_read_input_tokens: int
    """Prompt tokens found in the prefix cache."""
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: Literal["standard"] = "standard"


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
AnswerBlock = AnswerText | AnswerThinking | AnswerToolUse


class AnthropicMessage(BaseModel):
    """An answer of `/v1/messages`."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage
    context: Annotated[ContextUse | None, Field(exclude_if=lambda context: context is None)] = None
    """Extension: present if old turns may be left out."""


class AnthropicModel(BaseModel):
    """A served model, for clients that send `anthropic-version`."""

    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    """The maximum of prompt and output tokens together."""
    max_tokens: int


class AnthropicModels(BaseModel):
    """`GET /v1/models`, for clients that send `anthropic-version`."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
