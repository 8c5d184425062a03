"""The interface of a dialect of function calls: its mark, its grammar rules, and its parser.

`dialects` lists the dialects. It knows no request.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson

from app.messages.grammar import SPACING

NAME = r"[a-zA-Z0-9_.:/-]{1,128}"
"""A pattern of a function's name."""
MAX_HEAD_CHARACTERS = 256
"""A call's head, with its name, must fit into this many characters."""


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function and the schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


class CallReader(Protocol):
    """Reads one call incrementally: its name, and its arguments as JSON."""

    @property
    def name(self) -> str | None:
        """The function's name; None: not known so far."""

    @property
    def is_call(self) -> bool:
        """Whether it may still be a call."""

    @property
    def done(self) -> bool: ...

    def feed(self, text: str) -> int:
        """Reads until the call ends, its name is known, or it is no call; returns the number of characters read."""

    def pop_arguments(self) -> str:
        """Returns the arguments' JSON since the last call of this method."""

    def finish(self) -> str:
        """Returns more of the arguments if the output has ended within the call."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call whose name stands outside of JSON."""

    length: int
    """Characters before the part that `reader` reads."""
    reader: CallReader


class Written(Protocol):
    """A dialect in which calls of earlier turns are written as text."""

    @property
    def form(self) -> Literal["object", "text"]:
        """The form in which it takes a call's arguments: an object, or its JSON."""

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Writes the calls of one message as the model would: names and arguments."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Spells in a grammar what all dialects need."""

    added: Mapping[int, str]
    """The vocabulary's added tokens by id; llguidance takes some of them wrongly for special tokens."""
    parallel: bool
    """Whether an output may have several calls."""

    def tokens(self, text: str) -> list[str]:
        """Returns the text spelled with the added tokens in it, in a list; an empty list if it contains none."""
        marks = {name: token for token, name in self.added.items() if re.fullmatch(r"[<\[].+[>\]]", name)}
        ids = {name: token for name, token in marks.items() if name in text}
        if not ids:
            return []
        longest_first = sorted(ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        return [" ".join(f"<[{ids[part]}]>" if part in ids else quoted(part) for part in parts if part)]

    def mark(self, text: str) -> str:
        """Returns the mark as text, or as the token that it is."""
        return " | ".join([quoted(text), *self.tokens(text)])

    def more(self, rule: str) -> str:
        """Returns any number of further calls, if several are allowed."""
        return f"({rule})*" if self.parallel else ""


class Dialect(ABC):
    """One way of writing calls after a mark."""

    name: str
    """The prefix of its rules in a grammar."""
    mark: str
    """The beginning of calls."""
    end_mark: str | None = None
    """The end of a call."""
    inner_marks: tuple[str, ...] = ()
    """Special tokens within a call."""
    lists: bool = False
    """Whether `match_call` finds further calls that have no mark of their own."""

    @abstractmethod
    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
        """Returns the rule `<name>` of an output with calls, and its subrules.

        It may use `call` (one call as JSON), `further` (a call after another), `arguments_<i>` (the i-th function's
        arguments), `SPACE`, and of its own `found_<name>` (text, then the mark) and `mark_<name>` (the mark).
        """

    def mark_rules(self, spelling: Spelling, *, allows_text: bool) -> list[str]:
        """Returns `mark_<name>` and `found_<name>`. allows_text: whether text may stand before the first mark."""
        rules = [f"mark_{self.name}: {spelling.mark(self.mark)}"]
        if not allows_text:
            return [*rules, f"found_{self.name}: SPACE? mark_{self.name}"]
        tokens = "".join(f" | TEXT {token}" for token in spelling.tokens(self.mark))
        rules.append(f"found_{self.name}: text_to_{self.name}{tokens}")
        return [*rules, f"text_to_{self.name}[lazy]: TEXT {quoted(self.mark)}"]

    def match_call(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        """Finds the beginning of a call that is not a JSON object in the `text` after a mark; None: none so far.

        schemas: of the functions' arguments, by the functions' names.
        """
        return None

    def may_match_call(self, text: str) -> bool:
        """Whether `match_call` could find a call with more text."""
        return False


def quoted(text: str) -> str:
    """Returns a string literal of a grammar."""
    return orjson.dumps(text).decode()


def in_slashes(pattern: str) -> str:
    """Escapes a pattern for a grammar's slashes."""
    return pattern.replace("/", r"\/")


def json_rule(schema: Mapping[str, Any]) -> str:
    """Returns a rule for JSON of a schema."""
    guidance = schema.get("x-guidance")
    own = guidance if isinstance(guidance, dict) else {}
    return "%json " + orjson.dumps({**schema, "x-guidance": {**SPACING, **own}}).decode()
