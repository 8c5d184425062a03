"""The fields by which a request gives its answer a form: a JSON schema, a grammar, a regular expression, a choice.

OpenAI has `response_format`; the others are those of vLLM, older and newer, and of llama-server. At most one has a
value (`app.interface.functions.answer_forms`).
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.interface.wire.fields import Dropped, FunctionName, Text, Unsupported, Wire, kind_of

MAX_CHOICES_OF_ANSWER = 1024
Schema = Annotated[
    Annotated[dict[str, Any], Tag("object")] | Annotated[Text, Tag("text")],
    kind_of("should be a JSON schema, as an object or as its JSON", {dict: "object", str: "text"}),
]
OneOf = Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES_OF_ANSWER, fail_fast=True)]


class JsonSchema(Wire):
    """A named JSON schema for the answer."""

    name: FunctionName
    description: Annotated[str, StringConstraints(max_length=65536)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Wire):
    """`response_format`: plain text, any JSON object, JSON of a schema, or, extensions, a grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar", "regex"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """Extension: a schema without a name, of either type of JSON."""
    grammar: Text | None = None
    """Extension: GBNF or Lark."""
    regex: Annotated[Text | None, Field(validation_alias=AliasChoices("regex", "pattern"))] = None
    """Extension: what the whole answer matches."""

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        takes: dict[str, tuple[str, ...]] = {
            "json_object": ("schema",),
            "json_schema": ("json_schema", "schema"),
            "grammar": ("grammar",),
            "regex": ("regex",),
        }
        given = {
            "json_schema": self.json_schema,
            "schema": self.schema_,
            "grammar": self.grammar,
            "regex": self.regex,
        }
        named = [name for name, value in given.items() if value is not None]
        allowed = takes.get(self.type, ())
        for name in named:
            if name not in allowed:
                raise PydanticCustomError("invalid", f"'{name}' does not go with the type {self.type}")
        if len(named) > 1:
            raise PydanticCustomError("invalid", f"has '{named[0]}' and '{named[1]}', of which one is enough")
        if not named and self.type not in ("text", "json_object"):
            raise PydanticCustomError("invalid", f"needs '{allowed[0]}' where its type is {self.type}")
        return self


class StructuredOutputs(Wire):
    """`structured_outputs`, as in vLLM: one of the first five."""

    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: OneOf | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: Unsupported = None
    disable_any_whitespace: bool | None = None
    """JSON without any white space; by default there is one space after each comma and colon."""
    disable_additional_properties: bool | None = None
    """Without effect: objects have no properties that their schema does not name, unless it allows them."""
    whitespace_pattern: Text | None = None
    """A regular expression of the white space in JSON."""


class AnswerForms(BaseModel):
    """The fields of a request that give its answer a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    """Extension, as in vLLM, like the next six, which are its older names."""
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: OneOf | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None
    guided_decoding_backend: Dropped = None
    grammar: Text | None = None
    """Extension, as in llama-server: GBNF, or Lark as llguidance takes it."""
    json_schema: dict[str, Any] | None = None
    """Extension, as in llama-server."""
