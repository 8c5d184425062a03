"""The dialects in which models write function calls. Each owns its mark, its rules in a grammar, and how it is parsed.

    <tool_call>{"name": "f", "arguments": {...}}</tool_call>      Hermes, Qwen; also for templates without functions
    [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]          Mistral; newer models write f[ARGS]{...}
    <|python_tag|>{"name": "f", "parameters": {...}}; {...}       Llama 3
    {"name": "f", "parameters": {...}}; {...}                     without a mark: Llama 3, and small models

A new dialect is a class here and an entry of `DIALECTS`. It knows neither requests nor schemas.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

_MAX_NAME_CHARACTERS = 256
"""A call's name has to come within so many characters."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a grammar spells what all dialects need."""

    added: Mapping[int, str]
    """The vocabulary's added tokens by id: llguidance takes some of them for special tokens that are none."""
    parallel: bool
    """Whether an output may have several calls."""

    def tokens(self, text: str) -> list[str]:
        """The added tokens of that name; a list of none or one."""
        return [f"<[{token}]>" for token, name in self.added.items() if name == text]

    def mark(self, text: str) -> str:
        """The mark as text, or as the token that it is."""
        return " | ".join([quoted(text), *self.tokens(text)])

    def more(self, rule: str) -> str:
        """Any number of further calls, if there may be several."""
        return f"({rule})*" if self.parallel else ""


def quoted(text: str) -> str:
    """A string of a grammar."""
    return orjson.dumps(text).decode()


@dataclass(frozen=True, slots=True)
class NamedCall:
    """The head of a call whose name stands before its arguments, outside of their JSON."""

    name: str
    length: int
    """Characters up to the arguments."""


class Dialect(ABC):
    """One way of writing calls after a mark."""

    name: str
    """Of its rules in a grammar."""
    mark: str
    """What calls begin with."""
    end_mark: str | None = None
    """What a call ends with."""
    inner_marks: tuple[str, ...] = ()
    """Special tokens within a call."""

    @abstractmethod
    def rules(self, spelling: Spelling, names: Sequence[str]) -> list[str]:
        """The rule `<name>` of an output with calls, and what only it needs.

        It may use `call` (one call as JSON), `further` (a call after another), `arguments_<i>` (the i-th function's
        arguments), `SPACE`, and of its own `found_<name>` (text, then the mark) and `mark_<name>` (the mark).
        """

    def mark_rules(self, spelling: Spelling, *, allows_text: bool) -> list[str]:
        """`mark_<name>` and `found_<name>`. allows_text: whether any text may stand before the first mark."""
        rules = [f"mark_{self.name}: {spelling.mark(self.mark)}"]
        if not allows_text:
            return [*rules, f"found_{self.name}: SPACE? mark_{self.name}"]
        tokens = "".join(f" | TEXT {token}" for token in spelling.tokens(self.mark))
        rules.append(f"found_{self.name}: text_to_{self.name}{tokens}")
        return [*rules, f"text_to_{self.name}[lazy]: TEXT {quoted(self.mark)}"]

    def named_call(self, text: str) -> NamedCall | None:
        """The head of a call that is not an object, where `text` follows the mark; None: there is none so far."""
        return None

    def may_become_named_call(self, text: str) -> bool:
        """Whether more text could make `named_call` find one."""
        return False


class Hermes(Dialect):
    """Each call stands between a mark and an end mark."""

    name = "hermes"
    mark = "<tool_call>"
    end_mark: str = "</tool_call>"

    def rules(self, spelling: Spelling, names: Sequence[str]) -> list[str]:
        """See `Dialect.rules`."""
        return [
            f"hermes: found_hermes hermes_call {spelling.more('SPACE? mark_hermes hermes_call')} SPACE?",
            f"hermes_call: SPACE? call SPACE? ({spelling.mark(self.end_mark)})",
        ]

    def call_text(self, name: str, arguments: str) -> str:
        """A call as a model writes it. arguments: JSON."""
        return f'{self.mark}\n{{"name": "{name}", "arguments": {arguments}}}\n{self.end_mark}'


class Mistral(Dialect):
    """One mark before a list of calls, or a mark before each call whose name stands outside of the JSON."""

    name = "mistral"
    mark = "[TOOL_CALLS]"
    inner_marks = ("[ARGS]", "[CALL_ID]")
    _head = re.compile(r"([a-zA-Z0-9_.-]{1,64})(?:\[CALL_ID\][a-zA-Z0-9]*)?(?:\[ARGS\])?\s*(?=\{)")

    def rules(self, spelling: Spelling, names: Sequence[str]) -> list[str]:
        """See `Dialect.rules`."""
        listed = spelling.more('SPACE? "," SPACE? call')
        return [
            f'mistral: found_mistral SPACE? "[" SPACE? call {listed} SPACE? "]" SPACE?',
            f"    | found_mistral SPACE? named {spelling.more('SPACE? mark_mistral SPACE? named')} SPACE?",
            f"named: {' | '.join(f'named_{i}' for i in range(len(names)))}",
            f"call_id: ({spelling.mark('[CALL_ID]')}) /[a-zA-Z0-9]{{1,32}}/",
            f"begin: {spelling.mark('[ARGS]')}",
            *(f'named_{i}: "{name}" call_id? begin? SPACE? arguments_{i}' for i, name in enumerate(names)),
        ]

    def named_call(self, text: str) -> NamedCall | None:
        """See `Dialect.named_call`."""
        head = self._head.match(text)
        return NamedCall(head[1], head.end()) if head is not None else None

    def may_become_named_call(self, text: str) -> bool:
        """See `Dialect.may_become_named_call`."""
        return len(text) < _MAX_NAME_CHARACTERS and "{" not in text


class Llama(Dialect):
    """One mark before all calls."""

    name = "llama"
    mark = "<|python_tag|>"

    def rules(self, spelling: Spelling, names: Sequence[str]) -> list[str]:
        """See `Dialect.rules`."""
        return [f"llama: found_llama SPACE? call {spelling.more('further')} SPACE?"]


class Bare:
    """Calls without a mark, which only an output's beginning can be."""

    _space = r"[ \t\n\r]"
    _gap = _space + "{0,4}"

    def head(self, names: Sequence[str], *, after_space: bool = True) -> str:
        """A pattern of how a call of one of these functions begins where functions are strict, up to its name's end.

        after_space: with the white space that may come before the call.
        """
        gap = self._gap
        either = "|".join(map(re.escape, names))
        either = f"({either})" if len(names) > 1 else either
        kind = rf'("type"{gap}:{gap}"function"{gap},{gap})?'
        return rf'{self._space + "*" if after_space else ""}\{{{gap}{kind}"name"{gap}:{gap}"{either}"'

    def begins(self, text: str) -> bool:
        """Whether an output that begins so may be a call; leading white space is not in `text`."""
        return text.startswith("{")

    def is_head(self, name: str, text: str) -> bool:
        """Whether `text` is the beginning of a call of that function, up to the end of its name, and strict."""
        return re.fullmatch(self.head([name]), text) is not None

    def rules(self, spelling: Spelling, names: Sequence[str]) -> list[str]:
        """The rule `bare`, with the same rules to use as in `Dialect.rules`."""
        calls = " | ".join(f"bare_{i}" for i in range(len(names)))
        return [
            f"bare: ({calls}) {spelling.more('further')} SPACE?",
            *(self._call(f"bare_{i}", i, self.head([name])) for i, name in enumerate(names)),
        ]

    def call_rules(self, names: Sequence[str]) -> list[str]:
        """The rule `call`: one call as JSON, wherever it stands."""
        return [
            f"call: {' | '.join(f'call_{i}' for i in range(len(names)))}",
            *(self._call(f"call_{i}", i, self.head([name], after_space=False)) for i, name in enumerate(names)),
        ]

    def text_rule(self, names: Sequence[str]) -> str:
        """The rule `TEXT`: what does not begin as a call."""
        return rf"TEXT: /(.|\n)*/ & ~/{in_slashes(self.head(names))}(.|\n)*/"

    def _call(self, rule: str, number: int, head: str) -> str:
        gap = self._gap
        keys = rf'{gap},{gap}"(arguments|parameters)"{gap}:{gap}'
        return f'{rule}: /{in_slashes(head)}{keys}/ arguments_{number} SPACE? "}}"'


def in_slashes(pattern: str) -> str:
    """The pattern as a grammar writes it between slashes."""
    return pattern.replace("/", r"\/")


HERMES, MISTRAL, LLAMA, BARE = Hermes(), Mistral(), Llama(), Bare()
DIALECTS: tuple[Dialect, ...] = (HERMES, MISTRAL, LLAMA)
SPECIAL_TOKENS = tuple(
    token
    for dialect in DIALECTS
    for token in (dialect.mark, dialect.end_mark, *dialect.inner_marks)
    if token is not None
)
"""Special tokens that a text keeps in which calls are looked for."""
