"""Turns the web page's settings into fields of a request. Knows neither the web page nor HTTP.

An empty setting is not sent, so the model's default applies. Nor is one that the chosen decoding does not use. Other
invalid combinations are left to the service to refuse.
"""

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from math import isfinite
from typing import Any


class SettingError(Exception):
    """A setting is not a number; the message names it."""


class Decoding(StrEnum):
    """How the next token is chosen."""

    OWN = "the model's own"
    SAMPLING = "sampling"
    GREEDY = "greedy"
    BEAMS = "beam search"
    DIVERSE = "diverse beams"
    CONTRASTIVE = "contrastive search"


_BOUNDS = ("max_tokens", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
_BEAMS = ("num_beams", "n", "length_penalty")
_USED = {
    Decoding.OWN: ("seed",),
    Decoding.SAMPLING: _SAMPLING,
    Decoding.GREEDY: (),
    Decoding.BEAMS: _BEAMS,
    Decoding.DIVERSE: (*_BEAMS, "num_beam_groups", "diversity_penalty"),
    Decoding.CONTRASTIVE: ("penalty_alpha",),
}
_WINDOW = ("context_window", "n_keep", "n_discard")


def request_fields(decoding: Decoding, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the decoding fields of a chat completion. Raises SettingError.

    settings: by the names of the web page's components.
    """
    names = [*_BOUNDS, *_USED[decoding], *(_WINDOW if settings["endless"] else ())]
    fields: dict[str, Any] = {name: _number(name, settings[name]) for name in names if settings[name].strip()}
    if decoding is not Decoding.OWN:
        fields["do_sample"] = decoding is Decoding.SAMPLING
    if decoding is Decoding.CONTRASTIVE and settings["candidates"].strip():
        fields["top_k"] = _number("candidates", settings["candidates"])
    if decoding in (Decoding.BEAMS, Decoding.DIVERSE):
        fields["use_beam_search"] = True
        fields["early_stopping"] = {"yes": True, "no": False}.get(settings["early_stopping"], "never")
    if settings["endless"]:
        fields["on_overflow"] = "shift"
    if not settings["use_cache"]:
        fields["use_cache"] = False
    if stops := [line for line in settings["stop"].splitlines() if line]:
        fields["stop"] = stops
    return fields


def _number(name: str, text: str) -> int | float:
    for kind in (int, float):
        with suppress(ValueError):
            number = kind(text)
            if isfinite(number):
                return number
    raise SettingError(f"{name}: {text.strip()!r} is no number.")
