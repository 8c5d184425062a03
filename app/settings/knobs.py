"""Groups of settings: one that does not exist or has the wrong type is refused by name.

The same classes check the `args` of our applications, which Ray passes to `app.deploy`, and as part of
`app.launch.config_file` the whole Serve configuration file, because Ray ignores top-level keys that it does not know.
The docstrings below their fields are the table of docs/configuration.md. They know nothing of Ray and open no model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Model = TypeVar("Model", bound=BaseModel)


class SettingsError(ValueError):
    """The configuration is wrong. The message has a line for each mistake: the file, the knob and the reason."""


class Knobs(BaseModel):
    """A group of settings: frozen, strictly typed, unknown names refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def first_twice(names: Iterable[str]) -> str | None:
    """Returns the first name that was there before; None: each is its own."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def validated(model: type[Model], values: Mapping[str, Any], source: str) -> Model:
    """The values as settings. Raises SettingsError with a line for each wrong knob: source, knob, reason."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [f"{source}: {_knob(e['loc'])}: {_reason(e['type'], e['msg'])}" for e in error.errors()]
        raise SettingsError("\n".join(lines)) from error


def _knob(location: Sequence[str | int]) -> str:
    # Pydantic puts an application's import_path, which selects its class, into the location.
    parts = [str(part) for part in location if not str(part).startswith("app.deploy:")]
    return ".".join(parts) or "settings"


def _reason(kind: str, message: str) -> str:
    return "there is no such setting" if kind == "extra_forbidden" else message.removeprefix("Value error, ")
