"""Conversations that chat templates must render, compared with what transformers renders.

It needs transformers and Jinja, and no tokenizer. `test_templates` uses it, and `tests/conformance/chat_templates`.
"""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.interface.request.errors import ApiError
from app.interface.text.chat_template import ChatTemplate
from app.interface.wire.chat import Message
from app.interface.wire.tools import Tool

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
_MARK = re.compile(r"<[|｜][^<>\s]*?[|｜]>|</?[a-z_]+>|\[/?[A-Z_]+\]")
"""Text that looks like a control token of a template."""
_RAW = re.compile(r"""'city'|["']text["']: *["']""")
"""An object formatted by Python, or parts formatted as JSON."""
Values = list[dict[str, Any]]


@dataclass(frozen=True)
class Conversation:
    """Messages as in the API, except that the calls' arguments are objects."""

    messages: Values
    words: tuple[str, ...]
    """Strings that the prompt must contain; if transformers' does not, ours may differ from it."""
    tools: Values | None = None
    alternatives: tuple[Values, ...] = ()
    """The messages as our rules may rewrite them."""


def said(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call(name: str, call_id: str = "abcdefgh1", **arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return said("assistant", content, tool_calls=list(calls))


def result(text: str, call_id: str = "abcdefgh1") -> dict[str, Any]:
    return said("tool", text, tool_call_id=call_id)


def tool(name: str, *arguments: str) -> dict[str, Any]:
    properties = {one: {"type": "string", "description": f"Its {one}."} for one in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    function = {"name": name, "description": f"It can {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("look", "city"), tool("count", "word", "place")]
ASKED, ANSWERED, AGAIN = said("user", "question1"), said("assistant", "answer1"), said("user", "question2")
SYSTEM, LATER = said("system", "system1"), said("system", "system2")
LOOK, COUNT = call("look", city="Oslo"), call("count", "abcdefgh2", word="ab", place="Rome")
ONE, SUNNY, SEVEN = calling(LOOK), result("sunny1"), result("seven", "abcdefgh2")
_ONE = ("can look", "question1", "Oslo", "sunny1")
_TWO = (*_ONE, "can count", "Rome", "seven")
_FOREIGN = "call_0123456789"
_AS_USERS = ([ASKED, said("user", "system2")], [said("user", "question1\n\nsystem2")])
CONVERSATIONS = {
    "one turn": Conversation([ASKED], ("question1",)),
    "three turns": Conversation([ASKED, ANSWERED, AGAIN], ("question1", "answer1", "question2")),
    "system": Conversation([SYSTEM, ASKED], ("system1", "question1")),
    "late system": Conversation(
        [SYSTEM, ASKED, ANSWERED, LATER, AGAIN], ("system1", "system2", "question1", "answer1", "question2")
    ),
    "system last": Conversation(
        [ASKED, LATER],
        ("question1", "system2"),
        alternatives=_AS_USERS,
    ),
    "two systems": Conversation([SYSTEM, LATER, ASKED], ("system1", "system2", "question1")),
    "developer": Conversation(
        [said("developer", "system1"), ASKED], ("system1", "question1"), alternatives=([SYSTEM, ASKED],)
    ),
    "tools": Conversation([SYSTEM, ASKED], ("system1", "question1", "can look", "can count"), TOOLS),
    "one call": Conversation([ASKED, ONE, SUNNY], _ONE, TOOLS),
    "two calls and an answer": Conversation(
        [SYSTEM, ASKED, ONE, SUNNY, calling(COUNT), SEVEN, ANSWERED, AGAIN],
        (*_TWO, "system1", "answer1", "question2"),
        TOOLS,
    ),
    "parallel calls": Conversation([ASKED, calling(LOOK, COUNT), SUNNY, SEVEN], _TWO, TOOLS),
    "text and a call": Conversation([ASKED, calling(LOOK, content="text1"), SUNNY], _ONE, TOOLS),
    "others' ids": Conversation(
        [ASKED, calling(call("look", _FOREIGN, city="Oslo")), result("sunny1", _FOREIGN)], _ONE, TOOLS
    ),
    "calls without tools": Conversation([ASKED, ONE, SUNNY, ANSWERED, AGAIN], (*_ONE[1:], "answer1", "question2")),
    "user after a result": Conversation([ASKED, ONE, SUNNY, AGAIN], (*_ONE, "question2"), TOOLS),
    "empty": Conversation([ASKED, said("assistant", ""), AGAIN], ("question1", "question2")),
    "parts": Conversation(
        [said("user", [{"type": "text", "text": "part1"}, {"type": "text", "text": "part2"}])], ("part1", "part2")
    ),
    "thought": Conversation(
        [ASKED, said("assistant", "answer1", reasoning_content="thought1"), AGAIN], ("answer1", "question2")
    ),
    "two users, two assistants": Conversation(
        [ASKED, AGAIN, ANSWERED, said("assistant", "answer2")], ("question1", "question2", "answer1", "answer2")
    ),
    "assistant first": Conversation([ANSWERED, ASKED], ("answer1", "question1")),
    "Unicode and control tokens": Conversation(
        [said("user", "Größe 日本 🦖 " * 300 + "\n\n\tend1 <|im_end|> <eos> [INST] <|eot_id|> <end_of_turn> x")],
        ("Größe 日本 🦖", "end1 <|im_end|> <eos> [INST] <|eot_id|> <end_of_turn> x"),
    ),
}


def outcome(source: str, name: str) -> str:
    """Returns "same" as transformers, "written" in another way, "refused: ...", or "WRONG: ..."."""
    conversation = CONVERSATIONS[name]
    theirs = [
        text
        for messages in (conversation.messages, *conversation.alternatives)
        if (text := _theirs(source, messages, conversation.tools)) is not None
    ]
    ours = _ours(source, conversation)
    if isinstance(ours, str) and ours in theirs:
        return "same"
    shown = [text for text in theirs if not _missing(text, conversation.words) and not _RAW.search(text)]
    if isinstance(ours, ApiError):
        return f"{'WRONG: ' if shown else ''}refused: {ours.message}"
    missing = _missing(ours, conversation.words)
    return "WRONG: another text" if shown else f"WRONG: without {missing}" if missing else "written"


def _missing(text: str, words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in text]


def _theirs(source: str, messages: Values, tools: Values | None) -> str | None:
    from transformers.utils.chat_template_utils import render_jinja_template  # it imports much, which takes seconds

    render: Any = render_jinja_template
    for as_text in (False, True):
        values = _with_arguments_as_text(messages) if as_text else deepcopy(messages)
        try:
            ((text,), _) = render(
                [values], tools=deepcopy(tools), chat_template=source, add_generation_prompt=True, **SPECIAL
            )
        except Exception:
            continue
        if as_text or "'city': 'Oslo'" not in text:
            return str(text)
    return None


def _ours(source: str, conversation: Conversation) -> str | ApiError:
    template = _template(source)
    messages = [Message.model_validate(one) for one in _with_arguments_as_text(conversation.messages)]
    try:
        text = template.render(messages, [Tool.model_validate(one) for one in conversation.tools or ()])
    except ApiError as error:
        return error
    return text.replace(template.mark, "")


@lru_cache(maxsize=1)
def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL, {*_MARK.findall(source), *SPECIAL.values()})


def _with_arguments_as_text(messages: Values) -> Values:
    values = deepcopy(messages)
    for one in (one for value in values for one in value.get("tool_calls", ())):
        one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
    return values
