"""The types of `/v1/vector_stores`, as in OpenAI's API: pydantic models that only validate.

A vector store is a collection of documents. Times are Unix seconds.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.interface.wire.fields import Identifier, Metadata, Text, Unsupported, Wire, at_most, kind_of, only

MOST_RESULTS = 50
_MOST_FILES = 100
_MOST_IN_BATCH = 2000
_MOST_QUESTIONS = 8
_MOST_FILTERS = 64

_AttributeName = Annotated[str, Field(min_length=1, max_length=64)]
_AttributeValue = Annotated[str, Field(max_length=512)] | bool | float
Attributes = Annotated[dict[_AttributeName, _AttributeValue], at_most(16)]


class StaticChunking(Wire):
    """`chunking_strategy.static`, within OpenAI's bounds."""

    max_chunk_size_tokens: Annotated[int, Field(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _overlaps_by_half_at_most(self) -> Self:
        if self.chunk_overlap_tokens > self.max_chunk_size_tokens // 2:
            raise PydanticCustomError("invalid", "'chunk_overlap_tokens' is more than half of 'max_chunk_size_tokens'")
        return self


class Chunking(Wire):
    """`chunking_strategy`: without effect, as the service cuts as its encoders read. A document's says `other`."""

    type: Annotated[Literal["auto", "static"], only("auto", "static")]
    static: StaticChunking | None = None


class _NewNames(Wire):
    name: Annotated[str, Field(max_length=256)] | None = None
    description: Annotated[str, Field(max_length=4096)] | None = None
    metadata: Metadata | None = None
    expires_after: Unsupported = None
    """A collection is kept until it is deleted."""


class VectorStoreRequest(_NewNames):
    """`POST /v1/vector_stores`."""

    file_ids: Annotated[list[Identifier], Field(max_length=_MOST_FILES, fail_fast=True)] | None = None
    """Files of yours to add."""
    chunking_strategy: Chunking | None = None


class VectorStoreChange(_NewNames):
    """`POST /v1/vector_stores/{id}`: what is left out stays."""


class FileCounts(BaseModel):
    """How many documents there are, by state."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStore(BaseModel):
    """A collection of documents."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    """Of passages and vectors, sealed."""
    file_counts: FileCounts
    status: Literal["in_progress", "completed"]
    expires_after: None = None
    expires_at: None = None
    last_active_at: int
    metadata: dict[str, str]
    shared: bool
    """Extension: it is somebody else's, and can only be searched."""


class VectorStoreList(BaseModel):
    """`GET /v1/vector_stores`."""

    object: Literal["list"] = "list"
    data: list[VectorStore]
    first_id: str
    last_id: str
    has_more: bool


class DeletedVectorStore(BaseModel):
    """`DELETE /v1/vector_stores/{id}`."""

    id: str
    object: Literal["vector_store.deleted"] = "vector_store.deleted"
    deleted: Literal[True] = True


class MembersRequest(Wire):
    """`POST /v1/vector_stores/{id}/members`."""

    users: Annotated[list[Identifier], Field(max_length=1000, fail_fast=True)]
    """The names of all who may search in it beside you."""


class Members(BaseModel):
    """With whom a collection is shared."""

    object: Literal["vector_store.members"] = "vector_store.members"
    vector_store_id: str
    users: list[str]


class DocumentRequest(Wire):
    """`POST /v1/vector_stores/{id}/files`."""

    file_id: Identifier
    attributes: Attributes | None = None
    chunking_strategy: Chunking | None = None


class DocumentChange(Wire):
    """`POST /v1/vector_stores/{id}/files/{file_id}`."""

    attributes: Attributes | None
    """In place of those that it has; null: none."""


class FileBatchRequest(Wire):
    """`POST /v1/vector_stores/{id}/file_batches`: either files with the same attributes, or each with its own."""

    file_ids: Annotated[list[Identifier], Field(min_length=1, max_length=_MOST_IN_BATCH, fail_fast=True)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: Chunking | None = None
    files: Annotated[list[DocumentRequest], Field(min_length=1, max_length=_MOST_IN_BATCH, fail_fast=True)] | None = (
        None
    )


class FileBatch(BaseModel):
    """Documents that were added together."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled"]
    file_counts: FileCounts


class DocumentFault(BaseModel):
    """Why a document could not be read."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    """OpenAI's, which clients know."""
    message: str
    reason: str
    """Extension: our own code, such as `not_found` or `insufficient_quota`."""


class CollectedFile(BaseModel):
    """A document of a collection."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    last_error: DocumentFault | None
    usage_bytes: int
    attributes: dict[str, Any]
    chunking_strategy: dict[str, str] = {"type": "other"}
    """The service cuts as its encoders read, whatever was asked for."""
    filename: str
    """Extension, as the next three; empty until it was read, or could not be, and if its file was not found."""
    pages: int | None
    passages: int | None
    """How many it was cut into; null until it was read."""
    notes: list[str]
    """What of it could not be read."""


class CollectedFileList(BaseModel):
    """`GET /v1/vector_stores/{id}/files`."""

    object: Literal["list"] = "list"
    data: list[CollectedFile]
    first_id: str
    last_id: str
    has_more: bool


class RemovedFile(BaseModel):
    """`DELETE /v1/vector_stores/{id}/files/{file_id}`."""

    id: str
    object: Literal["vector_store.file.deleted"] = "vector_store.file.deleted"
    deleted: Literal[True] = True


class TextContent(BaseModel):
    """A passage's text."""

    type: Literal["text"] = "text"
    text: str


class PassageText(TextContent):
    """A passage in its document."""

    page: int | None
    """Extension: where it begins."""


class FileContent(BaseModel):
    """`GET /v1/vector_stores/{id}/files/{file_id}/content`: its passages, which overlap."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    data: list[PassageText]
    has_more: bool = False
    next_page: None = None


# --- search


class Comparison(Wire):
    """A condition on an attribute."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: _AttributeName
    value: _AttributeValue | Annotated[list[_AttributeValue], Field(max_length=_MOST_FILTERS)]

    def holds(self, attributes: "dict[str, Any]") -> bool:
        """Whether a document has it; one without the attribute has only `ne` and `nin`."""
        found = attributes.get(self.key)
        if self.type in ("in", "nin"):
            return (isinstance(self.value, list) and found in self.value) == (self.type == "in")
        if self.type in ("eq", "ne"):
            return (found == self.value) == (self.type == "eq")
        both_numbers = all(isinstance(each, (int, float)) for each in (found, self.value))
        if not both_numbers and not (isinstance(found, str) and isinstance(self.value, str)):
            return False
        wanted: Any = self.value
        return bool(
            {"gt": found > wanted, "gte": found >= wanted, "lt": found < wanted, "lte": found <= wanted}[self.type]
        )


class Compound(Wire):
    """Several conditions."""

    type: Literal["and", "or"]
    filters: Annotated[list["Filter"], Field(min_length=1, max_length=_MOST_FILTERS)]

    def holds(self, attributes: "dict[str, Any]") -> bool:
        """Whether a document has all of them, or one."""
        found = (each.holds(attributes) for each in self.filters)
        return all(found) if self.type == "and" else any(found)


def _filter_kind(value: object) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "compound" if kind in ("and", "or") else "comparison"


Filter = Annotated[
    Annotated[Comparison, Tag("comparison")] | Annotated[Compound, Tag("compound")], Discriminator(_filter_kind)
]
Compound.model_rebuild()


class RankingOptions(Wire):
    """How results are ranked: `ranker` "none" uses no reranker, and any other the one that is served."""

    ranker: Annotated[str, Field(max_length=64)] | None = None
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    hybrid_search: Unsupported = None


class SearchRequest(Wire):
    """`POST /v1/vector_stores/{id}/search`."""

    query: Annotated[
        Annotated[Text, Tag("text")]
        | Annotated[list[Text], Field(min_length=1, max_length=_MOST_QUESTIONS), Tag("several")],
        kind_of("should be a string or a list of strings", {str: "text", list: "several"}),
    ]
    filters: Filter | None = None
    max_num_results: Annotated[int, Field(ge=1, le=MOST_RESULTS)] = 10
    ranking_options: RankingOptions | None = None
    rewrite_query: Annotated[bool | None, only(False)] = None


class SearchResult(BaseModel):
    """A passage that was found."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Any]
    content: list[TextContent]
    page: int | None
    """Extension, as the next one: where the passage begins."""
    heading: str


class SearchResults(BaseModel):
    """The passages found, best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResult]
    has_more: bool = False
    next_page: None = None
    unread: int = 0
    """Extension, as the next one: how many documents are still being read, and so were not searched."""
    words_only: bool = False
    """Whether meanings were not compared: no encoder is served, or none answered, or it has read no passage yet."""
