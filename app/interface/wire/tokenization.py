"""`/tokenize` and `/detokenize`: what clients send and read."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from app.interface.wire.chat import Message, Tool
from app.interface.wire.fields import MAX_MESSAGES, MAX_TOOLS, Identifier, Text, TokenId, Unsupported, Wire, only
from app.interface.wire.template_variables import TemplateVariables

MAX_TOKEN_IDS = 1 << 20


class TokenizeRequest(Wire):
    """`POST /tokenize`: a prompt as completions take it, or messages as chat completions do."""

    model: Identifier | None = None
    """None: the first of `/v1/models`."""
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    """Of a prompt: whether it begins with the token that the model wants there, if it wants one; none: yes."""
    return_token_strs: bool | None = None
    add_generation_prompt: Annotated[bool | None, only(True)] = None
    continue_final_message: Annotated[bool | None, only(False)] = None
    chat_template: Unsupported = None
    chat_template_kwargs: TemplateVariables | None = None
    """Of messages, as in chat completions."""
    mm_processor_kwargs: Annotated[Any, only({})] = None


class TokenizeResponse(BaseModel):
    """The tokens, and how many fit."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    """As the vocabulary writes them."""


class DetokenizeRequest(Wire):
    """`POST /detokenize`."""

    model: Identifier | None = None
    """None: the first of `/v1/models`."""
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


class DetokenizeResponse(BaseModel):
    """The tokens' text, special tokens by their names."""

    prompt: str
