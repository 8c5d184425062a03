"""Files in messages: their bytes, the id of a stored file, or a text that was read of one before.

They are read before a request is planned (`app.interface.generate.attached`); a plan finds only texts. Knows no reader.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, Discriminator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from app.documents.document import Kind, clean_name, framed
from app.interface.wire.fields import MAX_TOKENS, Dropped, Identifier, Text, Wire, only

UNNAMED: Final = "document"
FileName = Annotated[str, StringConstraints(max_length=4096), AfterValidator(lambda name: name and clean_name(name))]


class AttachedFile(Wire):
    """A file: one of `file_data`, `file_id` and `text`."""

    filename: FileName | None = None
    file_data: Text | None = None
    """Its bytes in base64, also as a `data:` URL."""
    file_id: Identifier | None = None
    """A file of `/v1/files` with purpose user_data."""
    file_url: Annotated[Any, only(why="the service fetches nothing; send 'file_data'")] = None
    """Not supported: the service fetches nothing."""
    text: Text | None = None
    """Extension: what `/v1/documents` has read of it. It is not read again, and the prompt is the same."""
    pages: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    """Extension: how many it has; only stored with it."""
    detail: Dropped = None

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if self.text is None and (self.file_data is None) == (self.file_id is None):
            raise PydanticCustomError("invalid", "should have one of 'file_data' and 'file_id'")
        return self

    @property
    def is_read(self) -> bool:
        return self.text is not None

    def read_as(self, name: str, text: str, pages: int | None) -> None:
        """Puts what was read in the place of the bytes."""
        for field, value in {"filename": name, "text": text, "pages": pages, "file_data": None}.items():
            object.__setattr__(self, field, value)  # the model is frozen for everybody else

    @property
    def shown(self) -> str:
        """The file as the model sees it."""
        return framed(self.filename or UNNAMED, self.text or "")


class FilePart(Wire):
    """A file in a message of chat completions."""

    type: Literal["file"]
    file: AttachedFile
    cache_control: Dropped = None

    @property
    def text(self) -> str:
        """The file as the model sees it."""
        return self.file.shown


class InputFilePart(AttachedFile):
    """A file in a message of responses, or in a tool's result."""

    type: Literal["input_file"]
    prompt_cache_breakpoint: Annotated[Any, only()] = None


def part_of(kind: str) -> Discriminator:
    """Selects between a text and a file of that type. Tags are no words that a client may have as keys."""
    return Discriminator(lambda value: "a file" if _type_of(value) == kind else "a text")


def files_first(parts: Sequence[Any]) -> list[Any]:
    """Returns the parts of a message with files before texts, so that a prompt begins alike whatever is asked."""
    return sorted(parts, key=lambda part: not isinstance(part, FilePart | InputFilePart))


def _type_of(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


class DocumentUpload(BaseModel):
    """`POST /v1/documents`: a form (multipart/form-data)."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]
    model: str = ""


class DocumentObject(BaseModel):
    """What was read of a file: an extension."""

    object: Literal["document"] = "document"
    filename: str
    kind: Kind
    pages: int | None
    """Its pages, slides or sheets."""
    notes: list[str]
    """What could not be read, a sentence each."""
    text: str
    tokens: int
    """Of the file in a prompt of this model."""
    context_tokens: int
    fits: bool
    """Whether an eighth of the context is left for question and answer."""
    expected_s: float | None
    """Seconds until the first token of an answer, if none of its pages are cached; null: no worker is known."""
    attention_s: float | None
    """What of them is attention's. It grows with the square of the tokens: several files together take the sum of the
    rest, and the square of the sum of the roots of this."""
