"""The chat page's Gradio application: the shell around the chat surface, which is TypeScript and asks `/v1` itself.

The process keeps nothing of a conversation. Nothing on the page comes from, or goes to, another host: fonts are the
system's. Knows nothing of the surface, Ray, engines or tokens.
"""

import os

import gradio as gr

SYSTEM_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")
SYSTEM_FONTS_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")


def build_page() -> gr.Blocks:
    """The application: no components and no events of its own."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    page = gr.Blocks(title="Redoubt", analytics_enabled=False, fill_height=True)
    page.queue(api_open=False)
    return page


def theme() -> gr.themes.Base:
    """Gradio's base theme with fonts of the system only."""
    return gr.themes.Base(font=SYSTEM_FONTS, font_mono=SYSTEM_FONTS_MONO)
