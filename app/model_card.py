"""What a worker tells a front door of the model it runs. Knows no Ray, and opens no model."""

from dataclasses import dataclass
from pathlib import Path

from app.context_window import OnOverflow
from app.settings import WorkersSettings


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


def model_card(settings: WorkersSettings) -> ModelCard:
    """The card of the model that these workers run."""
    model = settings.model
    folder = str(Path(model.folder).absolute())
    return ModelCard(model.name, folder, settings.engine.max_context_tokens, model.on_overflow)
