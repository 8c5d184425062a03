"""What a dialect of function calls is: its mark, its rules in a grammar, and how its calls are read.

`dialects` has those that there are. It knows no request.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson

from app.messages.grammar import SPACING

NAME = r"[a-zA-Z0-9_.-]{1,64}"
"""A pattern of a function's name."""
MAX_HEAD_CHARACTERS = 256
"""A call's name, and what stands around it, has to come within so many characters."""


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function and the schema of its arguments."""

    name: str
    schema: Mapping[str, Any]


class CallReader(Protocol):
    """Reads one call, however its text is cut into pieces: its name, and its arguments as JSON while they come."""

    @property
    def name(self) -> str | None:
        """The function's; None: not known so far."""

    @property
    def is_call(self) -> bool:
        """Whether it may still be a call."""

    @property
    def done(self) -> bool:
        """Whether the call is complete."""

    def feed(self, text: str) -> int:
        """Reads up to the call's end, or to where its name is known or it is no call; returns how many characters."""

    def take_arguments(self) -> str:
        """The arguments' JSON since the last time."""

    def finish(self) -> str:
        """More of the arguments, where the output has ended within the call."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call whose name stands outside of JSON."""

    length: int
    """Characters up to where `reader` goes on."""
    reader: CallReader


class Written(Protocol):
    """A dialect in which calls of earlier turns are written as text."""

    @property
    def form(self) -> Literal["object", "text"]:
        """As what it takes a call's arguments: an object, or its JSON."""

    def calls_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Calls of one message as a model writes them: names and arguments."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a grammar spells what all dialects need."""

    added: Mapping[int, str]
    """The vocabulary's added tokens by id: llguidance takes some of them for special tokens that are none."""
    parallel: bool
    """Whether an output may have several calls."""

    def tokens(self, text: str) -> list[str]:
        """The text with the added tokens that it has in it; a list of none, where it has none, or one."""
        marks = {name: token for token, name in self.added.items() if re.fullmatch(r"[<\[].+[>\]]", name)}
        ids = {name: token for name, token in marks.items() if name in text}
        if not ids:
            return []
        longest_first = sorted(ids, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
        return [" ".join(f"<[{ids[part]}]>" if part in ids else quoted(part) for part in parts if part)]

    def mark(self, text: str) -> str:
        """The mark as text, or as the token that it is."""
        return " | ".join([quoted(text), *self.tokens(text)])

    def more(self, rule: str) -> str:
        """Any number of further calls, if there may be several."""
        return f"({rule})*" if self.parallel else ""


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
    lists: bool = False
    """Whether `begin` finds further calls that have no mark of their own."""

    @abstractmethod
    def rules(self, spelling: Spelling, functions: Sequence[CallableFunction]) -> list[str]:
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

    def begin(self, text: str, schemas: Mapping[str, Any]) -> CallStart | None:
        """The beginning of a call that is not a JSON object, where `text` follows the mark; None: there is none so far.

        schemas: of the functions' arguments, by the functions' names.
        """
        return None

    def may_begin(self, text: str) -> bool:
        """Whether more text could make `begin` find one."""
        return False


def quoted(text: str) -> str:
    """A string of a grammar."""
    return orjson.dumps(text).decode()


def in_slashes(pattern: str) -> str:
    """The pattern as a grammar writes it between slashes."""
    return pattern.replace("/", r"\/")


def json_rule(schema: Mapping[str, Any]) -> str:
    """What follows a schema, as JSON."""
    guidance = schema.get("x-guidance")
    own = guidance if isinstance(guidance, dict) else {}
    return "%json " + orjson.dumps({**schema, "x-guidance": {**own, **SPACING}}).decode()
