"""`chat_template_kwargs`: variables for the model's chat template, bounded, without those that the service sets.

It knows no template.
"""

import json
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, StringConstraints
from pydantic_core import PydanticCustomError

from app.interface.wire.fields import Shallow, at_most

MAX_VARIABLES: Final = 32
MAX_VARIABLE_BYTES: Final = 16384
"""The limit of all variables together, as JSON."""
MAX_VARIABLE_LEVELS: Final = 8
RESERVED: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
    | {f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")}
    | {"range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"}
)
"""Names that the service or Jinja defines."""


def _checked(value: object) -> object:
    if not isinstance(value, dict):
        return value
    for name in value:
        if name in RESERVED:
            raise PydanticCustomError("unsupported", f"may not set '{name}', which the service sets itself")
    try:
        size = len(json.dumps(value))
    except (ValueError, TypeError, RecursionError):
        size = 0  # too deep: `Shallow` reports it
    if size > MAX_VARIABLE_BYTES:
        raise PydanticCustomError("too_long", f"has more than {MAX_VARIABLE_BYTES} bytes as JSON")
    return value


TemplateVariables = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")], Any],
    BeforeValidator(_checked),
    Shallow(MAX_VARIABLE_LEVELS),
    at_most(MAX_VARIABLES),
]
