"""How the chat page looks: theme, fonts, style sheet."""

import gradio as gr

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
#note { min-height: 1.2rem; font-size: 0.8rem; opacity: 0.7; }
#question { border-radius: 1rem; padding: 0.35rem 0.5rem; }
#question .submit-button { background: var(--button-primary-background-fill); color: white; }
#question textarea { font-size: 1rem; background: transparent; }
"""


def theme() -> gr.themes.Base:
    """Gradio's base theme with our colours, and fonts of the system only."""
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
