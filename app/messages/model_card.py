"""A worker's description of its model for an ingress. Knows no Ray, and opens no model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from app.messages.defaults import SHORT_THINKING_TOKENS
from app.messages.requests import OnOverflow

ThinkingMode = Literal["off", "short", "full"]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Everything an ingress needs to render, tokenize and limit a request."""

    name: str
    """The model's name in the API."""
    path: str
    """Path of the converted model's folder, or of the sealed model's file or device; the same on every machine."""
    max_context_tokens: int | None
    """The longest prompt and output together; None: the model's trained length."""
    on_overflow: OnOverflow
    key: str | None = None
    """Source of a sealed model's key (`app.sealing.keys`); None: a folder."""
    sha256: str | None = None
    """The only digest that a sealed model may have; None: any."""
    chat_template: str | None = None
    """Path of a chat template that replaces the model's own; the same on every machine."""
    thinking: ThinkingMode | None = None
    """How much it thinks if a request does not say; None: as its template does."""
    short_thinking_tokens: int = SHORT_THINKING_TOKENS
    """The budget of "short"."""
    aliases: tuple[str, ...] = ()
    """Its other names in the API."""
    identity: str = ""
    """Identity of the opened files (`app.sealing.sealed_model.model_identity`); empty: not opened yet."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of its names in the API."""
        return self.name, *self.aliases

    def to_wire(self) -> dict[str, Any]:
        """Returns JSON types, as Ray Serve requires."""
        return {**asdict(self), "aliases": list(self.aliases)}

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        """Raises TypeError if a field is missing or unknown."""
        return cls(**{**values, "aliases": tuple(values["aliases"])} if "aliases" in values else values)
