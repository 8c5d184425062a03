"""The web page's settings, by group, named as the API's fields. Knows no event."""

from typing import Any

import gradio as gr


def settings() -> dict[str, Any]:
    """Adds the components to the web page under construction; returns them by name."""
    made: dict[str, Any] = {}

    def number(name: str, label: str, value: str = "") -> None:
        # gr.Number has no empty value.
        made[name] = gr.Textbox(value, label=label, placeholder="the model's own", max_lines=1, min_width=120)

    with gr.Tab("Lengths and penalties"):
        with gr.Row():
            number("max_tokens", "Most tokens", "256")
            number("min_tokens", "Fewest tokens")
            number("repetition_penalty", "Repetition penalty")
            number("presence_penalty", "Presence penalty")
            number("frequency_penalty", "Frequency penalty")
        made["stop"] = gr.Textbox(label="Stop strings, one a line", lines=1, max_lines=4)
    with gr.Tab("Sampling"), gr.Row():
        number("temperature", "Temperature")
        number("top_k", "Top-k")
        number("top_p", "Top-p")
        number("min_p", "Min-p")
        number("seed", "Seed")
    with gr.Tab("Beams"), gr.Row():
        number("num_beams", "Beams", "4")
        number("n", "Answers shown", "1")
        number("length_penalty", "Length penalty")
        made["early_stopping"] = gr.Dropdown(["no", "yes", "never"], value="no", label="Early stopping", min_width=120)
        number("num_beam_groups", "Groups (diverse)", "2")
        number("diversity_penalty", "Diversity penalty", "1")
    with gr.Tab("Contrastive"), gr.Row():
        number("penalty_alpha", "Penalty alpha", "0.6")
        number("candidates", "Candidates (top-k)", "4")
    with gr.Tab("Context and cache"), gr.Row():
        made["endless"] = gr.Checkbox(label="Endless context: the oldest tokens go", min_width=120)
        number("context_window", "Window, in tokens")
        number("n_keep", "First tokens kept (n_keep)")
        number("n_discard", "Discarded at a time (n_discard)")
        made["use_cache"] = gr.Checkbox(True, label="use_cache", min_width=120)
    return made
