"""A conversation on the chat page: its turns, and how they reach the service."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from openai import AsyncOpenAI, OpenAIError, omit
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

from app.client import v1

Turn = dict[str, Any]
"""A chatbot message: {"role": "user" | "assistant", "content": text, or its parts}."""

SESSION_SCOPE = "redoubt.session"
"""Where the ASGI scope of the page's request has the token of its user's session; None: it has none."""
REDRAW_S = 0.04
"""Tokens that come faster than this are drawn together: each redraw costs the server milliseconds of CPU."""


@dataclass(frozen=True, slots=True)
class _Knobs:
    """The values of the settings, in the order of their components."""

    model: str | None
    system: str | None
    temperature: float
    top_p: float
    max_tokens: int | None
    seed: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class _SoFar:
    """An answer while it is made."""

    text: str = ""
    note: str = ""
    """What there is to say of it when it has ended."""


class Conversations:
    """What the page's components call; each call is a request to `/v1`."""

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url

    async def models(self, key: str | None, request: gr.Request) -> dict[str, Any]:
        """The choices of the model menu."""
        names: list[str] = []
        async with self._client(request, key) as client:
            try:
                names = await v1.models_async(client)
            except OpenAIError as error:
                gr.Warning(v1.reason(error), title="The service is not ready")
        return gr.update(choices=names, value=names[0] if names else None)

    async def answer(
        self, question: str, history: list[Turn], request: gr.Request, *knobs: Any
    ) -> AsyncIterator[tuple[Any, Any, Any]]:
        """Answers a new question; a question without any answer is put back into the text box."""
        if not question.strip():
            yield gr.skip(), gr.skip(), gr.skip()
            return
        asked = [*history, {"role": "user", "content": question}]
        yield _busy(value=""), asked, ""
        so_far = _SoFar()
        async with aclosing(self._converse(asked, request, _Knobs(*knobs))) as pieces:
            async for so_far in pieces:
                yield gr.skip(), [*asked, {"role": "assistant", "content": so_far.text}], so_far.note
        yield ((idle_box(), gr.skip(), gr.skip()) if so_far.text else (idle_box(value=question), history, ""))

    async def answer_again(
        self, history: list[Turn], request: gr.Request, *knobs: Any
    ) -> AsyncIterator[tuple[Any, Any, Any]]:
        """Answers the last question once more, in place of its answer."""
        asked = history[: _last_question(history) + 1]
        yield _busy(), asked, ""
        so_far = _SoFar()
        async with aclosing(self._converse(asked, request, _Knobs(*knobs))) as pieces:
            async for so_far in pieces:
                yield gr.skip(), [*asked, {"role": "assistant", "content": so_far.text}], so_far.note
        yield idle_box(), gr.skip() if so_far.text else history, gr.skip()

    async def _converse(
        self, conversation: list[Turn], request: gr.Request, knobs: _Knobs
    ) -> AsyncGenerator[_SoFar, None]:
        """Yields the answer so far each time it grows. An error is shown, and ends it.

        Closing it closes the connection, which ends the work on the server.
        """
        text = shown = note = ""
        shown_at_s = 0.0
        try:
            seed = int(knobs.seed) if knobs.seed and knobs.seed.strip() else omit
        except ValueError:
            gr.Warning("The seed is a whole number, or empty.", title="No answer")
            return
        async with self._client(request, knobs.key) as client:
            try:
                stream = await client.chat.completions.create(
                    model=knobs.model
                    or next(iter(await v1.models_async(client)), ""),  # before the menu of models was filled
                    messages=_messages(conversation, knobs.system),
                    stream=True,
                    stream_options={"include_usage": True},
                    temperature=knobs.temperature,
                    top_p=knobs.top_p,
                    max_tokens=omit if knobs.max_tokens is None else knobs.max_tokens,
                    seed=seed,
                )
                async with stream:
                    async for chunk in stream:
                        note = _remembered(chunk.usage) or note
                        if piece := v1.text_of(chunk):
                            text += piece
                            if time.monotonic() - shown_at_s >= REDRAW_S:
                                yield _SoFar(text)
                                shown, shown_at_s = text, time.monotonic()
            except OpenAIError as error:
                gr.Warning(v1.reason(error), title="The answer broke off" if text else "No answer")
        if text != shown or note:
            yield _SoFar(text, note)

    def _client(self, request: gr.Request, key: str | None) -> AsyncOpenAI:
        if self._base_url is not None:
            return v1.connect_async(self._base_url, key)
        # A session is this service's own affair: it goes to no other address.
        return v1.connect_async(_own_address(request), key or request.request.scope.get(SESSION_SCOPE))  # type: ignore[union-attr]


def _remembered(usage: CompletionUsage | None) -> str:
    """How much of the prompt need not be computed; empty where it is not known, or nothing."""
    details = None if usage is None else usage.prompt_tokens_details
    if usage is None or details is None or not details.cached_tokens:
        return ""
    return f"{details.cached_tokens:,} of {usage.prompt_tokens:,} tokens remembered"


def _own_address(request: gr.Request) -> str:
    """Where the request came in: from the socket, because a Host header could name any machine."""
    host, port = request.request.scope["server"]  # type: ignore[union-attr]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _messages(conversation: list[Turn], system: str | None) -> list[ChatCompletionMessageParam]:
    messages: list[ChatCompletionMessageParam] = []
    if system and system.strip():
        messages.append({"role": "system", "content": system})
    for turn in conversation:
        if turn["role"] == "user":
            messages.append({"role": "user", "content": _text(turn)})
        else:
            messages.append({"role": "assistant", "content": _text(turn)})
    return messages


def _text(turn: Turn) -> str:
    content = turn["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _last_question(history: list[Turn]) -> int:
    return max(i for i, turn in enumerate(history) if turn["role"] == "user")


def _busy(**changes: Any) -> dict[str, Any]:
    return gr.update(submit_btn=False, stop_btn="Stop", **changes)


def idle_box(**changes: Any) -> dict[str, Any]:
    """The text box while no answer is being written."""
    return gr.update(submit_btn="Send", stop_btn=False, **changes)


def new_chat() -> tuple[dict[str, Any], list[Turn], str]:
    """An empty box, an empty conversation, and nothing to say of it."""
    return idle_box(), [], ""
