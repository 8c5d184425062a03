"""Mounts the chat page in the ingress: behind the gate, and with a Content-Security-Policy.

It also replaces how Gradio logs errors. It knows neither the page's components nor Ray.
"""

import logging
import sys
import traceback

import gradio as gr
import gradio.queueing
import gradio.routes
from fastapi import FastAPI
from starlette.routing import Mount

from app.interface.accounts.gate import AccountsGate
from app.interface.page.page import build_page, theme
from app.interface.page_gate.gate import PageGate
from app.interface.page_gate.policy import PagePolicy
from app.interface.routes.pages import CHAT, built

logger = logging.getLogger(__name__)


def mount_page(
    app: FastAPI,
    *,
    max_open_requests: int = 512,
    retry_after_s: int = 1,
    accounts: AccountsGate | None = None,
) -> None:
    """Puts the page at `/` of an application that has its other routes already.

    Args:
        app: serves `/v1` and `/ui` too.
        max_open_requests: that the whole application takes; the page takes half of them.
        retry_after_s: of an answer 503.
        accounts: with them only users get the page, or guests; None: there are none.
    """
    for module in (gradio.queueing, gradio.routes):
        vars(module)["traceback"] = _QuietTraceback
    gr.mount_gradio_app(app, build_page(), path="/", footer_links=[], run_history=False, theme=theme())
    mounted = app.router.routes.pop()
    assert isinstance(mounted, Mount)
    gate = PageGate(
        mounted.app, built(CHAT), max_open_requests=max_open_requests, retry_after_s=retry_after_s, accounts=accounts
    )
    app.mount("/", gate)
    app.add_middleware(PagePolicy)


class _QuietTraceback:
    """What Gradio finds in place of Python's `traceback`: it prints errors, whose messages quote prompts and keys."""

    @staticmethod
    def print_exc() -> None:
        """Logs an error by its type and place. One that the page shows to its user is none of ours."""
        error = sys.exception()
        if isinstance(error, gr.Error):
            return
        frames = "".join(traceback.format_tb(None if error is None else error.__traceback__))
        logger.error("the page failed: %s\n%s", type(error).__qualname__, frames)
