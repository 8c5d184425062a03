"""The string format of a grammar that is more than a JSON schema: llguidance's Lark, perhaps with a client's in it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

HEADER = "%llguidance {}\n"
"""The beginning of a grammar of ours; no JSON schema begins like this."""
OWN_HEADER = "%own "
"""The beginning of a grammar of ours with a client's in it."""
BEGUN_HEADER = "%begun "
"""The beginning of a grammar whose output has begun in the prompt."""
OWN_RULE = "@own"
"""The client's grammar in ours: its rules have a space of names of their own."""
SPACING: Mapping[str, Any] = {
    # Exactly one space, as people write it: a model that may write endless white space sometimes does.
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}


@dataclass(frozen=True, slots=True)
class OwnGrammar:
    """A grammar that a client wrote."""

    syntax: Literal["gbnf", "lark"]
    text: str

    @classmethod
    def of(cls, grammar: str) -> tuple[str, Self]:
        """Returns the two grammars that `with_own` has joined."""
        main, syntax, text = json.loads(grammar.removeprefix(OWN_HEADER))
        return main, cls(syntax, text)


def with_own(main: str, own: OwnGrammar) -> str:
    """Joins a grammar of ours, in which OWN_RULE stands, and a client's."""
    return OWN_HEADER + json.dumps([main, own.syntax, own.text])


def with_begun(grammar: str, text: str) -> str:
    """Returns the grammar of an output that goes on with this text, which the grammar has to allow too."""
    return f"{BEGUN_HEADER}{json.dumps(text)}\n{grammar}"


def without_begun(grammar: str) -> tuple[str, str]:
    """Returns the two that `with_begun` has joined; the text is empty where none has begun."""
    if not grammar.startswith(BEGUN_HEADER):
        return grammar, ""
    text, _, rest = grammar.removeprefix(BEGUN_HEADER).partition("\n")
    return rest, json.loads(text)


def parts_of(grammar: str) -> list[str]:
    """Returns what a grammar has from its request, each by itself: its functions' schemas, then the answer's form."""
    return _parts(grammar, r"arguments_\d+: (?=%json )|answer: ")


def answer_of(grammar: str) -> str | None:
    """Returns the form of a grammar's answer by itself; None: it has none."""
    return next(iter(_parts(grammar, "answer: ")), None)


def _parts(grammar: str, names: str) -> list[str]:
    own = None
    if grammar.startswith(OWN_HEADER):
        grammar, own = OwnGrammar.of(grammar)
    bodies = re.findall(rf"^(?:{names})(.*)$", grammar, re.MULTILINE)
    return [_alone(body, own) for body in bodies]


def _alone(body: str, own: OwnGrammar | None) -> str:
    if body.startswith("%json "):
        return body.removeprefix("%json ")
    alone = f"{HEADER}start: {body}\n"
    return alone if own is None or body != OWN_RULE else with_own(alone, own)
