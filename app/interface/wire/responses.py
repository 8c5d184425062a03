"""The types of `/v1/responses`: pydantic models that only validate.

It knows no model, no HTTP and nothing of what is stored.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, Tag

from app.interface.wire.fields import (
    MAX_CHAT_TOP_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    CacheRetention,
    FunctionName,
    Identifier,
    Metadata,
    MinP,
    ModelName,
    OtherServersFields,
    OutputTokens,
    ReasoningEffort,
    RepetitionPenalty,
    Seed,
    ServiceTier,
    Shallow,
    Temperature,
    Text,
    ThinkingBudget,
    TopK,
    TopP,
    Unsupported,
    Verbosity,
    Wire,
    at_most,
    kind_of,
    only,
)
from app.interface.wire.generation import ContextUse
from app.interface.wire.response_items import InputItem
from app.interface.wire.response_tools import ResponseTool, ToolChoice
from app.interface.wire.template_variables import TemplateVariables

# --- requests -----------------------------------------------------------------------------------------------


class TextFormat(Wire):
    """`text.format`: plain text, any JSON object, JSON of a schema, or, extensions, a grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar", "regex"]
    name: FunctionName | None = None
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    schema_: Annotated[dict[str, Any] | None, Shallow(), Field(alias="schema")] = None
    strict: bool | None = None
    grammar: Text | None = None
    """Extension: GBNF or Lark."""
    regex: Text | None = None
    """Extension: what the whole answer matches."""


class TextConfig(Wire):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None
    """Without effect: no served model knows it."""


_Summary = Literal["auto", "concise", "detailed"]


class Reasoning(Wire):
    """`reasoning`."""

    effort: ReasoningEffort | None = None
    """Without effect if the model does not reason."""
    max_tokens: ThinkingBudget | None = None
    """Extension: another name of `thinking_budget`, as in OpenRouter's API."""
    summary: _Summary | None = None
    """Without effect, like the next two: thoughts are not summarized; the chat template decides which it includes."""
    generate_summary: _Summary | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Annotated[str | None, only("standard")] = None


class ResponseStreamOptions(Wire):
    """`stream_options`."""

    include_obfuscation: Annotated[bool | None, only(False)] = None


Include = Annotated[
    Literal["message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results"],
    only("message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results"),
]
"""Without effect: a search's results are always there, and thoughts are not encrypted."""

ClientMetadata = Annotated[
    dict[Annotated[str, Field(max_length=512)], Annotated[str, Field(max_length=65536)]],
    at_most(64),
]


class ConversationId(Wire):
    """A stored conversation."""

    id: Identifier


class ConversationPlace(ConversationId):
    """A place in a stored conversation at which a turn continues."""

    parent: Identifier | None = None
    """Extension: the item that the input follows, which makes a branch; `root`: none. The newest item by default."""


class ResponseRequest(OtherServersFields, Wire):
    """`POST /v1/responses`."""

    model: ModelName = ""
    input: Annotated[
        Annotated[Text, Tag("text")]
        | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), Tag("items")],
        kind_of("should be a string or a list of items", {str: "text", list: "items"}),
    ]
    instructions: Text | None = None
    max_output_tokens: OutputTokens = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    text: TextConfig | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_CHAT_TOP_LOGPROBS)] | None = None
    include: Annotated[list[Include], Field(max_length=16, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None
    user: Identifier | None = None
    safety_identifier: Identifier | None = None
    prompt_cache_key: Identifier | None = None
    store: bool | None = None
    """Whether the response is stored: true by default for users; for other callers nothing is stored."""
    background: bool | None = None
    """Whether a user's stored response continues without its client."""
    truncation: Literal["auto", "disabled"] | None = None
    """With "auto" the oldest turns are left out if the conversation is too long."""
    service_tier: ServiceTier | None = None
    """Without effect: there is one tier, as the answer says."""
    client_metadata: ClientMetadata | None = None
    """Data of the client program; without effect."""
    reasoning: Reasoning | None = None
    previous_response_id: Identifier | None = None
    """A stored response of the user; its history comes before the input."""
    conversation: (
        Annotated[
            Annotated[Identifier, Tag("id")] | Annotated[ConversationPlace, Tag("object")],
            kind_of("should be an id or an object with one", {str: "id", dict: "object"}),
        ]
        | None
    ) = None
    """A stored conversation of the user: its items come before the input, and a stored response is added to it."""
    prompt: Unsupported = None
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Limits tools that OpenAI's servers run; none is called here."""
    context_management: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: CacheRetention | None = None
    """Without effect: the prefix cache keeps what it has room for."""
    moderation: Unsupported = None
    access_programs: Unsupported = None
    image: Unsupported = None
    seed: Seed | None = None
    """Extension, as in chat completions; so are the rest."""
    do_sample: bool | None = None
    use_cache: bool | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    enable_thinking: bool | None = None
    thinking_budget: ThinkingBudget | None = None
    """Extension, as in chat completions."""
    chat_template_kwargs: TemplateVariables | None = None
    on_overflow: Literal["refuse", "shift"] | None = None
    return_progress: bool | None = None
    """With `stream`: sends `response.prompt_progress` events before the first token."""

    @property
    def conversation_id(self) -> str | None:
        """The id of the stored conversation that it continues."""
        return self.conversation.id if isinstance(self.conversation, ConversationPlace) else self.conversation

    @property
    def parent(self) -> str | None:
        """The item of the conversation that the input follows; None: the newest."""
        return self.conversation.parent if isinstance(self.conversation, ConversationPlace) else None

    @property
    def logprobs(self) -> bool:
        """Whether log probabilities are returned."""
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())


class InputTokensRequest(ResponseRequest):
    """`POST /v1/responses/input_tokens`."""


# --- answers ------------------------------------------------------------------------------------------------


class InputTokens(BaseModel):
    """The length of a request's prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """The text of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[dict[str, Any]] = []


class OutputMessage(BaseModel):
    """A text answer."""

    id: str
    type: Literal["message"] = "message"
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputCall(BaseModel):
    """A function call."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    namespace: Annotated[str | None, Field(exclude_if=lambda name: name is None)] = None
    """The `namespace` tool that the function belongs to."""
    arguments: str = ""


class ReasoningText(BaseModel):
    """The text of a thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class OutputReasoning(BaseModel):
    """The model's thought before its answer."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus = "in_progress"
    summary: list[Any] = []
    """Always empty."""
    content: list[ReasoningText]
    cut: Annotated[Literal["budget", "max_output_tokens"] | None, Field(exclude_if=lambda cut: cut is None)] = None
    """Extension: what ended it, if it was not the model."""


class OutputCustomCall(BaseModel):
    """A call of a custom tool, whose input is text."""

    id: str
    type: Literal["custom_tool_call"] = "custom_tool_call"
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    namespace: Annotated[str | None, Field(exclude_if=lambda name: name is None)] = None
    input: str = ""


class FoundPassage(BaseModel):
    """A passage that was found before the answer."""

    file_id: str
    filename: str
    score: float
    text: str
    attributes: dict[str, Any] = {}
    vector_store_id: str = ""
    page: int | None = None
    """Extension, as the next one: where the passage begins."""
    heading: str = ""


class OutputFileSearch(BaseModel):
    """A search in collections. Its passages are numbered from 1, and the answer cites them as `[1]`."""

    id: str
    type: Literal["file_search_call"] = "file_search_call"
    status: ItemStatus = "completed"
    queries: list[str]
    results: list[FoundPassage]
    whole: Annotated[bool, Field(exclude_if=lambda whole: not whole)] = False
    """Extension: these are all parts of the documents, which stand before the first question, and not what was found.
    In a stored answer only those that it cites have their text."""
    unread: Annotated[int, Field(exclude_if=lambda unread: not unread)] = 0
    """Extension: so many documents of these collections are still being read, and were not searched."""


class InputTokensDetails(BaseModel):
    """Details of the input tokens."""

    cached_tokens: int
    """Tokens found in the prefix cache, which were not computed."""
    cache_write_tokens: int = 0
    """Tokens written to an explicit prompt cache, which this service does not have."""


class OutputTokensDetails(BaseModel):
    """Details of the output tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"
    """Also if the context was full, as OpenAI has it."""


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseObject(BaseModel):
    """A response, complete or partial. It repeats the fields of its request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    """Unix seconds."""
    completed_at: int | None = None
    status: ResponseStatus = "in_progress"
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputReasoning | OutputMessage | OutputCall | OutputCustomCall | OutputFileSearch] = []
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    conversation: ConversationPlace | None = None
    reasoning: dict[str, str | int | None] = {"effort": None, "summary": None}
    service_tier: Literal["default"] = "default"
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    metadata: dict[str, str]
    context: Annotated[ContextUse | None, Field(exclude_if=lambda context: context is None)] = None
    """Extension: present if the request lets old turns be left out."""
