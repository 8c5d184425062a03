"""The chat page: Gradio components whose only way to the service is its own `/v1`, over HTTP.

A conversation lives in the browser and travels with each request; the process keeps nothing of it. Nothing on
the page comes from, or goes to, another host: fonts are the system's, and a Content-Security-Policy makes the
browser refuse what a model's answer might try to load. Knows nothing of Ray, engines or tokens.
"""

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from fastapi import FastAPI
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, OpenAIError, Timeout, omit
from openai.types.chat import ChatCompletionMessageParam
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Turn = dict[str, Any]
"""A chatbot message: {"role": "user" | "assistant", "content": text, or its parts}."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)

REDRAW_S = 0.04
"""Tokens that come faster than this are drawn together: each redraw costs the server milliseconds of CPU."""
QUEUE_LOOK_S = 0.05
"""How often Gradio looks for the page's events, as on Windows. Its millisecond elsewhere wakes the ingress a thousand
times a second."""
PROGRESS_LOOK_S = 1.0
"""How often it looks for progress bars, of which the page has none."""

SYSTEM_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
SYSTEM_FONTS_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")

CSS = """
.gradio-container { background: var(--body-background-fill); }
.gradio-container > .main { width: 100%; max-width: 52rem; margin: 0 auto; }
.gradio-container .wrap.sidebar-parent { max-width: none; }
#title { min-width: 0; }
#title h1 { font-size: 1.25rem; font-weight: 600; margin: 0; }
#title p { font-size: 0.85rem; opacity: 0.6; margin: 0; }
#clear { flex: none; align-self: center; min-width: 0; }
#chat { border: none !important; background: transparent !important; box-shadow: none; }
#chat button[aria-label="Clear"], #chat .top-panel { display: none; }
#chat .message { font-size: 0.97rem; line-height: 1.55; }
#chat .bot.message { background: transparent; border: none; box-shadow: none; padding-left: 0; }
#question { border-radius: 1rem; padding: 0.35rem 0.5rem; }
#question .submit-button { background: var(--button-primary-background-fill); color: white; }
#question textarea { font-size: 1rem; background: transparent; }
"""


def mount_page(app: FastAPI, base_url: str | None = None) -> None:
    """Puts the page at `/` of an application that has its other routes already.

    Args:
        app: serves `/v1` too.
        base_url: where `/v1` is, such as "http://127.0.0.1:8000"; None: at the address and port on which the
            page's own request came in (the server's, not what the client's Host header says).
    """
    gr.mount_gradio_app(
        app,
        build_page(base_url),
        path="/",
        footer_links=[],
        run_history=False,  # it would keep conversations in the browser after the page is closed
        max_file_size=1,  # bytes: the page takes no files, so Gradio's upload route must not either
        show_error=True,
        theme=_theme(),
        css=CSS,
    )
    app.add_middleware(_PagePolicy)


def _theme() -> gr.themes.Base:
    theme = gr.themes.Base(
        primary_hue="teal",
        neutral_hue="stone",
        radius_size="lg",
        font=SYSTEM_FONTS,
        font_mono=SYSTEM_FONTS_MONO,
    )
    return theme.set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_text_color="white",
    )


def build_page(base_url: str | None = None) -> gr.Blocks:
    """The page's components and events; see `mount_page`."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    service = _Service(base_url)
    page = gr.Blocks(title="Redoubt", analytics_enabled=False, fill_height=True)
    with page:
        with gr.Sidebar(label="Settings", position="right", open=False, elem_id="settings"):
            gr.Markdown("### Settings")
            model = gr.Dropdown(label="Model", elem_id="model")
            system = gr.Textbox(label="System prompt", lines=3, elem_id="system")
            temperature = gr.Slider(0, 2, 0.0, step=0.05, label="Temperature", info="0: always the likeliest word.")
            top_p = gr.Slider(0.05, 1, 0.9, step=0.05, label="Top-p")
            max_tokens = gr.Number(1024, label="Longest answer, in tokens", minimum=1, precision=0)
            seed = gr.Textbox(label="Seed", placeholder="Another one each time", elem_id="seed")
            key = gr.Textbox(label="API key", placeholder="If the service asks for one", type="password")
        with gr.Row():
            gr.Markdown("# Redoubt\nWhat you write stays between this browser and this service.", elem_id="title")
            clear = gr.Button("New chat", elem_id="clear", size="sm", variant="secondary")
        chat = gr.Chatbot(
            elem_id="chat",
            show_label=False,
            scale=1,
            height="70vh",
            buttons=["copy"],
            feedback_options=None,
            allow_tags=False,
            placeholder="Ask a question to begin.",
        )
        question = gr.Textbox(
            elem_id="question",
            show_label=False,
            placeholder="Write a message",
            lines=1,
            max_lines=8,
            autofocus=True,
            submit_btn="Send",
        )
        knobs = [model, system, temperature, top_p, max_tokens, seed, key]
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        streamed = {"outputs": [question, chat], "concurrency_limit": None, **private}
        answer = question.submit(service.answer, [question, chat, *knobs], **streamed)
        again = chat.retry(service.answer_again, [chat, *knobs], **streamed)
        # Cancelling drops the request to `/v1`, and that ends the work on the server.
        question.stop(_idle, None, question, cancels=[answer, again], queue=False, **private)
        # Emptied only once nothing streams any more: a late piece of an answer would bring the old chat back.
        ended = clear.click(None, None, None, cancels=[answer, again], queue=False, **private)
        ended.then(_new_chat, None, [question, chat], queue=False, **private)
        gr.on([page.load, key.change], service.models, key, model, concurrency_limit=None, **private)
    page.queue(max_size=None, api_open=False)
    page._queue.sleep_when_free = QUEUE_LOOK_S
    page._queue.progress_update_sleep_when_free = PROGRESS_LOOK_S
    return page


@dataclass(frozen=True, slots=True)
class _Knobs:
    """What the settings say, in the order of their components."""

    model: str | None
    system: str | None
    temperature: float
    top_p: float
    max_tokens: int | None
    seed: str | None
    key: str | None


class _Service:
    """The `/v1` that the page talks to."""

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url

    async def models(self, key: str | None, request: gr.Request) -> dict[str, Any]:
        """The choices of the model menu."""
        names: list[str] = []
        async with self._client(request, key) as client:
            try:
                names = await _served(client)
            except OpenAIError as error:
                gr.Warning(_reason(error), title="The service is not ready")
        return gr.update(choices=names, value=names[0] if names else None)

    async def answer(
        self, question: str, history: list[Turn], request: gr.Request, *knobs: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Answers a new question; one that got no answer at all is given back to be sent again."""
        if not question.strip():
            yield gr.skip(), gr.skip()
            return
        asked = [*history, {"role": "user", "content": question}]
        yield _busy(value=""), asked
        text = ""
        async with aclosing(self._converse(asked, request, _Knobs(*knobs))) as texts:
            async for text in texts:
                yield gr.skip(), [*asked, {"role": "assistant", "content": text}]
        yield (_idle(), gr.skip()) if text else (_idle(value=question), history)

    async def answer_again(
        self, history: list[Turn], request: gr.Request, *knobs: Any
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Answers the last question once more, in place of its answer."""
        asked = history[: _last_question(history) + 1]
        yield _busy(), asked
        text = ""
        async with aclosing(self._converse(asked, request, _Knobs(*knobs))) as texts:
            async for text in texts:
                yield gr.skip(), [*asked, {"role": "assistant", "content": text}]
        yield _idle(), gr.skip() if text else history

    async def _converse(
        self, conversation: list[Turn], request: gr.Request, knobs: _Knobs
    ) -> AsyncGenerator[str, None]:
        """The answer's whole text so far, again and again. An error is shown, and ends it.

        Closing it closes the connection, which ends the work on the server.
        """
        text = shown = ""
        shown_at_s = 0.0
        try:
            seed = int(knobs.seed) if knobs.seed and knobs.seed.strip() else omit
        except ValueError:
            gr.Warning("The seed is a whole number, or empty.", title="No answer")
            return
        async with self._client(request, knobs.key) as client:
            try:
                stream = await client.chat.completions.create(
                    model=knobs.model or next(iter(await _served(client)), ""),  # asked before the menu was there
                    messages=_messages(conversation, knobs.system),
                    stream=True,
                    temperature=knobs.temperature,
                    top_p=knobs.top_p,
                    max_tokens=omit if knobs.max_tokens is None else knobs.max_tokens,
                    seed=seed,
                )
                async with stream:
                    async for chunk in stream:
                        if chunk.choices and (piece := chunk.choices[0].delta.content):
                            text += piece
                            if time.monotonic() - shown_at_s >= REDRAW_S:
                                yield text
                                shown, shown_at_s = text, time.monotonic()
            except OpenAIError as error:
                gr.Warning(_reason(error), title="The answer broke off" if text else "No answer")
        if text != shown:
            yield text

    def _client(self, request: gr.Request, key: str | None) -> AsyncOpenAI:
        # The library insists on a key. No time limit once connected: CPUs may be slow.
        return AsyncOpenAI(
            base_url=f"{self._base_url or _own_address(request)}/v1",
            api_key=key or "none",
            timeout=Timeout(None, connect=5),
            max_retries=0,
        )


class _PagePolicy:
    """Adds the Content-Security-Policy to every HTML response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
                    headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self._app(scope, receive, send_with_policy if scope["type"] == "http" else send)


async def _served(client: AsyncOpenAI) -> list[str]:
    return [model.id async for model in client.models.list()]


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


def _idle(**changes: Any) -> dict[str, Any]:
    return gr.update(submit_btn="Send", stop_btn=False, **changes)


def _new_chat() -> tuple[dict[str, Any], list[Turn]]:
    return _idle(), []


def _reason(error: OpenAIError) -> str:
    if isinstance(error, APIStatusError) and isinstance(error.body, dict):
        return str(error.body.get("message") or error)
    if isinstance(error, APIConnectionError):
        return "The service does not answer. Is it still running?"
    return str(error)
