"""The settings of the model that is served."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.messages.defaults import SHORT_THINKING_TOKENS
from app.settings.knobs import Knobs, first_twice


class ModelSettings(Knobs):
    """Which model is served: a folder, or a sealed model and its key.

    A file for `redoubt serve` may have `name` in place of `folder`: a model's name as `redoubt pull` takes it, such as
    `Qwen/Qwen3-4B`. What is not in the store is fetched at the start; while the service runs, it is not.
    """

    folder: str | None = Field(default=None, min_length=1)
    """The folder of a converted model (`redoubt convert`), absolute or relative to where the service is started."""
    sealed: str | None = Field(default=None, min_length=1)
    """A sealed model (`redoubt seal`), instead of a folder: a block device or a file."""
    key: str | None = Field(default=None, pattern="^(file|kbs):///.")
    """Where the key of the sealed model comes from. file:///PATH, or kbs:///REPOSITORY/TYPE/TAG, which a confidential
    container gets once it has proved what it is."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    """The digest of the sealed model, which `redoubt seal` prints: another one is refused. none: any model that the key
    opens and that was sealed under this name."""
    served_name: str | None = Field(default=None, min_length=1)
    """The model's name in the API; none: the folder's name. A sealed model needs it: the name that it was sealed
    under."""

    aliases: list[Annotated[str, Field(min_length=1, max_length=512)]] = Field(default_factory=list)
    """Other names by which requests may ask for the model, such as those that a client has built in. `GET /v1/models`
    lists it once, with them."""
    chat_template: str | None = Field(default=None, min_length=1)
    """The file of a chat template (Jinja), instead of the model's own; none: the model's. A model without one serves
    completions only."""
    on_overflow: Literal["refuse", "shift"] = "refuse"
    """What happens when the context is full, for requests that say nothing about it. "refuse": a prompt that does not
    fit is refused, and an answer ends. "shift": a chat loses its oldest turns, an answer its oldest tokens."""
    thinking: Literal["off", "short", "full"] | None = None
    """How much the model thinks before it answers a request that says nothing about it: not at all, at most
    `short_thinking_tokens`, or as long as it likes; none: as its chat template does. Without effect on a model that
    does not think."""
    short_thinking_tokens: int = Field(default=SHORT_THINKING_TOKENS, ge=1, le=1 << 20)
    """The most tokens of a "short" thought, also where a person chooses it in the page or the terminal."""
    draft: str | None = Field(default=None, min_length=1)
    """A smaller model with the same vocabulary that drafts this one's answers, or an EAGLE-3 head that was trained for
    it: the folder of a converted one, in a file for `redoubt serve` also its name. Answers stay the same, token by
    token, and come faster; it runs in the same workers, with pages beside `engine.kv_memory_bytes`. none: nothing but
    what is looked up (`engine.guess_tokens`)."""

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.served_name or self.path.name

    @property
    def names(self) -> tuple[str, ...]:
        """All of its names in the API."""
        return self.name, *self.aliases

    @property
    def path(self) -> Path:
        """The absolute path of the folder, or of the sealed model."""
        return Path(self.folder or self.sealed or "").absolute()

    def absolute(self) -> Self:
        """The same model, whatever the current folder is."""
        place = {"folder": str(self.path)} if self.sealed is None else {"sealed": str(self.path)}
        template = None if self.chat_template is None else str(Path(self.chat_template).absolute())
        draft = None if self.draft is None else str(Path(self.draft).absolute())
        return self.model_copy(update={**place, "served_name": self.name, "chat_template": template, "draft": draft})

    @model_validator(mode="after")
    def _is_one_model(self) -> Self:
        if (self.folder is None) == (self.sealed is None):
            raise ValueError("needs either folder or sealed")
        if self.sealed is None and (self.key is not None or self.sha256 is not None):
            raise ValueError("key and sha256 are for a sealed model")
        if self.sealed is not None and self.chat_template is not None:
            raise ValueError("chat_template is for a folder: a sealed model has its template sealed with it")
        if self.sealed is not None and (self.key is None or self.served_name is None):
            raise ValueError("a sealed model needs key, and served_name: the name that it was sealed under")
        if (twice := first_twice(self.names)) is not None:
            raise ValueError(f"aliases: {twice!r} is already a name of this model")
        return self
