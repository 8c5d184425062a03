"""A grammar for an output that may be any text or call functions: after a call's mark there has to be a call.

It is llguidance's variant of Lark, as text. What it allows as text, `call_parser` reads as text too. After a call come
further calls, or the end. It knows no request and no model, only which of the marks are special tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.interface.functions.dialects import BARE, DIALECTS, Spelling
from app.messages.grammar import HEADER, SPACING


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function and the schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


def call_grammar(
    functions: Sequence[CallableFunction],
    special: Mapping[int, str],
    *,
    parallel: bool,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """special: the vocabulary's special tokens by id. answer: the schema of an output without a call; None: any text.

    With such a schema a call needs a mark: without one it could be an answer.
    """
    spelling = Spelling(special, parallel)
    names = [function.name for function in functions]
    without_call = "TEXT | bare" if answer is None else "answer"
    rules = [
        f"start: {without_call} | {' | '.join(dialect.name for dialect in DIALECTS)}",
        'further: SPACE? ((";" | ",") SPACE?)? call',
        r"SPACE: /[ \t\n\r]{1,4}/",
        *BARE.call_rules(names),
        *BARE.rules(spelling, names),
        *(f"arguments_{i}: {_json(function.schema)}" for i, function in enumerate(functions)),
    ]
    for dialect in DIALECTS:
        rules += dialect.rules(spelling, names)
        rules += dialect.mark_rules(spelling, allows_text=answer is None)
    rules.append(BARE.text_rule(names) if answer is None else f"answer: {_json(answer)}")
    return HEADER + "\n".join(rules) + "\n"


def _json(schema: Mapping[str, Any]) -> str:
    guidance = schema.get("x-guidance")
    own = guidance if isinstance(guidance, dict) else {}
    return "%json " + orjson.dumps({**schema, "x-guidance": {**own, **SPACING}}).decode()
