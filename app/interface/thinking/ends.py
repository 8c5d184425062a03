"""How a thought is ended whose budget is used up: the text that is written, by family. It knows no tokenizer."""

from dataclasses import dataclass
from typing import Literal

from app.interface.thinking.channels import CHANNEL, END, MESSAGE, START
from app.interface.thinking.marks import CHANNELS, ThoughtMarks

_QWEN3 = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
"""What Qwen's documentation (Thinking Budget) and Qwen3's report write there; other families have no such sentence."""

Calls = Literal["none", "may", "must"]
"""Whether the answer after the thought can be a function call."""


@dataclass(frozen=True, slots=True)
class WrittenEnds:
    """The texts that end thoughts."""

    end: str
    again: str = ""
    """Ends a further thought; empty: only the beginning of an output can be a thought."""


def written_ends(marks: ThoughtMarks, model_type: str, calls: Calls) -> WrittenEnds:
    """Returns the texts for a model. model_type: as in its configuration.

    After a thought in gpt-oss's channels the next message is the answer, unless functions can be called: then the model
    chooses, and only if it goes on to think it has to begin the answer, or the call.
    """
    if marks == CHANNELS:
        next_message = f"{END}{START}assistant"
        answer = f"{next_message}{CHANNEL}final{MESSAGE}"
        call = f"{next_message}{CHANNEL}commentary to=functions."
        return WrittenEnds(answer if calls == "none" else next_message, call if calls == "must" else answer)
    sentence = _QWEN3 if model_type.startswith("qwen3") and marks.opening == "<think>" else ""
    return WrittenEnds(f"{sentence}{marks.before_closing}{marks.closing}")


def without_thought(prompt: str, marks: ThoughtMarks) -> str:
    """Returns the prompt with an empty thought if it ends with an opening mark, as templates with a switch write it."""
    begun = prompt.rstrip()
    return f"{begun}\n\n{marks.closing}\n\n" if marks != CHANNELS and begun.endswith(marks.opening) else prompt
