"""Custom tools, whose input is text: the format of the input, and the schema of a function that stands for one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, GetCoreSchemaHandler, StringConstraints, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.interface.wire.fields import Wire

Definition = Annotated[str, StringConstraints(max_length=65536)]


class CustomGrammar(Wire):
    """The grammar of a custom tool's input."""

    syntax: Literal["lark", "regex"]
    definition: Definition


class CustomFormat(Wire):
    """The format of a custom tool's input."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Definition | None = None

    @model_validator(mode="after")
    def _has_its_grammar(self) -> Self:
        if (self.type == "grammar") != (self.syntax is not None) or (self.syntax is None) != (self.definition is None):
            raise PydanticCustomError("invalid", "needs 'syntax' and 'definition' where its type is grammar")
        return self

    @property
    def grammar(self) -> CustomGrammar | None:
        if self.syntax is None or self.definition is None:
            return None
        return CustomGrammar(syntax=self.syntax, definition=self.definition)


def parameters_of(grammar: CustomGrammar | None) -> dict[str, Any]:
    """Returns a schema of one string. A regular expression becomes part of it; a Lark grammar its description."""
    text: dict[str, Any] = {"type": "string"}
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = f"^(?:{grammar.definition})$"
    elif grammar is not None:
        text["description"] = f"The text follows this Lark grammar:\n{grammar.definition}"
    return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}


def is_strict(grammar: CustomGrammar | None) -> bool | None:
    """Whether the function has to follow its schema; None: it does not say."""
    return True if grammar is not None and grammar.syntax == "regex" else None


@dataclass(frozen=True, slots=True)
class or_custom:  # noqa: N801  # an annotation
    """Also takes what is of type custom, and makes of it what is of type function."""

    custom: type[BaseModel]
    converted: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Chooses by the type. Tags are no words that a client may have as keys: errors name places by keys alone."""
        custom = core_schema.no_info_after_validator_function(self.converted, handler.generate_schema(self.custom))
        kinds = {"a function": handler(source), "a custom tool": custom}
        return core_schema.tagged_union_schema(kinds, discriminator=_kind)


def _kind(value: object) -> str:
    return "a custom tool" if isinstance(value, dict) and value.get("type") == "custom" else "a function"
