"""The types of `/v1/admin/overview`, `.../capacity` and `.../usage/users`. Times are Unix seconds."""

from typing import Literal

from pydantic import BaseModel

from app.interface.request.recent_failures import FailedRequest
from app.messages.workers import WorkerRow


class IngressObject(BaseModel):
    """The ingress that answers. Others have their own requests and failures."""

    id: str
    node: str
    replicas: int
    """The number of ingresses of the service."""
    version: str
    """The version of Redoubt."""
    up_since: float
    open_requests: int
    """HTTP requests in progress: running, queued, or being received. This one counts."""
    max_open_requests: int


class ModelOverview(BaseModel):
    """A model, over all its workers."""

    id: str
    max_context_tokens: int
    workers: int
    """Workers that can take a request."""
    running: int
    """Requests in its workers' engines."""
    waiting: int
    """Requests in its workers' queues."""


class Overview(BaseModel):
    """`GET /v1/admin/overview`."""

    object: Literal["overview"] = "overview"
    at: float
    """The time of the overview, by the ingress's clock."""
    ingress: IngressObject
    models: list[ModelOverview]
    workers: list[WorkerRow]
    failures: list[FailedRequest]
    """Failures of this ingress since its start, newest first: at most 100 refusals (4xx), and 100 failures of the
    service (5xx, and streams that broke off)."""


class UsageCountsObject(BaseModel):
    """The usage of a period."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    output_tokens: int


class UserUsageObject(BaseModel):
    """A user's usage, by UTC days, today included."""

    user_id: str
    name: str | None
    """None: the user was deleted."""
    today: UsageCountsObject
    days_7: UsageCountsObject
    days_30: UsageCountsObject


class UserUsageList(BaseModel):
    """`GET /v1/admin/usage/users`: every user, and deleted ones with usage in the last 30 days."""

    object: Literal["list"] = "list"
    data: list[UserUsageObject]


class CandidateObject(BaseModel):
    """A machine of the calculator's table."""

    name: str
    """The name for `redoubt plan --machine`."""
    title: str
    serves: bool
    """Whether it alone is expected to serve the users."""


class CapacityObject(BaseModel):
    """The expected capacity of a model's workers, by the measurement of their warm-up."""

    name: str
    workers: int
    """Live workers."""
    prompt_tokens_per_s: float
    """The rate of one worker for a single prompt of 512 tokens."""
    answer_tokens_per_s: float
    """The rate of one worker for a single answer."""
    kv_tokens: int
    """Tokens that fit in one worker's KV pages."""
    users: int
    """The most users within the SLO: first token under 3 s, 200 ms a token, at 95 %."""
    serves: bool
    """Whether the workers serve the number of users asked for."""
    limit: Literal["read", "compute", "memory", "places", "kv_memory"]
    """What limits the number of users: memory reads, compute, memory, or a setting: worker.max_concurrent_requests,
    engine.kv_memory_bytes."""
    candidates: list[CandidateObject] | None
    """Machines, each with the settings that the users need. None: no measurement exists for this weight type."""


class CapacityList(BaseModel):
    """`GET /v1/admin/capacity`."""

    object: Literal["list"] = "list"
    users: int
    """The number of users asked for."""
    data: list[CapacityObject]
