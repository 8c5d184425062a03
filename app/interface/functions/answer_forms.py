"""The form that a request gives its answer: reads it from the request's fields, and writes it as a rule of a grammar.

It knows no tokens and no thoughts; `requested` puts the rule where an answer may stand.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.interface.functions.dialect import json_rule, quoted
from app.interface.functions.schemas import MAX_SCHEMA_BYTES, bounded_schema, closed_schema
from app.interface.request import errors
from app.interface.wire.answer_forms import AnswerForms, ResponseFormat, Schema
from app.messages.grammar import HEADER, OWN_RULE, OwnGrammar, with_own

_GBNF = re.compile(r"^[ \t]*[\w-]+\s*::=", re.MULTILINE)
_OPTIONS = re.compile(r"%llguidance(?!\s*\{\s*\})")
_ANY_OBJECT = {"type": "object"}
_LENIENT: Mapping[str, Any] = {"lenient": True}
_NO_SPACE: Mapping[str, Any] = {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer, and the field that asks for it."""

    field: str
    rule: str
    """What an answer is, as the right side of a grammar's rule."""
    schema: str | None = None
    """The JSON schema; None: the form is not one."""
    own: OwnGrammar | None = None
    """The client's grammar, of which `rule` is then the name."""

    @property
    def alone(self) -> str:
        """The grammar of an output that is an answer and nothing else."""
        return self.schema if self.schema is not None else self.within(f"{HEADER}start: {self.rule}\n")

    def within(self, grammar: str) -> str:
        """Returns the grammar in which `rule` stands, with what it refers to."""
        return grammar if self.own is None else with_own(grammar, self.own)


def answer_form(request: AnswerForms) -> AnswerForm | None:
    """Returns the form; None: any text. Raises ApiError (400)."""
    forms = _forms(request)
    form = next(forms, None)
    other = next(forms, None)
    if form is not None and other is not None:
        message = f"'{form.field}' and '{other.field}' contradict each other: an answer has one form."
        raise errors.invalid(message, other.field, "invalid_value")
    return form


def _forms(request: AnswerForms) -> Iterator[AnswerForm]:
    if request.response_format is not None:
        yield from _of_response_format(request.response_format)
    if request.structured_outputs is not None:
        one = request.structured_outputs
        spacing = _spacing(one.whitespace_pattern, one.disable_any_whitespace)
        if spacing and one.json_ is None and not one.json_object:
            field = "whitespace_pattern" if one.whitespace_pattern is not None else "disable_any_whitespace"
            raise _invalid(f"structured_outputs.{field}", "is for JSON only")
        yield from _given("structured_outputs.", one.json_, one.regex, one.choice, one.grammar, spacing)
        if one.json_object:
            yield schema_form(_ANY_OBJECT, "structured_outputs.json_object", spacing)
    spacing = _spacing(request.guided_whitespace_pattern, None)
    if spacing and request.guided_json is None:
        raise _invalid("guided_whitespace_pattern", "is for JSON only")
    yield from _given(
        "guided_", request.guided_json, request.guided_regex, request.guided_choice, request.guided_grammar, spacing
    )
    if request.grammar:
        yield grammar_form(request.grammar, "grammar")
    if request.json_schema is not None:
        yield schema_form(request.json_schema, "json_schema", _LENIENT)


def _of_response_format(form: ResponseFormat) -> Iterator[AnswerForm]:
    if form.grammar is not None:
        yield grammar_form(form.grammar, "response_format.grammar")
    elif form.regex is not None:
        yield regex_form(form.regex, "response_format.regex")
    elif form.schema_ is not None:
        yield schema_form(form.schema_, "response_format.schema", _LENIENT)
    elif form.type == "json_object":
        yield schema_form(_ANY_OBJECT, "response_format")
    elif form.json_schema is not None:
        schema = form.json_schema.schema_
        options = {} if form.json_schema.strict else _LENIENT
        field = "response_format.json_schema.schema"
        yield schema_form(_ANY_OBJECT if schema is None else schema, field, options)


def _given(
    prefix: str,
    schema: Schema | None,
    regex: str | None,
    choice: Sequence[str] | None,
    grammar: str | None,
    spacing: Mapping[str, Any],
) -> Iterator[AnswerForm]:
    if schema is not None:
        field = f"{prefix}json"
        yield schema_form(_object(schema, field), field, spacing)
    if regex is not None:
        yield regex_form(regex, f"{prefix}regex")
    if choice is not None:
        yield choice_form(choice, f"{prefix}choice")
    if grammar is not None:
        yield grammar_form(grammar, f"{prefix}grammar")


def schema_form(schema: Mapping[str, Any], field: str, options: Mapping[str, Any] | None = None) -> AnswerForm:
    """options: llguidance's, beside the schema's own. Raises ApiError (400)."""
    bounded_schema(schema, field)
    closed = closed_schema(schema)
    if options:
        closed = {**closed, "x-guidance": options}
    return AnswerForm(field, json_rule(closed), bounded_schema(closed, field))


def regex_form(pattern: str, field: str) -> AnswerForm:
    """The whole answer matches the regular expression. Raises ApiError (400)."""
    _check_size(pattern, field)
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise _invalid(field, "ends within an escape")
    written = re.sub(r"\\.|[/\n\r]", _in_slashes, pattern, flags=re.DOTALL)
    return AnswerForm(field, f"/{written}/" if pattern else '""')


def _in_slashes(found: re.Match[str]) -> str:
    kept = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
    text = found[0]
    return kept.get(text, text) if len(text) == 1 else kept.get(text[1], text)


def choice_form(texts: Sequence[str], field: str) -> AnswerForm:
    """The answer is one of the texts. Raises ApiError (400)."""
    rule = " | ".join(map(quoted, texts))
    _check_size(rule, field)
    return AnswerForm(field, rule)


def grammar_form(text: str, field: str) -> AnswerForm:
    """The answer follows a grammar in GBNF or Lark. Raises ApiError (400)."""
    _check_size(text, field)
    if not text.strip():
        raise _invalid(field, "is empty")
    if _OPTIONS.search(text):
        raise _invalid(field, "may not set options of llguidance")
    return AnswerForm(field, OWN_RULE, own=OwnGrammar("gbnf" if _GBNF.search(text) else "lark", text))


def _object(schema: Schema, field: str) -> Mapping[str, Any]:
    if not isinstance(schema, str):
        return schema
    try:
        value = orjson.loads(schema)
    except orjson.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _invalid(field, f"is not valid JSON in {place}") from None
    if not isinstance(value, dict):
        raise _invalid(field, "should be a JSON schema, as an object or as its JSON")
    return value


def _spacing(pattern: str | None, disabled: bool | None) -> Mapping[str, Any]:
    if pattern is not None:
        return {**_NO_SPACE, "whitespace_flexible": True, "whitespace_pattern": pattern}
    return _NO_SPACE if disabled else {}


def _check_size(text: str, field: str) -> None:
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise _invalid(field, f"may have {MAX_SCHEMA_BYTES} bytes")


def _invalid(field: str, why: str) -> errors.ApiError:
    return errors.invalid(f"'{field}' {why}.", field, "invalid_value")
