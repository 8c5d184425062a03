"""The fields that each decoding of the playground sends; the API accepts all of them."""

from typing import Any

import pytest

from app.interface.generate.planning.chat import plan_chat
from app.interface.generate.planning.limits import Limits
from app.interface.request.callers import Caller
from app.interface.wire.chat import ChatCompletionRequest
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest
from app.playground.decoding import Decoding, SettingError, request_fields
from tests.app.tiny_model import tiny_model

EMPTY = dict.fromkeys(
    (
        *("max_tokens", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop"),
        *("temperature", "top_k", "top_p", "min_p", "seed", "num_beams", "n", "length_penalty", "num_beam_groups"),
        *("diversity_penalty", "penalty_alpha", "candidates", "context_window", "n_keep", "n_discard"),
    ),
    "",
)
SETTINGS: dict[str, Any] = EMPTY | {"early_stopping": "no", "endless": False, "use_cache": True}


def planned(decoding: Decoding, **settings: Any) -> GenerateRequest:
    """The engine request that a service makes of these fields."""
    fields = request_fields(decoding, SETTINGS | settings)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = ChatCompletionRequest.model_validate(body)
    limits = Limits(default_max_tokens=64, max_choices=4, max_beams=8)
    return plan_chat(tiny_model(), request, limits, Caller(tenant=b""), "id").requests[0]


def test_settings_that_are_empty_are_the_models_own() -> None:
    assert request_fields(Decoding.OWN, SETTINGS) == {}


def test_sampling() -> None:
    sampling = planned(
        Decoding.SAMPLING, temperature=" 0.5", top_k="7", top_p="0.9", min_p="0.1", seed="3", repetition_penalty="1.2"
    ).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.9, 0.1)
    assert (sampling.seed, sampling.repetition_penalty) == (3, 1.2)


def test_greedy_sends_no_setting_of_sampling() -> None:
    request = planned(Decoding.GREEDY, temperature="0.7", top_k="7", max_tokens="5")
    assert (request.sampling.temperature, request.sampling.top_k, request.max_new_tokens) == (0.0, 0, 5)


def test_beams() -> None:
    one = planned(
        Decoding.BEAMS, num_beams="4", n="2", length_penalty="0.5", num_beam_groups="2", early_stopping="never"
    )
    assert one.search == BeamParams(4, 2, 0.5, "never", 1, 0.0)
    several = planned(Decoding.DIVERSE, num_beams="4", num_beam_groups="2", diversity_penalty="1")
    assert several.search == BeamParams(4, 1, 1.0, False, 2, 1.0)


def test_contrastive_search() -> None:
    request = planned(Decoding.CONTRASTIVE, penalty_alpha="0.6", candidates="4", top_k="99")
    assert request.search == ContrastiveParams(4, 0.6)


def test_an_endless_context_and_no_cache() -> None:
    window = {"context_window": "256", "n_keep": "8", "n_discard": "64"}
    request = planned(Decoding.OWN, endless=True, use_cache=False, **window)
    assert request.window is not None
    assert (request.window.tokens, request.window.keep_tokens, request.window.discard_tokens) == (256, 8, 64)
    assert not request.uses_cache
    assert planned(Decoding.OWN, **window).window is None


def test_stop_strings_are_lines() -> None:
    assert request_fields(Decoding.OWN, SETTINGS | {"stop": "one\n\n two"})["stop"] == ["one", " two"]


@pytest.mark.parametrize("text", ["many", "nan", "1e999", "1,5"])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(SettingError, match=r"temperature: .* is no number"):
        request_fields(Decoding.SAMPLING, SETTINGS | {"temperature": text})
