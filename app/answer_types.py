"""The wire: OpenAI's answers as pydantic models. It knows nothing of how they come about."""

from typing import Any, Literal, Self

from pydantic import BaseModel

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(BaseModel):
    """What became of the prompt's tokens."""

    cached_tokens: int
    """Of them, those that were not computed: the prefix cache had them."""


class Usage(BaseModel):
    """Tokens of a request, all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, *, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Self:
        """The numbers with their sum."""
        return cls(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        )


class AssistantMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(BaseModel):
    """One of the `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None


class CompletionChoice(BaseModel):
    """One of the completions."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: FinishReason | None


class Completion(BaseModel):
    """A whole completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    system_fingerprint: str | None = None


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "redoubt"
    max_context_tokens: int
    """Extension: the longest prompt and output together."""


class ModelList(BaseModel):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]
