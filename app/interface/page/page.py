"""The chat page: Gradio components that reach the service only through its own `/v1`, over HTTP.

A conversation lives in the browser and travels with each request; the process keeps nothing of it. Nothing on
the page comes from, or goes to, another host: fonts are the system's, and a Content-Security-Policy makes the
browser refuse what a model's answer might try to load. Knows nothing of Ray, engines or tokens.
"""

import os
from typing import Any

import gradio as gr

from app.interface.page.conversation import Conversations, idle_box, new_chat

QUEUE_LOOK_S = 0.05
"""How often Gradio looks for new events of the page, as on Windows. Elsewhere it looks every millisecond, which wakes
the ingress a thousand times a second."""
PROGRESS_LOOK_S = 1.0
"""How often it looks for progress bars, of which the page has none."""
MOST_SESSIONS = 1000
"""Sessions of which Gradio keeps the menu of models, about 30 KB each; the oldest ones go."""


def build_page(base_url: str | None = None, *, has_accounts: bool = False) -> gr.Blocks:
    """The page's components and events.

    base_url: where `/v1` is, such as "http://127.0.0.1:8000"; None: at the address and port on which the page's own
    request came in (the server's, not what the client's Host header says).
    has_accounts: whether there is a page `/account`.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    service = Conversations(base_url)
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
            account = " [Account](/account)" if has_accounts else ""
            gr.Markdown(
                f"# Redoubt\nWhat you write stays between this browser and this service.{account}", elem_id="title"
            )
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
        note = gr.Markdown(elem_id="note")
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
        streamed = {"outputs": [question, chat, note], "concurrency_limit": None, **private}
        answer = question.submit(service.answer, [question, chat, *knobs], **streamed)
        again = chat.retry(service.answer_again, [chat, *knobs], **streamed)
        # Cancelling closes the request to `/v1`, which ends the work on the server.
        question.stop(idle_box, None, question, cancels=[answer, again], queue=False, **private)
        # The chat is emptied after its streams have ended: a late piece of an answer would bring it back.
        ended = clear.click(None, None, None, cancels=[answer, again], queue=False, **private)
        ended.then(new_chat, None, [question, chat, note], queue=False, **private)
        gr.on([page.load, key.change], service.models, key, model, concurrency_limit=None, **private)
    page.queue(max_size=None, api_open=False)
    page.state_session_capacity = MOST_SESSIONS
    page._queue.sleep_when_free = QUEUE_LOOK_S
    page._queue.progress_update_sleep_when_free = PROGRESS_LOOK_S
    # Statistics of the page's events, for a page of Gradio's that is not there: they would load pandas.
    vars(page._queue)["compute_analytics_summary"] = lambda records: {"functions": {}}
    return page
