"""The types of `/v1/embeddings`."""

from collections.abc import Sequence
from typing import Annotated, Literal, cast

from pydantic import BaseModel, Discriminator, Field, Tag

from app.interface.wire.fields import Identifier, ModelName, Text, Tokens, Wire, prompt_kind

MAX_INPUTS = 2048
"""OpenAI's limit."""

Input = Annotated[
    Annotated[Text, Tag("text")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("texts")]
    | Annotated[Tokens, Tag("tokens")]
    | Annotated[list[Tokens], Field(max_length=MAX_INPUTS, fail_fast=True), Tag("many_tokens")],
    Discriminator(
        prompt_kind,
        custom_error_type="wrong_type",
        custom_error_message="should be a string, a list of strings, a list of token ids, or a list of those",
    ),
]


class EmbeddingRequest(Wire):
    """`POST /v1/embeddings`."""

    model: ModelName = ""
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """The model's own size, or less where it was trained so that vectors can be cut."""
    user: Identifier | None = None
    pooling: Literal["mean", "last"] | None = None
    """Extension, for a chat model: the mean of all tokens' final hidden states (the default), or the last one's."""
    input_type: Literal["query", "document", "search_query", "search_document", "passage"] | None = None
    """Extension: which of an encoder's prompts stands before each text; without it, the model's default, often none.
    The last three are Cohere's and NVIDIA's names of the first two."""

    @property
    def kind(self) -> Literal["query", "document"] | None:
        """What the texts are."""
        if self.input_type is None:
            return None
        return "query" if self.input_type in ("query", "search_query") else "document"

    @property
    def inputs(self) -> Sequence[str | Sequence[int]]:
        """The inputs, each a text or a list of token ids."""
        match self.input:
            case str(text):
                return [text]
            case [int(), *_] as token_ids:
                return [cast(list[int], token_ids)]
            case inputs:
                return cast(list[str] | list[list[int]], inputs)


class Embedding(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """Numbers, or base64 of them as little-endian float32."""


class EmbeddingUsage(BaseModel):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    """One vector per input, of length 1 unless the encoder says otherwise."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
