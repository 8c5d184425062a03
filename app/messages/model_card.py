"""What a worker tells an ingress about its model. Knows no Ray, and opens no model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from app.messages.requests import OnOverflow


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What an ingress needs to render, tokenize and limit a request."""

    name: str
    """The name that clients ask for."""
    path: str
    """The folder of the converted model, or the file or block device of a sealed one; the same on every machine."""
    max_context_tokens: int | None
    """The longest prompt and output together; None: what the model was trained for."""
    on_overflow: OnOverflow
    key: str | None = None
    """Where the key of a sealed model comes from (`app.sealing.keys`); None: a folder."""
    sha256: str | None = None
    """The only digest that a sealed model may have; None: any."""
    chat_template: str | None = None
    """The file of a chat template, instead of the model's own; at the same place on every machine."""
    identity: str = ""
    """Of the files that a worker has opened (`app.sealing.sealed_model.model_identity`); empty: nobody has."""

    def to_wire(self) -> dict[str, Any]:
        """As JSON types, as Ray Serve requires."""
        return asdict(self)

    @classmethod
    def from_wire(cls, values: Mapping[str, Any]) -> Self:
        """Raises TypeError if a field is missing or unknown."""
        return cls(**values)
