"""The dialects in which models write function calls. Each has its mark, its grammar rules, and its parser.

    <tool_call>{"name": "f", "arguments": {...}}</tool_call>      Hermes, Qwen; also for templates without functions
    <tool_call><function=f><parameter=a>1</parameter>...          Qwen3-Coder, Qwen3.5 (`tagged`)
    <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>...   GLM 4.5 (`tagged`)
    [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]          Mistral; newer models write f[ARGS]{...}
    <|python_tag|>{"name": "f", "parameters": {...}}; {...}       Llama 3
    <|tool_call>call:f{a:1}<tool_call|>                           Gemma 4 (`gemma`)
    <|tool_call_start|>[f(a=1)]<|tool_call_end|>                  LFM2 (`listed`)
    <|tool_call|>[{"name": "f", "arguments": {...}}, ...]         Granite 3, Phi-4-mini (`listed`)
    {"name": "f", "parameters": {...}}; {...}                     without a mark: Llama 3, and small models

gpt-oss's is separate (`harmony`): all its output is in channels. A new dialect is a class and an entry of `DIALECTS`.
It knows neither requests nor schemas.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from app.interface.functions.dialect import (
    MAX_HEAD_CHARACTERS,
    NAME,
    CallableFunction,
    CallStart,
    Dialect,
    Spelling,
    Written,
    in_slashes,
)
from app.interface.functions.gemma import GEMMA
from app.interface.functions.json_call import named_json_call
from app.interface.functions.listed import GRANITE, LFM, Granite, Lfm
from app.interface.functions.tagged import GLM, QWEN, UNMARKED


class Hermes(Dialect):
    """Each call stands between a mark and an end mark."""

    name = "hermes"
    mark = "<tool_call>"
    end_mark: str = "</tool_call>"
    form: Final = "text"

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        return [
            f"hermes: found_hermes hermes_call {spelling.more('SPACE? mark_hermes hermes_call')} SPACE?",
            f"hermes_call: SPACE? call SPACE? ({spelling.mark(self.end_mark)})",
        ]

    def call_text(self, name: str, arguments: str) -> str:
        """Writes a call as the model would. arguments: JSON."""
        return f'{self.mark}\n{{"name": "{name}", "arguments": {arguments}}}\n{self.end_mark}'

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Writes the calls of one message. Their arguments are JSON."""
        return "\n".join(self.call_text(name, arguments) for name, arguments in calls)


class Mistral(Dialect):
    """One mark before a list of calls, or a mark before each call whose name stands outside of the JSON."""

    name = "mistral"
    mark = "[TOOL_CALLS]"
    inner_marks = ("[ARGS]", "[CALL_ID]")
    _head = re.compile(rf"({NAME})(?:\[CALL_ID\][a-zA-Z0-9]*)?(?:\[ARGS\])?\s*(?=\{{)")

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        listed = spelling.more('SPACE? "," SPACE? call')
        return [
            f'mistral: found_mistral SPACE? "[" SPACE? call {listed} SPACE? "]" SPACE?',
            f"    | found_mistral SPACE? named {spelling.more('SPACE? mark_mistral SPACE? named')} SPACE?",
            f"named: {' | '.join(f'named_{i}' for i in range(len(functions)))}",
            f"call_id: ({spelling.mark('[CALL_ID]')}) /[a-zA-Z0-9]{{1,32}}/",
            f"begin: {spelling.mark('[ARGS]')}",
            *(f'named_{i}: "{one.name}" call_id? begin? SPACE? arguments_{i}' for i, one in enumerate(functions)),
        ]

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        head = self._head.match(text)
        return CallStart(head.end(), named_json_call(head[1])) if head is not None else None

    def may_match_call(self, text: str) -> bool:
        return len(text) < MAX_HEAD_CHARACTERS and "{" not in text


class Llama(Dialect):
    """One mark before all calls."""

    name = "llama"
    mark = "<|python_tag|>"

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        return [f"llama: found_llama SPACE? call {spelling.more('further')} SPACE?"]


class Bare:
    """Calls without a mark, possible only at an output's beginning."""

    _space = r"[ \t\n\r]"
    _gap = _space + "{0,4}"

    def head(self, names: Sequence[str], *, after_space: bool = True) -> str:
        """Returns a pattern for the beginning of a strict call of one of these functions, up to the end of its name.

        after_space: include the white space that may precede the call.
        """
        gap = self._gap
        either = "|".join(map(re.escape, names))
        either = f"({either})" if len(names) > 1 else either
        kind = rf'("type"{gap}:{gap}"function"{gap},{gap})?'
        return rf'{self._space + "*" if after_space else ""}\{{{gap}{kind}"name"{gap}:{gap}"{either}"'

    def begins(self, text: str) -> bool:
        """Whether an output with this beginning may be a call; leading white space is not in `text`."""
        return text.startswith("{")

    def is_head(self, name: str, text: str) -> bool:
        """Whether `text` is the beginning of a strict call of that function, up to the end of its name."""
        return re.fullmatch(self.head([name]), text) is not None

    def rules(self, spelling: Spelling, names: Sequence[str]) -> list[str]:
        """Returns the rule `bare`, which may use the same rules as `Dialect.rules`."""
        calls = " | ".join(f"bare_{i}" for i in range(len(names)))
        return [
            f"bare: ({calls}) {spelling.more('further')} SPACE?",
            *(self._call(f"bare_{i}", i, self.head([name])) for i, name in enumerate(names)),
        ]

    def call_rules(self, names: Sequence[str]) -> list[str]:
        """Returns the rule `call`: one call as JSON, wherever it stands."""
        return [
            f"call: {' | '.join(f'call_{i}' for i in range(len(names)))}",
            *(self._call(f"call_{i}", i, self.head([name], after_space=False)) for i, name in enumerate(names)),
        ]

    def text_rule(self, names: Sequence[str]) -> str:
        """Returns the rule `TEXT`: text that does not begin like a call."""
        return rf"TEXT: /(.|\n)*/ & ~/{in_slashes(self.head(names))}(.|\n)*/"

    def _call(self, rule: str, number: int, head: str) -> str:
        gap = self._gap
        keys = rf'{gap},{gap}"(arguments|parameters)"{gap}:{gap}'
        return f'{rule}: /{in_slashes(head)}{keys}/ arguments_{number} SPACE? "}}"'


HERMES, MISTRAL, LLAMA, BARE = Hermes(), Mistral(), Llama(), Bare()
DIALECTS: tuple[Dialect, ...] = (HERMES, QWEN, GLM, MISTRAL, LLAMA, GEMMA, LFM, GRANITE)
"""The dialects in which calls of every model are recognized."""


def grammar_dialects(template: str | None) -> tuple[Dialect, ...]:
    """Returns the dialects for the grammar of a model's calls, one per mark: by its template, or else those of JSON."""
    tagged = (dialect for dialect in (QWEN, GLM) if template is not None and dialect.tags.key in template)
    first = next(tagged, HERMES)
    return (first, *((UNMARKED,) if first is QWEN else ()), MISTRAL, LLAMA, GEMMA, LFM, GRANITE)


def parsed_dialects(template: str | None) -> tuple[Dialect, ...]:
    """Returns the dialects in which a model's calls are recognized."""
    return (*DIALECTS, UNMARKED) if UNMARKED in grammar_dialects(template) else DIALECTS


def written_dialect(template: str, tokens: Collection[str]) -> Written:
    """Returns the dialect of a model whose template does not support calls. tokens: of its vocabulary."""
    own: tuple[Lfm, Granite] = (LFM, GRANITE)
    return next((dialect for dialect in own if dialect.mark in tokens or dialect.mark in template), HERMES)


SPECIAL_TOKENS = tuple(
    token
    for dialect in DIALECTS
    for token in (dialect.mark, dialect.end_mark, *dialect.inner_marks)
    if token is not None
)
"""Special tokens that must be kept in the text to find calls."""
