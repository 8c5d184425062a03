"""What a terminal chat says of its answers. Knows no service and no terminal."""

from openai import APIConnectionError, APIError, OpenAIError

from app.client import login, v1
from app.client.session_file import SavedSession
from app.client.turns import Context, Ended, Usage

_SHOWN_CHARS = 300
"""Characters shown of each turn of an earlier chat."""
_SHOWN_QUESTION_CHARS = 40
_TIMED_S = 0.5
"""Shorter answers say nothing of the speed."""


def greeting(model: str, url: str, session: SavedSession | None) -> str:
    user = "" if session is None else f", logged in as {session.name}"
    return f"{model} at {url}{user}. Ctrl-C stops an answer; /help says more; exit leaves."


def numbers(usage: Usage, model: v1.Model | None, seconds: float = 0.0) -> str:
    """An answer's usage in one line. seconds: the time in which its tokens came."""
    context = short(usage.prompt_tokens + usage.answer_tokens)
    if model is not None and model.context_tokens:
        context += f" of {round(model.context_tokens / 1024)}k"
    speed = ""
    if seconds >= _TIMED_S and usage.answer_tokens > 1:
        per_second = (usage.answer_tokens - 1) / seconds
        speed = f"{per_second:.{0 if per_second >= 10 else 1}f} tok/s, "
    remembered = short(usage.remembered_tokens)
    return f"{usage.answer_tokens:,} tokens, {speed}{context} context, {remembered} remembered"


def short(tokens: int) -> str:
    """Formats a number of tokens, such as 312 or 1.1k."""
    return f"{tokens / 1000:.1f}k" if tokens >= 1000 else str(tokens)


def what_to_do(error: OpenAIError, code: str | None, *, is_begun: bool) -> str:
    wait_s = login.retry_after_s(error)
    if wait_s is not None:
        return f"Wait {wait_s} s, then /retry."
    if code == "context_length_exceeded":  # older turns are left out by the service
        return "The question is too long by itself: /edit shortens it."
    if code == "model_not_found":
        return "/model shows which there are; then /retry."
    if isinstance(error, APIError) and not isinstance(error, APIConnectionError) and code == "invalid_value":
        return "/edit changes the question, /set how it is asked."
    return "/continue goes on, /retry asks again." if is_begun else "/retry asks again."


def _line_of(question: str) -> str:
    line = " ".join(question.split())
    return line if len(line) <= _SHOWN_QUESTION_CHARS else f"{line[:_SHOWN_QUESTION_CHARS]}…"


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ..."


def cut(end: Ended, *, has_text: bool) -> str:
    """Says by what an answer was cut, and what to do; empty if it was not."""
    if end.cut_by is None:
        return ""
    tokens = f" at {end.usage.answer_tokens:,} tokens" if end.usage is not None else ""
    why = "the longest answer" if end.cut_by == "length" else "the context is full"
    if not end.was_thinking:
        return f"Cut{tokens}: {why}. {'/continue goes on' if has_text else '/set max_tokens, then /retry'}."
    return f"Cut{tokens}, while the model was still thinking: {why}. /think short or /set max_tokens, then /retry."


def used(usage: Usage, context: Context) -> str:
    """Says how much of the context is used, and what the next question leaves of it."""
    tokens = usage.prompt_tokens + usage.answer_tokens
    left = context.limit_tokens - tokens
    leaves = f"{left:,} are left for the next question" if left > 0 else "the next question leaves the oldest turns out"
    return f"{tokens:,} of {context.limit_tokens:,} tokens are used; {leaves}."


def left_out(turns: int, question: str | None) -> str:
    """Says from where on the model sees the chat. question: the first one that it sees; None: unknown."""
    first = f" and sees it from “{_line_of(question)}” on" if question else ""
    unseen = "the first turn" if turns == 1 else f"the first {turns} turns"
    return f"The model no longer sees {unseen} of this chat{first}."
