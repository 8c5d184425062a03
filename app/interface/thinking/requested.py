"""How much a request wants the model to think, and the variables of chat templates for it.

Templates have one of two: a switch (`enable_thinking`: Qwen 3, GLM, SmolLM3; `thinking`: DeepSeek V3.1, Granite) or an
effort (`reasoning_effort`: gpt-oss, Mistral). A variable that a template does not know has no effect. A budget is
the engine's (`app.messages.thoughts`); of templates only Seed-OSS's knows one.

Every API turns its fields into `TemplateOptions` by `wanted_thinking`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from app.interface.wire.fields import ReasoningEffort
from app.messages.defaults import SHORT_THINKING_TOKENS
from app.messages.model_card import ThinkingMode

EFFORTS: Final[tuple[str, ...]] = get_args(ReasoningEffort)
"""In ascending order."""
COMMON_EFFORTS: Final = ("low", "medium", "high")
"""The efforts of every template that knows efforts, unless it refuses them."""
SWITCHES: Final = ("enable_thinking", "thinking")
"""Variables by which templates let a model think or not."""
NO_BUDGET: Final = -1
"""A request's budget if it wants none, also where the operator's default is one."""


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The request's settings for the chat template."""

    effort: str | None = None
    """One of `EFFORTS`; None: the template's default."""
    thinks: bool | None = None
    """Whether the model should think; takes precedence over `effort`."""
    budget: int | None = None
    """The most tokens of its thoughts; 0: it must not think. None: no limit."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The user's own (`chat_template_kwargs`); they take precedence over both."""
    opens_answer: bool = True
    """Whether the prompt ends where an answer begins (`add_generation_prompt`)."""
    continues: bool = False
    """Whether the last message is an answer that goes on (`continue_final_message`)."""


@dataclass(frozen=True, slots=True)
class ThinkingDefault:
    """What the operator has set for requests that do not say how much to think."""

    mode: ThinkingMode | None = None
    """None: as the template does."""
    short_tokens: int = SHORT_THINKING_TOKENS
    """The budget of "short"."""


def wanted_thinking(
    default: ThinkingDefault,
    *,
    effort: str | None = None,
    thinks: bool | None = None,
    budget: int | None = None,
    variables: Mapping[str, Any] | None = None,
) -> TemplateOptions:
    """Returns a request's options. All fields are as the request has them; None: it does not say.

    A budget above 0 asks for a thought, unless another field decides, and a budget of 0 for none.
    """
    variables = variables or {}
    is_silent = effort is None and thinks is None and budget is None
    is_silent = is_silent and not any(name in variables for name in (*SWITCHES, "reasoning_effort"))
    if is_silent and default.mode is not None:
        thinks = default.mode != "off"
        budget = {"off": 0, "short": default.short_tokens, "full": None}[default.mode]
    if budget == NO_BUDGET:
        budget = None
    if budget is not None and (budget == 0 or (thinks is None and effort is None)):
        thinks = budget > 0
    return TemplateOptions(effort, thinks, budget, variables)


def thinking_variables(options: TemplateOptions, efforts: Sequence[str]) -> dict[str, Any]:
    """Returns the variables for `effort` and `thinks`. efforts: those that the template knows, in ascending order."""
    variables: dict[str, Any] = {}
    effort = options.effort
    if effort is None and options.thinks is False:
        effort = "none"
    elif effort is None and options.thinks and "none" in efforts:  # which may be the template's default
        effort = "medium"
    if effort is not None:
        variables = {**dict.fromkeys(SWITCHES, effort != "none"), "reasoning_effort": nearest_effort(effort, efforts)}
    if options.thinks is not None:
        variables |= dict.fromkeys(SWITCHES, options.thinks)
    if options.budget is not None:
        variables["thinking_budget"] = options.budget
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
