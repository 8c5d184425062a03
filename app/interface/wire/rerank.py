"""The types of `/v1/rerank` (Jina's and Cohere's shape, as vLLM has it), `/v2/rerank` and `/v1/score` (vLLM's)."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from app.interface.wire.fields import Dropped, Identifier, ModelName, Text, Wire

MAX_DOCUMENTS = 2048


class TextDocument(Wire):
    """A document as an object."""

    text: Text


Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]


class RerankRequest(Wire):
    """`POST /v1/rerank`. Without a model the first reranker answers, or else the first encoder."""

    finds_its_model: ClassVar[bool] = True
    model: ModelName = ""
    query: Text
    documents: Annotated[list[Text | TextDocument], Field(min_length=1, max_length=MAX_DOCUMENTS, fail_fast=True)]
    top_n: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """How many of the best documents are returned; all without it."""
    return_documents: bool = True
    max_tokens_per_doc: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """What is read of each document: its first tokens; never more than the model's longest text."""
    user: Identifier | None = None

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [each.text if isinstance(each, TextDocument) else each for each in self.documents]


class RerankV2Request(RerankRequest):
    """`POST /v2/rerank`."""

    return_documents: bool = False
    priority: Dropped = None


class RankedText(BaseModel):
    """A document's text."""

    text: str


class RerankResult(BaseModel):
    """A document's place, best first."""

    index: int
    """Of the request's documents, from 0."""
    relevance_score: float
    """0 to 1."""
    document: RankedText | None = None


class RerankUsage(BaseModel):
    """The tokens of all pairs."""

    prompt_tokens: int
    total_tokens: int


class RerankResponse(BaseModel):
    """The documents by falling relevance."""

    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage


class ScoreRequest(Wire):
    """`POST /v1/score`. One text_1 is compared with each text_2; as many of both are compared pair by pair.

    Without a model the first reranker answers, or else the first encoder.
    """

    finds_its_model: ClassVar[bool] = True
    model: ModelName = ""
    text_1: Text | Texts
    text_2: Text | Texts
    user: Identifier | None = None


class Score(BaseModel):
    """One pair's score."""

    index: int
    object: Literal["score"] = "score"
    score: float
    """0 to 1."""


class ScoreResponse(BaseModel):
    """A score for each pair."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: RerankUsage
