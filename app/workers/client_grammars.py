"""A client's grammar as llguidance's Lark, and llguidance's complaints about one as a sentence.

It bounds what llguidance recurses into, which takes its stack and its time. It knows no tokens.
"""

import re
from typing import Final

from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from app.messages.grammar import OwnGrammar

MAX_LEVELS: Final = 1000
"""The most rules and brackets together, which may all be nested. A level takes about 3 KiB of stack."""
_NOT_RULES = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')
_GBNF = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[\w-]+', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): (.*)", re.DOTALL)
_TOKEN = re.compile(r' \(at ".*" \(.*\)\)$')
_REGEX = re.compile(r'invalid regex ".*" \(in regex\): ', re.DOTALL)
_REGEX_ERROR = re.compile(r"regex parse error:.*\nerror: ([^\n]*)", re.DOTALL)


class GrammarError(ValueError):
    """The grammar is not one; says why in a sentence."""


def lark_of(own: OwnGrammar) -> str:
    """Returns the grammar in Lark. Raises GrammarError."""
    if own.syntax == "lark":
        _check_levels(_NOT_RULES.sub("", own.text), ":")
        return own.text
    _check_levels(_GBNF.sub("", own.text), "::=")
    lark = _converted(own.text)
    _check_levels(_NOT_RULES.sub("", lark), ":")
    return lark


def _check_levels(structure: str, separator: str) -> None:
    if structure.count(separator) + sum(map(structure.count, "([{")) > MAX_LEVELS:
        raise GrammarError(f"it has more than {MAX_LEVELS} rules and brackets")


def _converted(gbnf: str) -> str:
    names = set(re.findall(r"^[ \t]*([\w-]+)\s*::=", gbnf, re.MULTILINE))
    if "root" not in names:
        raise GrammarError("it has no rule named root")
    try:
        return gbnf_to_lark(_GBNF.sub(lambda found: _written(found[0], names), gbnf))
    except GbnfToLarkError as error:
        message, _, place = str(error).rpartition(" at line ")
        raise GrammarError(f"line {place.partition(',')[0]}: {message[:1].lower()}{message[1:]}") from None
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    except Exception as error:  # the converter raises bare ones, with a sentence
        reason = str(error) if type(error) is Exception else "it ends too early"
        raise GrammarError(f"{reason[:1].lower()}{reason[1:]}") from None


def _written(token: str, names: set[str]) -> str:
    """Writes a token of GBNF as the converter takes it: it loses escaped characters, and has a rule `start` itself."""
    if token[0] in '"[':
        return token[0] + _ESCAPE.sub(_character, token[1:-1]) + token[-1]
    if token == "start":
        return next(name for number in range(len(names) + 1) if (name := f"start-{number}") not in names)
    return token


def _character(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        return escape[0]
    number = int(digits, 16)
    if number < 0x80:
        return f"\\x{number:02x}"
    is_character = number < 0x110000 and not 0xD800 <= number < 0xE000
    return chr(number) if is_character else escape[0]


def reason_of(complaint: str, own: OwnGrammar | None = None) -> str:
    """Returns llguidance's complaint without the lines that it quotes. own: the client's, whose lines it numbers."""
    found = _PLACE.match(complaint)
    if found is None:
        return complaint
    line, column, text = found.groups()
    error = _REGEX_ERROR.search(text)
    if error is not None:
        text = f"invalid regular expression: {error[1]}"
    else:
        text = _TOKEN.sub("", _REGEX.sub("invalid regular expression: ", text).partition("\n")[0])
    text = text[:1].lower() + text[1:]
    return f"line {line}, column {column}: {text}" if own is not None and own.syntax == "lark" else text
