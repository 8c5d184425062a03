"""How a chat model thinks: the marks of its thoughts, where an answer may think, and the budget of a thought.

Knows neither messages nor how a template is rendered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.interface.functions.dialects import SPECIAL_TOKENS
from app.interface.text.begun_answer import Begun
from app.interface.text.chat_template import ChatTemplate
from app.interface.text.detokenizer import Detokenizer
from app.interface.text.model_tokenizer import ModelTokenizer
from app.interface.text.thought_budget import ThoughtBudgets
from app.interface.thinking.channels import TOKEN_SIGN
from app.interface.thinking.ends import Calls
from app.interface.thinking.marks import CHANNELS, Thought, is_known, marks_of, thought_after
from app.interface.thinking.requested import ThinkingDefault
from app.messages.model_card import ThinkingMode
from app.messages.thoughts import ThoughtBudget

_PROMPT_END_TOKENS = 16
"""The number of a prompt's last tokens that show whether it ends within a thought."""


@dataclass(frozen=True, slots=True)
class ModelThinking:
    """How a model thinks, for clients."""

    has_switch: bool
    """Whether its template can be told not to let it think."""
    short_tokens: int
    """The budget of "short"."""
    default: ThinkingMode
    """How much it thinks if a request does not say."""


class ModelThoughts:
    """Immutable and thread-safe."""

    def __init__(
        self, tokenizer: ModelTokenizer, template: str | None, model_type: str, default: ThinkingDefault
    ) -> None:
        """default: the operator's, for requests that do not say how much to think."""
        self.default = default
        self.marks = marks_of(template, set(tokenizer.added.values()))
        self._is_known = is_known(self.marks, template)
        special_names = set(tokenizer.bytes.special.values())
        self._are_tokens = self.marks == CHANNELS and set(CHANNELS.special_tokens) <= special_names
        self._tokenizer = tokenizer
        plain = tokenizer.bytes
        shown = plain.showing(self.marks.special_tokens, TOKEN_SIGN if self._are_tokens else "")
        self._shown = {
            (False, False): plain,
            (False, True): plain.showing(SPECIAL_TOKENS),
            (True, False): shown,
            (True, True): shown.showing(SPECIAL_TOKENS),
        }
        """By whether thoughts and whether calls are shown."""
        self._budgets = ThoughtBudgets(
            self.marks,
            plain.showing(self.marks.special_tokens),
            lambda text: tokenizer.encode(tokenizer.aliases.in_text(text)).ids if text else [],
            model_type,
        )

    def described(self, template: ChatTemplate | None) -> ModelThinking | None:
        """Returns whether and how a model with this template thinks; None: it does not, as far as that tells."""
        if template is None or not (template.has_switch or self._is_known):
            return None
        default = self.default
        mode: ThinkingMode = default.mode or ("off" if template.is_off_by_default else "full")
        return ModelThinking(template.has_switch, default.short_tokens, mode)

    def after(self, prompt: Sequence[int]) -> Thought:
        """Returns how an answer to this chat prompt may begin with a thought."""
        end = self._tokenizer.text(prompt[-_PROMPT_END_TOKENS:])
        thought = thought_after(self.marks, end, is_known=self._is_known)
        return replace(thought, marks_are_tokens=self._are_tokens)

    def within(self, prompt: Sequence[int], begun: Begun) -> Thought | None:
        """Returns how an output that goes on with an answer may think; None: not any more."""
        if not (begun.thought or begun.text):
            return self.after(prompt)
        part: Literal["thought", "answer"] = "answer" if begun.text else "thought"
        if part == "answer" and self.marks != CHANNELS:
            return None
        return Thought(self.marks, part == "thought", True, self._are_tokens, part)

    def budget(self, thought: Thought, tokens: int, calls: Calls) -> ThoughtBudget:
        """Returns the budget of an output's thoughts, for the engine."""
        return self._budgets.budget(thought, tokens, calls)

    def detokenizer(self, *, starts_text: bool, shows_calls: bool = False, shows_thoughts: bool = False) -> Detokenizer:
        """Returns a new detokenizer for one output.

        shows_calls, shows_thoughts: whether special tokens that mark function calls, and thoughts, are text.
        """
        return Detokenizer(self._shown[shows_thoughts, shows_calls], starts_text=starts_text)
