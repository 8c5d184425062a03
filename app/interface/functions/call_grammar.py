"""A grammar for an output that may say what it likes, or call functions: from a call's mark on it has to be a call.

It is llguidance's variant of Lark, as text. What counts as a call is what `app.tool_calls` takes for one: whatever the
grammar lets through as text is no call there. After a call come further calls, or the end. It knows no request and no
model, only which of the marks are special tokens.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.interface.text.call_marks import MARKERS, bare_head
from app.messages.grammar import HEADER, SPACING

_W = r"[ \t\n\r]{0,4}"
_LEADING = r"[ \t\n\r]*"


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

    With such a schema a call needs a mark, for otherwise nobody could tell it from an answer.
    """
    hermes, mistral, llama = MARKERS

    def more(rule: str) -> str:
        return f"({rule})*" if parallel else ""

    numbers = range(len(functions))
    comma_calls = more('SPACE? "," SPACE? call')
    rules = [
        f"start: {'TEXT | bare' if answer is None else 'answer'} | hermes | llama | mistral",
        f"bare: ({' | '.join(f'bare_{i}' for i in numbers)}) {more('further')} SPACE?",
        f"hermes: found_hermes hermes_call {more('SPACE? mark_hermes hermes_call')} SPACE?",
        f"hermes_call: SPACE? call SPACE? ({_either('</tool_call>', special)})",
        f"llama: found_llama SPACE? call {more('further')} SPACE?",
        f'mistral: found_mistral SPACE? "[" SPACE? call {comma_calls} SPACE? "]" SPACE?',
        f"    | found_mistral SPACE? named {more('SPACE? mark_mistral SPACE? named')} SPACE?",
        'further: SPACE? ((";" | ",") SPACE?)? call',
        f"call: {' | '.join(f'call_{i}' for i in numbers)}",
        f"named: {' | '.join(f'named_{i}' for i in numbers)}",
        f"call_id: ({_either('[CALL_ID]', special)}) /[a-zA-Z0-9]{{1,32}}/",
        f"begin: {_either('[ARGS]', special)}",
        r"SPACE: /[ \t\n\r]{1,4}/",
    ]
    for i, function in enumerate(functions):
        name = re.escape(function.name)
        head = _regex(bare_head(name))
        keys = rf'{_W},{_W}"(arguments|parameters)"{_W}:{_W}'
        rules += [
            f'bare_{i}: /{head}{keys}/ arguments_{i} SPACE? "}}"',
            f'call_{i}: /{head.removeprefix(_LEADING)}{keys}/ arguments_{i} SPACE? "}}"',
            f'named_{i}: "{function.name}" call_id? begin? SPACE? arguments_{i}',
            f"arguments_{i}: {_json(function.schema)}",
        ]
    for mark, text in (("hermes", hermes), ("mistral", mistral), ("llama", llama)):
        rules.append(f"mark_{mark}: {_either(text, special)}")
        if answer is not None:
            rules.append(f"found_{mark}: SPACE? mark_{mark}")
            continue
        tokens = "".join(f" | TEXT {token}" for token in _tokens(text, special))
        rules += [f"found_{mark}: text_to_{mark}{tokens}", f"text_to_{mark}[lazy]: TEXT {_quoted(text)}"]
    if answer is not None:
        rules.append(f"answer: {_json(answer)}")
    else:
        heads = _regex(bare_head("(" + "|".join(re.escape(function.name) for function in functions) + ")"))
        rules.append(rf"TEXT: /(.|\n)*/ & ~/{heads}(.|\n)*/")
    return HEADER + "\n".join(rules) + "\n"


def _regex(pattern: str) -> str:
    return pattern.replace("/", r"\/")


def _json(schema: Mapping[str, Any]) -> str:
    guidance = schema.get("x-guidance")
    own = guidance if isinstance(guidance, dict) else {}
    return "%json " + orjson.dumps({**schema, "x-guidance": {**own, **SPACING}}).decode()


def _either(text: str, special: Mapping[int, str]) -> str:
    """As text, or as the special token that it is."""
    return " | ".join([_quoted(text), *_tokens(text, special)])


def _tokens(text: str, special: Mapping[int, str]) -> list[str]:
    return [f"<[{token}]>" for token, name in special.items() if name == text]


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
