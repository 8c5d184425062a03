"""What a worker tells a front door of the model it runs. Knows no Ray, and opens no model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from app.messages.requests import OnOverflow


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What must be known to render, tokenize and limit a request."""

    name: str
    """What clients ask for."""
    folder: str
    """The converted model; the same path on every machine."""
    max_context_tokens: int | None
    """The longest prompt and output together; None: what the model was trained for."""
    on_overflow: OnOverflow

    def to_wire(self) -> dict[str, Any]:
        """As JSON types, which is what Serve carries."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        """Raises TypeError if a field is missing, or one too many."""
        return cls(**values)
