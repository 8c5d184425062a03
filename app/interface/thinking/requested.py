"""Converts how much a request wants the model to think to variables of chat templates.

Templates have one of two: a switch (`enable_thinking`: Qwen 3, GLM, SmolLM3; `thinking`: DeepSeek V3.1, Granite) or an
effort (`reasoning_effort`: gpt-oss, Mistral). A variable that a template does not know has no effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from app.interface.wire.fields import ReasoningEffort

EFFORTS: Final[tuple[str, ...]] = get_args(ReasoningEffort)
"""In ascending order."""
COMMON_EFFORTS: Final = ("low", "medium", "high")
"""The efforts of every template that knows efforts, unless it refuses them."""
_SWITCHES: Final = ("enable_thinking", "thinking")


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The request's settings for the chat template."""

    effort: str | None = None
    """One of `EFFORTS`; None: the template's default."""
    thinks: bool | None = None
    """Whether the model should think; takes precedence over `effort`."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The user's own (`chat_template_kwargs`); they take precedence over both."""


def thinking_variables(options: TemplateOptions, efforts: Sequence[str]) -> dict[str, Any]:
    """Returns the variables for `effort` and `thinks`. efforts: those that the template knows, in ascending order."""
    variables: dict[str, Any] = {}
    effort = "none" if options.effort is None and options.thinks is False else options.effort
    if effort is not None:
        variables = {**dict.fromkeys(_SWITCHES, effort != "none"), "reasoning_effort": nearest_effort(effort, efforts)}
    if options.thinks is not None:
        variables |= dict.fromkeys(_SWITCHES, options.thinks)
    return variables


def nearest_effort(effort: str, known: Sequence[str]) -> str:
    """Returns the nearest known effort, the lower of two; "none" replaces no other. known: in ascending order."""
    if effort in known or not known:
        return effort
    if effort == "none":
        return known[0]
    place = EFFORTS.index(effort)
    some = [one for one in known if one != "none"] or known
    return min(some, key=lambda one: abs(EFFORTS.index(one) - place))
