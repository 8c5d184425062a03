"""The playground's web page, a Gradio application: two columns, each with its model, decoding and answer.

A key or session stays in this process, for the tab that gave it. Nothing is loaded from another host.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.playground.answers import Answer, side_by_side, written
from app.playground.decoding import Decoding, SettingError, request_fields
from app.playground.service import WORKER_COLUMNS, PlaygroundService
from app.playground.settings import settings

NOBODY = "(none)"
_REFRESH_S = 2.0
_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
_FONTS_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
_HIDDEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

Turn = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """One column of the web page."""

    model: gr.Dropdown
    decoding: gr.Dropdown
    chat: gr.Chatbot
    status: gr.Markdown
    history: gr.State
    """The messages so far, as in the API."""


def theme() -> gr.themes.Base:
    """Returns Gradio's base theme with system fonts only."""
    return gr.themes.Base(font=_FONTS, font_mono=_FONTS_MONO)


def build(service: PlaygroundService) -> gr.Blocks:
    """Builds the web page for one service."""
    page = gr.Blocks(title="Redoubt playground", analytics_enabled=False, fill_width=True)
    page.queue(api_open=False)
    with page:
        gr.Markdown(f"# Redoubt playground\nTwo models, or two decodings, on the same question. Service: {service.url}")
        key, trouble = gr.State(""), gr.Markdown(elem_id="trouble")
        _credentials(service, key)
        with gr.Row():
            sides = (_side("A", Decoding.OWN), _side("B", Decoding.GREEDY))
        with gr.Row():
            question = gr.Textbox(label="Question", elem_id="question", lines=1, max_lines=8, scale=8, submit_btn="Ask")
            with gr.Column(scale=1, min_width=120):
                stop, clear = gr.Button("Stop", variant="stop"), gr.Button("New chat")
        system = gr.Textbox(label="System prompt", lines=1, max_lines=6)
        gr.Markdown("An empty setting is the model's own. One that the chosen decoding does not use is not sent.")
        values = settings()
        with gr.Accordion("Workers"):
            workers = gr.Dataframe(headers=list(WORKER_COLUMNS), interactive=False, show_label=False, wrap=True)
        models = [side.model for side in sides]
        refreshing: dict[str, Any] = {
            "fn": _refresh(service),
            "inputs": [key, *models],
            "outputs": [trouble, workers, *models],
            **_HIDDEN,
        }
        page.load(**refreshing)
        gr.Timer(_REFRESH_S).tick(**refreshing)
        choices = [part for side in sides for part in (side.model, side.decoding, side.history)]
        shown = [part for side in sides for part in (side.chat, side.status, side.history)]
        asking = question.submit(
            _ask(service, tuple(values)),
            [question, key, system, *choices, *values.values()],
            [question, *shown],
            concurrency_limit=None,
            **_HIDDEN,
        )
        stop.click(None, cancels=asking, api_visibility="private")
        for side in sides:
            side.chat.clear(list, None, side.history, **_HIDDEN)
        clear.click(lambda: [[], "", []] * len(sides), None, shown, cancels=asking, **_HIDDEN)
    return page


def _side(name: str, decoding: Decoding) -> Side:
    with gr.Column(min_width=320):
        with gr.Row():
            model = gr.Dropdown([NOBODY], value=NOBODY, label=f"Model {name}", filterable=False)
            how = gr.Dropdown(list(Decoding), value=decoding, label=f"Decoding {name}", filterable=False)
        chat = gr.Chatbot(label=name, height=360, buttons=["copy"], elem_id=f"chat-{name.lower()}")
        return Side(model, how, chat, gr.Markdown(elem_id=f"told-{name.lower()}"), gr.State([]))


def _credentials(service: PlaygroundService, key: gr.State) -> None:
    """Adds the fields for a key and a login, which are emptied once read."""
    with gr.Accordion("API key or login", open=False), gr.Row():
        given = gr.Textbox(label="API key", type="password")
        name, password = gr.Textbox(label="Name"), gr.Textbox(label="Password", type="password")
        with gr.Column():
            log_in, status = gr.Button("Log in"), gr.Markdown()
    given.submit(lambda value: (value.strip(), ""), given, [key, given], **_HIDDEN)

    def session(name: str, password: str) -> tuple[Any, str, str]:
        token, why = service.log_in(name, password)
        return token or gr.skip(), "", _line(why or "Logged in.")

    for event in (log_in.click, password.submit):
        event(session, [name, password], [key, password, status], **_HIDDEN)


def _refresh(service: PlaygroundService) -> Any:
    async def refresh(key: str, *chosen: str) -> list[Any]:
        seen = await service.state(key)
        fields = [gr.skip()] * len(chosen)
        if seen.models:
            # When the web page was just opened, or its models are gone, each side gets the next model.
            known, last = [*seen.models, NOBODY], len(seen.models) - 1
            is_new = not any(one in seen.models for one in chosen)
            values = [seen.models[min(place, last)] if is_new else one for place, one in enumerate(chosen)]
            fields = [gr.Dropdown(choices=known, value=one if one in known else NOBODY) for one in values]
        return [_line(seen.trouble), [list(row) for row in seen.workers], *fields]

    return refresh


def _ask(service: PlaygroundService, names: Sequence[str]) -> Any:
    async def ask(question: str, key: str, system: str, *values: Any) -> AsyncGenerator[list[Any], None]:
        if not question.strip():
            yield [gr.skip()] * 7  # without any, Gradio empties the outputs
            return
        instructions = [{"role": "system", "content": system}] if system.strip() else []
        settings = dict(zip(names, values[6:], strict=True))
        parts: list[Any] = ["", *(gr.skip() for _ in range(6))]
        asked: list[list[Turn]] = []
        streams: dict[int, AsyncGenerator[Answer, None]] = {}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(service.client(key))
            for place in (0, 1):
                model, decoding, history = values[3 * place : 3 * place + 3]
                asked.append([*history, {"role": "user", "content": question}])
                if model == NOBODY:
                    continue
                try:
                    fields = request_fields(Decoding(decoding), settings)
                except SettingError as error:
                    parts[1 + 3 * place : 4 + 3 * place] = _shown(asked[place], Answer(failure=str(error)))
                else:
                    streams[place] = written(client, model, [*instructions, *asked[place]], fields)
            yield parts
            parts[0] = gr.skip()  # the next question may be in it by now
            running = await stack.enter_async_context(aclosing(side_by_side([*streams.values()])))
            async for answers in running:
                for place, answer in zip(streams, answers, strict=True):
                    parts[1 + 3 * place : 4 + 3 * place] = _shown(asked[place], answer)
                yield parts

    return ask


def _shown(asked: Sequence[Turn], answer: Answer) -> list[Any]:
    """Returns what a side shows: its turns, the statistics line, and the history for the next question."""
    turns: list[Turn] = [*asked]
    if answer.thought:
        turns.append({"role": "assistant", "content": answer.thought, "metadata": {"title": "Thought"}})
    if answer.texts:
        turns.append({"role": "assistant", "content": answer.text})
    kept = [*asked, {"role": "assistant", "content": answer.texts[0]}] if answer.texts.get(0) else list(asked[:-1])
    return [turns, _line(answer.failure) or _line(statistics(answer)), kept]


def statistics(answer: Answer) -> str:
    """Formats an answer's statistics in one line."""
    if answer.first_token_s is None:
        return "Waiting for the first token"
    parts = [f"first token {answer.first_token_s:.2f} s", f"{answer.tokens} tokens"]
    if (rate := answer.tokens_per_s) is not None:
        parts.append(f"{rate:.1f} tokens/s")
    if answer.prompt_tokens:
        parts.append(f"prompt {answer.prompt_tokens}, {answer.cached_tokens} of it cached")
    if answer.finish_reason == "length":
        parts.append("cut at the most tokens")
    return ", ".join(parts)


def _line(text: str) -> str:
    """Escapes text for Markdown."""
    return re.sub(r"([^\w\s,:])", r"\\\1", text)
