"""The types of `/v1/files` and `/v1/batches`, as in OpenAI's API. Times are Unix seconds."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field

from app.interface.wire.fields import Identifier, Metadata, Wire, at_most

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
ENDPOINTS: tuple[BatchEndpoint, ...] = get_args(BatchEndpoint)
LEAST_KEPT_S, MOST_KEPT_S = 3600, 30 * 86_400
_MOST_BODY_FIELDS = 1024


class ExpiresAfter(Wire):
    """When a file is deleted."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_KEPT_S, le=MOST_KEPT_S)]


class FileUpload(BaseModel):
    """`POST /v1/files`: a form (multipart/form-data)."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    """JSON lines for a batch; else a document that messages refer to."""
    purpose: Literal["batch", "user_data", "assistants"]
    expires_after: ExpiresAfter | None = None
    """As the fields `expires_after[anchor]` and `expires_after[seconds]`."""


class FileObject(BaseModel):
    """A file without its content."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    """null: it is kept until it is deleted."""
    filename: str
    purpose: Literal["batch", "batch_output", "user_data", "assistants"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class FileList(BaseModel):
    """`GET /v1/files`."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str
    last_id: str
    """Empty, like `first_id`, if the list is empty."""
    has_more: bool


class DeletedFile(BaseModel):
    """`DELETE /v1/files/{id}`."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class BatchRequest(Wire):
    """`POST /v1/batches`."""

    input_file_id: Identifier
    """An uploaded file of lines, each a `BatchLine`."""
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    """The only value of OpenAI's API; how long a batch may take is `accounts.batches.hours`."""
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchLine(Wire):
    """A line of a batch's file."""

    custom_id: Annotated[str, Field(min_length=1, max_length=512)]
    """Names the line's result; no two lines have the same."""
    method: Literal["POST"]
    url: BatchEndpoint
    """The batch's `endpoint`."""
    body: Annotated[dict[str, Any], at_most(_MOST_BODY_FIELDS)]
    """The request, of the same model in every line."""


class BatchError(BaseModel):
    """What is wrong in a batch's file."""

    code: str
    line: int | None
    """From 1; null: it is about the whole file."""
    message: str
    param: str | None
    """The line's field."""


class BatchErrors(BaseModel):
    """The first faults of a batch's file."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    """The lines of a batch."""

    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    """Why it has `failed`."""
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    model: str | None
    """What its lines ask for; null before they were checked."""


class BatchList(BaseModel):
    """`GET /v1/batches`, newest first."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str
    last_id: str
    has_more: bool
