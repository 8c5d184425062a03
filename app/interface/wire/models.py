"""The types of `/v1/models`, `/v1/workers`, `/health`, `/livez` and `/readyz`."""

from typing import Literal

from pydantic import BaseModel

from app.interface.wire.sampling_defaults import SamplingDefaults
from app.messages.model_card import ThinkingMode
from app.messages.workers import WorkerRow

Capability = Literal["completions", "embeddings", "chat", "rerank", "score"]


class Thinking(BaseModel):
    """Whether and how a model thinks."""

    switch: bool
    """Whether `enable_thinking: false` keeps it from thinking."""
    short_tokens: int
    """The `thinking_budget` of a short thought."""
    default: ThinkingMode
    """How much it thinks if a request does not say: not at all, at most `short_tokens`, or as long as it likes."""


class Model(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "redoubt"
    aliases: list[str] = []
    """Extension: other names by which requests may ask for it."""
    max_context_tokens: int
    """Extension: the maximum of prompt and output tokens together."""
    max_model_len: int
    """Extension: the same, by vLLM's name."""
    capabilities: list[Capability]
    """Extension: the kinds of requests it can answer. A model without a chat template has no "chat";
    an encoder has nothing that makes text."""
    sampling: SamplingDefaults | None = None
    """Extension: the sampling defaults; null of an encoder."""
    dimensions: int | None = None
    """Extension: numbers of an encoder's vectors."""
    thinking: Thinking | None = None
    """Extension: null if it does not think."""
    asleep: bool = False
    """Extension: whether its workers have given its memory back; its next request wakes one."""


class ModelList(BaseModel):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[Model]


class WorkerList(BaseModel):
    """`GET /v1/workers`."""

    object: Literal["list"] = "list"
    data: list[WorkerRow]


class Health(BaseModel):
    """`GET /health`."""

    status: Literal["ok", "unavailable"]
    workers: int
    """Workers that can take a request."""


class Liveness(BaseModel):
    """`GET /livez`."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """`GET /readyz`."""

    status: Literal["ok", "unavailable"]
    models: int
    """Models with a live worker."""
