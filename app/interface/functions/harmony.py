"""gpt-oss's dialect of calls, as normalized by `thinking/channels`, and the grammar of an output in channels.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The model ends its output after a call, so there is at most one. It knows no request.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.interface.functions.dialect import (
    MAX_HEAD_CHARACTERS,
    NAME,
    CallableFunction,
    CallStart,
    Dialect,
    Spelling,
    json_rule,
    quoted,
)
from app.interface.functions.json_call import named_json_call
from app.interface.thinking.channels import CALL, CALL_HEAD, CHANNEL, CONSTRAIN, END, MESSAGE, START
from app.messages.grammar import HEADER

_NO_MARKS = r"/(.|\n)*/ & ~/(.|\n)*<\|(start|channel)\|>(.|\n)*/"
"""Text in which no mark ends a message; special tokens are not text."""


class Harmony(Dialect):
    """One call in a message of its own."""

    name = "harmony"
    mark = CALL_HEAD
    end_mark: str = CALL
    _head = re.compile(rf"({NAME}){re.escape(MESSAGE)}\s*(?=\{{)")

    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        """Returns the rule `harmony`, a call in its message, and its subrules; see `channel_grammar`."""
        calls = " | ".join(f"harmony_{i}" for i in range(len(functions)))
        constrain = " | ".join(f'" "? {way} "json"' for way in [quoted(CONSTRAIN), *spelling.tokens(CONSTRAIN)])
        return [
            *([f"harmony: {calls}"] if calls else []),
            f'json: {constrain} | " json"',
            *(rule for i, one in enumerate(functions) for rule in self._call(i, one.name)),
        ]

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        head = self._head.match(text)
        return CallStart(head.end(), named_json_call(head[1])) if head is not None else None

    def may_match_call(self, text: str) -> bool:
        name = re.match(rf"(?:{NAME})?", text)
        rest = text[name.end() :] if name is not None else text
        is_open = MESSAGE.startswith(rest) or (rest.startswith(MESSAGE) and not rest.removeprefix(MESSAGE).strip())
        return len(text) < MAX_HEAD_CHARACTERS and is_open

    def _call(self, number: int, name: str) -> list[str]:
        """Returns the rule of one function's call, whose recipient stands after its channel or before it."""
        heads = f'channel "commentary to=functions.{name}" | " to=functions.{name}" channel "commentary"'
        return [f"harmony_{number}: ({heads}) json? message arguments_{number}"]


HARMONY = Harmony()


def channel_grammar(
    functions: Sequence[CallableFunction],
    added: Mapping[int, str],
    *,
    answer: str | None = None,
    has_to_call: bool = False,
    goes_on: bool = False,
) -> str:
    """Builds a grammar for an output in channels: free thoughts, then an answer or a function call.

    answer: what an answer is, which then is all that is shown, as the right side of a rule; None: any text.
    has_to_call: no answer is allowed.
    goes_on: whether the output goes on with a thought.
    """
    spelling = Spelling(added, parallel=False)
    last = [*([] if has_to_call else ["final"]), *(["harmony"] if functions else [])]
    preamble = "" if answer is not None else ' | "commentary"'
    tokens = "".join(f" | BODY {token}" for token in spelling.tokens(END))
    rules = [
        f"start: {'body_to_end again ' if goes_on else ''}before* ({' | '.join(last)})",
        f'before: channel ("analysis"{preamble}) message body_to_end again',
        f"channel: {spelling.mark(CHANNEL)}",
        f"message: {spelling.mark(MESSAGE)}",
        f"again: {spelling.mark(f'{START}assistant')}",
        f"body_to_end: text_to_end{tokens}",
        f"text_to_end[lazy]: BODY {quoted(END)}",
        f"BODY: {_NO_MARKS}",
        *HARMONY.rules(spelling, functions),
        *(f"arguments_{i}: {json_rule(function.schema)}" for i, function in enumerate(functions)),
    ]
    if not has_to_call:
        rules.append(f'final: channel "final" json? message {"BODY" if answer is None else "answer"}')
    if answer is not None:
        rules.append(f"answer: {answer}")
    return HEADER + "\n".join(rules) + "\n"
