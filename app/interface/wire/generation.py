"""The request fields that chat completions and completions share, and the usage and finish reason of answers."""

from typing import Annotated, Literal, Self

from pydantic import AliasChoices, BaseModel, Field, StringConstraints, Tag

from app.interface.wire.answer_forms import AnswerForms
from app.interface.wire.fields import (
    MAX_TOKENS,
    Identifier,
    MinP,
    ModelName,
    OtherServersFields,
    OutputTokens,
    Penalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TokenId,
    TopK,
    TopP,
    Wire,
    at_most,
    kind_of,
    only,
)

MAX_CHOICES = 128
"""The maximum of `n`, and of sequences (prompts x n) per request; the service may allow fewer."""
MAX_STOP_CHARS = 512
MAX_STOPS = 16
MAX_LOGIT_BIASES = 1024
StopString = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]

FinishReason = Literal["stop", "length", "tool_calls"]
ReasoningCut = Literal["budget", "length"]
"""What ended a thought in place of the model: the thought's budget, or the limit of the output, so that no answer
follows."""


class PromptTokensDetails(BaseModel):
    """Details of the prompt tokens."""

    cached_tokens: int
    """Tokens found in the prefix cache, which were not computed."""


class CompletionTokensDetails(BaseModel):
    """Details of the output tokens."""

    reasoning_tokens: int = 0
    """Tokens of thoughts, with the marks around them."""


class Usage(BaseModel):
    """The tokens of a request, all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()

    @classmethod
    def of(cls, *, prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0) -> Self:
        """Builds it with the total."""
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
            completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning_tokens),
        )


class ContextUse(BaseModel):
    """Extension: what the model saw of a conversation."""

    left_out_turns: int
    """The number of oldest turns that were left out; a turn is a question with all that answered it."""
    limit_tokens: int
    """System prompt, tools and turns beyond this lose the oldest turns."""
    full: Annotated[bool, Field(exclude_if=lambda full: not full)] = False
    """Whether the answer ended because the context was full; absent if not."""


class PromptProgressObject(BaseModel):
    """`prompt_progress`: the first four fields are as in llama-server."""

    total: int
    """Prompt tokens."""
    cache: int
    """Prompt tokens found in the prefix cache."""
    processed: int
    """Prompt tokens processed so far, cached ones included."""
    time_ms: int
    """Milliseconds since a worker began the prompt."""
    queued_ahead: int | None
    """Extension: while the request is queued, how many start before it; otherwise null."""


class StreamOptions(Wire):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Extension, with `include_usage`: every chunk has the usage so far."""
    include_obfuscation: Annotated[bool | None, only(False)] = None


class GenerationRequest(AnswerForms, OtherServersFields, Wire):
    """The fields that chat completions and completions share."""

    model: ModelName = ""
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
    """Extension: tokens that end the output and are not part of it."""
    ignore_eos: bool | None = None
    """Extension: the output continues to its limit past end-of-sequence tokens."""
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    """Extension: no end-of-sequence token and none of `stop_token_ids` before this many tokens."""
    max_tokens: OutputTokens = None
    """More than the context leaves is cut to that."""
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """Extension, like the next two."""
    min_p: MinP | None = None
    repetition_penalty: Annotated[
        RepetitionPenalty | None, Field(validation_alias=AliasChoices("repetition_penalty", "repeat_penalty"))
    ] = None
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
    """Maps a token id, as a string, to a bias added to its logit."""
    seed: Seed | None = None
    do_sample: bool | None = None
    """Extension: false: greedy, as with temperature 0; true: sampling."""
    use_cache: bool | None = None
    """Extension: false: the prefix cache is neither read nor filled."""
    use_beam_search: bool | None = None
    """Extension: beam search with `num_beams`, `best_of` or `n` beams."""
    num_beams: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Extension. Above 1: beam search."""
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    num_beam_groups: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    diversity_penalty: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    penalty_alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    """Extension. Above 0: contrastive search among the `top_k` most likely tokens."""
    user: Identifier | None = None
    prompt_cache_key: Identifier | None = None
    """The user's conversation whose saved pages are used, in a service that saves pages."""
    on_overflow: Literal["refuse", "shift"] | None = None
    """Extension: when the context is full, refuse, or continue without the oldest tokens; null: the model's setting."""
    context_window: Annotated[int, Field(ge=256, lt=2**31)] | None = None
    """Extension, with "shift": the attention window in tokens, rounded to blocks of 128; null: the context."""
    n_keep: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """Extension, with "shift": the number of first tokens that stay; -1: the prompt; null: the system prompt."""
    n_discard: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    """Extension, with "shift": the number of tokens discarded at a time; -1 or null: half of what does not stay."""
    return_token_ids: bool | None = None
    """Extension: the answer has the tokens of the prompt and of each choice."""
    return_progress: bool | None = None
    """Extension, with `stream`: sends chunks with `prompt_progress` before the first token."""

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)
