"""Checks the browser's calls of the page's functions, and writes their bodies anew for Gradio.

Gradio quotes a call that it cannot use in its tracebacks, with prompts and keys. So a malformed call never reaches it.
Only known fields pass, with values of the types that the page's components take. Knows nothing of HTTP.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import gradio as gr
import orjson
from gradio.block_function import BlockFunction
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.interface import errors

_Session = Annotated[str, Field(pattern=r"^[0-9a-z]{1,32}$")]
_Event = Annotated[str, Field(pattern=r"^[0-9a-f]{1,32}$")]


class _Known(BaseModel):
    """Strictly typed; other fields are dropped."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Call(_Known):
    session_hash: _Session
    fn_index: int
    data: Annotated[list[Any], Field(max_length=16)]


class _Cancel(_Known):
    session_hash: _Session
    fn_index: int
    event_id: _Event


class _Reset(_Known):
    event_id: _Event


class _Part(_Known):
    type: Literal["text"]
    text: str


class _Turn(_Known):
    role: Literal["user", "assistant"]
    content: str | list[_Part]


_VALUES: Mapping[type, TypeAdapter[Any]] = {
    gr.Chatbot: TypeAdapter(list[_Turn]),
    gr.Dropdown: TypeAdapter(str | None),
    gr.Number: TypeAdapter(int | float | None),
    gr.Slider: TypeAdapter(int | float),
    gr.Textbox: TypeAdapter(str | None),
}
"""What each component of the page holds."""

Known = TypeVar("Known", bound=_Known)


def call(functions: Mapping[int, BlockFunction], raw: bytes, *, queued: bool) -> tuple[str, bytes]:
    """A call of a function of the page: its session, and the body for Gradio.

    queued: whether it is to go through Gradio's queue, or to be answered at once. Raises ApiError (400).
    """
    asked = _parsed(_Call, raw)
    function = functions.get(asked.fn_index)
    if function is None or bool(function.queue) != queued:
        raise errors.invalid("The page has no such function.", "fn_index")
    if len(asked.data) != len(function.inputs):
        raise errors.invalid(f"This function takes {len(function.inputs)} values, not {len(asked.data)}.", "data")
    values = []
    for place, (component, value) in enumerate(zip(function.inputs, asked.data, strict=True)):
        kind = _VALUES[type(component)]
        try:
            values.append(kind.dump_python(kind.validate_python(value, strict=True)))
        except ValidationError:
            raise errors.invalid("The value is of another type.", f"data[{place}]") from None
    body = {"session_hash": asked.session_hash, "fn_index": asked.fn_index, "data": values}
    return asked.session_hash, orjson.dumps(body)


def cancel(raw: bytes) -> bytes:
    """The body for Gradio of a call that ends an event. Raises ApiError (400)."""
    return orjson.dumps(_parsed(_Cancel, raw).model_dump())


def reset(raw: bytes) -> bytes:
    """The body for Gradio of a call that forgets an event. Raises ApiError (400)."""
    return orjson.dumps(_parsed(_Reset, raw).model_dump())


def session(text: str) -> str:
    """A session's name as the browser writes it. Raises ApiError (400)."""
    try:
        return _SESSION.validate_python(text)
    except ValidationError:
        raise errors.invalid("This is no session's name.", "session_hash") from None


_SESSION: TypeAdapter[str] = TypeAdapter(_Session)


def _parsed(kind: type[Known], raw: bytes) -> Known:
    try:
        return kind.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError:
        raise errors.invalid("The body is not valid JSON.", code="invalid_json") from None
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise errors.invalid("A field is missing or of another type.", field or None) from None
