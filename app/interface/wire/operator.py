"""`/v1/admin/overview`, `.../capacity` and `.../usage/users`: what administrators read. Times are Unix seconds."""

from typing import Literal

from pydantic import BaseModel

from app.interface.request.recent_failures import FailedRequest
from app.messages.workers import WorkerRow


class IngressObject(BaseModel):
    """The ingress that answers. Others have their own requests and failures."""

    id: str
    node: str
    replicas: int
    """How many ingresses the service has."""
    version: str
    """Redoubt's."""
    up_since: float
    open_requests: int
    """HTTP requests that it answers now: running, waiting for a worker, or still coming in. This one counts."""
    max_open_requests: int


class ModelOverview(BaseModel):
    """A model, over all its workers."""

    id: str
    max_context_tokens: int
    workers: int
    """Those that can take a request."""
    running: int
    """Requests in its workers' engines."""
    waiting: int
    """Requests in its workers' queues."""


class Overview(BaseModel):
    """`GET /v1/admin/overview`."""

    object: Literal["overview"] = "overview"
    at: float
    """When this was, by the ingress' clock."""
    ingress: IngressObject
    models: list[ModelOverview]
    workers: list[WorkerRow]
    failures: list[FailedRequest]
    """Of this ingress since its start, the newest first: at most 100 refusals (4xx), and 100 failures of the service
    (5xx, and streams that broke off)."""


class UsageCountsObject(BaseModel):
    """What somebody took."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Those of the prompt tokens that the prefix cache had."""
    output_tokens: int


class UserUsageObject(BaseModel):
    """What a user took, of days in UTC, the present one included."""

    user_id: str
    name: str | None
    """None: the user was deleted."""
    today: UsageCountsObject
    days_7: UsageCountsObject
    days_30: UsageCountsObject


class UserUsageList(BaseModel):
    """`GET /v1/admin/usage/users`: every user, and those deleted ones who took anything in the last 30 days."""

    object: Literal["list"] = "list"
    data: list[UserUsageObject]


class CandidateObject(BaseModel):
    """A machine of the calculator's table."""

    name: str
    """As `redoubt plan --machine` takes it."""
    title: str
    serves: bool
    """Whether it alone is expected to serve the users."""


class CapacityObject(BaseModel):
    """What a model's workers are expected to do, by the measurement of their warm-up."""

    name: str
    workers: int
    """Those that are up."""
    prompt_tokens_per_s: float
    """Of one worker, a prompt of 512 tokens alone."""
    answer_tokens_per_s: float
    """Of one worker, one answer alone."""
    kv_tokens: int
    """That one worker's pages hold."""
    users: int
    """The most users at the promise: first token under 3 s, 200 ms a token, at 95 %."""
    serves: bool
    """Whether those that were asked for are not more."""
    limit: Literal["read", "compute", "memory", "places", "kv_memory"]
    """What more users would need first: faster reads, more multiply-adds, more memory than there is, or a setting:
    worker.max_concurrent_requests, engine.kv_memory_bytes."""
    candidates: list[CandidateObject] | None
    """Each with the settings that the users need. None: nobody has measured weights of this type."""


class CapacityList(BaseModel):
    """`GET /v1/admin/capacity`."""

    object: Literal["list"] = "list"
    users: int
    """Those that were asked for."""
    data: list[CapacityObject]
