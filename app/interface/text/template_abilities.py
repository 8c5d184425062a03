"""Probes what a chat template supports by rendering small conversations: templates do not declare it.

What a template refuses or silently omits is written in another way (`chat_template`). It knows no particular template,
and no request.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.interface.text.rendering import TemplateRefusedError

Value = dict[str, Any]
Render = Callable[[list[Value], list[Value] | None], str]
"""Renders a conversation with tools, or None; raises TemplateRefusedError for what the template does not expect."""
CallForm = Literal["object", "text", "none"]
"""The form in which a template expects a call's arguments; "none": it does not show calls."""
ID_CHARACTERS = 9
"""Mistral's templates require call ids of this length; all others accept it."""
_KEY = "probe_key"
_RAW = re.compile(rf"""'{_KEY}'|["']text["']: *["']probe_""")
"""Matches an object formatted by Python instead of the template, or parts shown as JSON."""
_LONG_ID = "call_probe00000000"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template shows unchanged."""

    system: bool
    """A system message at the beginning."""
    two_systems: bool
    """Two system messages at the beginning."""
    late_system: bool
    """A system message after other messages."""
    developer: bool
    """The role "developer", OpenAI's newer name of the system role."""
    tools: bool
    calls: CallForm
    parallel: bool
    """Several calls in one message."""
    results: bool
    """The role "tool", also after a call that is written as text."""
    any_id: bool
    """Call ids of any length."""
    parts: frozenset[str]
    """Roles whose content may be a list of parts."""


def abilities_of(render: Render, written: Callable[[str], Any]) -> Abilities:
    """Probes the template. written: converts a text to the template's content."""

    def message(role: str, word: str, **fields: Any) -> Value:
        return {"role": role, "content": written(word), **fields}

    def shows(messages: list[Value], *words: str, tools: list[Value] | None = None) -> bool:
        return _shows(render, messages, tools, words)

    user, answer, system = message("user", "probe_q"), message("assistant", "probe_a"), message("system", "probe_s")
    later = message("system", "probe_t")

    def calling(form: CallForm, *names: str, call_id: str = "probe000") -> list[Value]:
        ids = {name: f"{call_id}{number}" for number, name in enumerate(names)}
        calls = [_call(ids[name], name, form) for name in names]
        results = [message("tool", f"{name}_r", tool_call_id=ids[name], name=name) for name in names]
        return [user, message("assistant", "", tool_calls=calls), *results]

    def shows_calls(form: CallForm, *names: str, call_id: str = "probe000") -> bool:
        words = [f"{name}{end}" for name in names for end in ("", "_v", "_r")]
        return shows(calling(form, *names, call_id=call_id), *words)

    forms: tuple[CallForm, ...] = ("object", "text")
    form: CallForm = next((one for one in forms if shows_calls(one, "probe_f")), "none")
    parts = [{"type": "text", "text": "probe_m"}, {"type": "text", "text": "probe_n"}]
    return Abilities(
        system=shows([system, user], "probe_s"),
        two_systems=shows([system, later, user], "probe_s", "probe_t"),
        late_system=shows([system, user, answer, later, user], "probe_s", "probe_t")
        and shows([user, answer, later], "probe_t"),
        developer=shows([message("developer", "probe_s"), user], "probe_s"),
        tools=shows([user], "probe_f", "probe_q", tools=[_TOOL]),
        calls=form,
        parallel=form != "none" and shows_calls(form, "probe_f", "probe_g"),
        results=shows([user, answer, message("tool", "probe_r", tool_call_id="probe0000", name="probe_f")], "probe_r"),
        any_id=form == "none" or shows_calls(form, "probe_f", call_id=_LONG_ID),
        parts=frozenset(
            role
            for role in ("system", "user", "assistant", "tool")
            if shows(_with_content(role, parts, user, calling(form, "probe_f")), "probe_m", "probe_n")
        ),
    )


def _with_content(role: str, parts: list[Value], user: Value, calling: Sequence[Value]) -> list[Value]:
    """Returns a conversation in which that role's content consists of these parts."""
    match role:
        case "system":
            return [{"role": role, "content": parts}, user]
        case "assistant":
            return [user, {"role": role, "content": parts}, user]
        case "tool":
            return [*calling[:-1], {**calling[-1], "content": parts}]
    return [{"role": role, "content": parts}]


def _shows(render: Render, messages: list[Value], tools: list[Value] | None, words: Sequence[str]) -> bool:
    try:
        text = render(messages, tools)
    except TemplateRefusedError:
        return False
    is_raw = tools is None and _RAW.search(text) is not None  # functions may be formatted in any way
    return not is_raw and all(word in text for word in words)


def _call(call_id: str, name: str, form: CallForm) -> Value:
    arguments: Any = {_KEY: f"{name}_v"} if form == "object" else f'{{"{_KEY}": "{name}_v"}}'
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string", "description": "A"}}, "required": [_KEY]}
_TOOL = {"type": "function", "function": {"name": "probe_f", "description": "A", "parameters": _PARAMETERS}}
