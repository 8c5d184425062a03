"""The service as all routes see it: served models, worker table and settings. It knows no path."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from app.documents.reader import Bounds, DocumentReader
from app.interface.generate.planning.limits import Limits
from app.interface.request import errors
from app.interface.request.access_log import AccessLog
from app.interface.request.observers import Observe
from app.interface.request.traces import Traces
from app.interface.text.chat_model import ChatModel
from app.interface.text.encoder_model import EncoderModel
from app.messages.outputs import Generate
from app.messages.workers import WorkerRow
from app.settings.ingress import IngressSettings

_MAKES_NO_TEXT = "This model is an encoder: it makes no text. Use /v1/embeddings, /v1/rerank or /v1/score."


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients may name, and its workers."""

    text: ChatModel | EncoderModel
    """What makes tokens of texts."""
    generate: Generate
    """`app.controller.worker_client.WorkerClient.generate`."""
    created: int
    """The load time in Unix seconds."""
    aliases: tuple[str, ...] = ()
    """Other names by which clients may ask for it."""

    @property
    def chat(self) -> ChatModel:
        """The model that goes on with texts. Raises ApiError (400) for an encoder."""
        if isinstance(self.text, EncoderModel):
            raise errors.invalid(_MAKES_NO_TEXT, "model")
        return self.text

    @property
    def encoder(self) -> EncoderModel | None:
        """None: it is a chat model."""
        return self.text if isinstance(self.text, EncoderModel) else None


@dataclass(frozen=True, slots=True)
class IngressFacts:
    """The identity of this ingress, for the operator."""

    id: str
    node: str
    """The machine's name."""
    replicas: int
    """The number of ingresses of the service."""
    version: str
    """The version of Redoubt."""
    up_since: float
    """Unix seconds."""


async def _models_stay() -> None:
    """The default for a service whose models never change."""


def _nobody_counts(model: str) -> None:
    """The default for a service without metrics."""


@dataclass(frozen=True, slots=True)
class Service:
    """Everything that the routes need."""

    models: Mapping[str, ServedModel]
    workers: Callable[[], Sequence[WorkerRow]]
    settings: IngressSettings
    ingress: IngressFacts
    api_keys: tuple[str, ...] = ()
    """A client must send one of these; empty: every client is served."""
    behind_own_proxy: bool = False
    """Whether every request comes through our HAProxy (`app.interface.request.client_address`)."""
    access_log: AccessLog | None = None
    """None: disabled."""
    traces: Traces | None = None
    """None: disabled."""
    follow_models: Callable[[], Awaitable[None]] = _models_stay
    """Updates `models` after a worker has reported that one was replaced."""
    counting: Callable[[str], Observe | None] = _nobody_counts
    """Counts a model's sequences for the metrics."""

    @property
    def limits(self) -> Limits:
        """What the settings allow one request."""
        settings = self.settings
        return Limits(settings.default_max_tokens, settings.max_choices, settings.max_beams)

    def document_reader(self) -> DocumentReader:
        """Returns a reader of files with the bounds of the settings."""
        return DocumentReader(Bounds(self.settings.document_bytes, self.settings.document_seconds))

    def name_of(self, name: str) -> str:
        """Returns the own name of the model that a request asks for by this one; empty: the first.

        Raises ApiError (404, or 503 if there is no model).
        """
        models = self.models
        if not name:
            first = next(iter(models), None)
            if first is None:
                raise errors.unavailable(self.settings.retry_after_s, "No model is served yet. Try again later.")
            return first
        if name in models:
            return name
        own = next((own for own, served in models.items() if name in served.aliases), None)
        if own is None:
            raise errors.no_such_model(name, models)
        return own

    def model(self, name: str) -> ServedModel:
        """Returns the model of that name, or alias; empty: the first. Raises as `name_of` does."""
        served = self.models.get(self.name_of(name))
        if served is None:  # it has gone in between
            raise errors.no_such_model(name, self.models)
        return served
