"""The types of `/tokenize` and `/detokenize`."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.interface.wire.chat import Message
from app.interface.wire.fields import MAX_MESSAGES, MAX_TOOLS, ModelName, Text, TokenId, Unsupported, Wire, only
from app.interface.wire.template_variables import TemplateVariables
from app.interface.wire.tools import ChatTool

MAX_TOKEN_IDS = 1 << 20


class TokenizeRequest(Wire):
    """`POST /tokenize`: a prompt as in completions, or messages as in chat completions."""

    model: ModelName = ""
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    """For a prompt: whether to add the model's begin-of-sequence token, if it uses one; true by default."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    """For messages, like the next one, as in chat completions."""
    continue_final_message: bool | None = None
    chat_template: Unsupported = None
    chat_template_kwargs: TemplateVariables | None = None
    """For messages, as in chat completions."""
    mm_processor_kwargs: Annotated[Any, only({})] = None


class TokenizeResponse(BaseModel):
    """The tokens, and the maximum."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    """Tokens as the vocabulary writes them."""


class DetokenizeRequest(Wire):
    """`POST /detokenize`."""

    model: ModelName = ""
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


class DetokenizeResponse(BaseModel):
    """The tokens' text, with special tokens by name."""

    prompt: str
