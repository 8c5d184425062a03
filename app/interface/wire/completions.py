"""The types of `/v1/completions`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Discriminator, Field, Tag

from app.interface.wire.fields import MAX_TOKENS, Text, Tokens, only, prompt_kind
from app.interface.wire.generation import MAX_CHOICES, FinishReason, GenerationRequest, Usage

MAX_COMPLETION_LOGPROBS = 20
"""OpenAI's own limit is 5; evaluation harnesses ask for more."""

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


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    """-1: as many as the service allows; null: 16, as OpenAI has it."""
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """The number of completions generated per prompt; the `n` most likely are returned."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    suffix: Annotated[str | None, only("")] = None

    @property
    def scores(self) -> int | None:
        """The number of top tokens to score at each position; None: no scores."""
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


class CompletionChoice(BaseModel):
    """One of the completions."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: FinishReason | None
    prompt_token_ids: Annotated[list[int] | None, Field(exclude_if=lambda tokens: tokens is None)] = None
    """Extension, like the next one, with `return_token_ids`."""
    token_ids: Annotated[list[int] | None, Field(exclude_if=lambda tokens: tokens is None)] = None


class Completion(BaseModel):
    """A complete response."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None
