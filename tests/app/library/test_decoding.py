"""What a call of generate asks for, and combinations that make no sense, each refused by the names of its options."""

from typing import Any

import pytest

from app.library.decoding import DEFAULTS, decoding_of
from app.messages.requests import BeamParams, ContrastiveParams


@pytest.mark.parametrize(
    ("given", "configured", "samples", "search"),
    [
        ({}, {}, False, None),
        ({"do_sample": True}, {}, True, None),
        ({}, {"do_sample": True, "temperature": 0.2}, True, None),
        ({"do_sample": False}, {"do_sample": True, "temperature": 0.2}, False, None),
        ({"num_beams": 4}, {"temperature": 0.2}, False, BeamParams(4)),
        ({"num_beams": 4, "length_penalty": 2, "early_stopping": "never"}, {}, False, BeamParams(4, 1, 2.0, "never")),
        (
            {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5, "num_return_sequences": 2},
            {},
            False,
            BeamParams(6, 2, 1.0, False, 3, 0.5),
        ),
        ({"penalty_alpha": 0.6, "top_k": 4}, {}, False, ContrastiveParams(4, 0.6)),
        ({"penalty_alpha": 0.6}, {}, False, ContrastiveParams(50, 0.6)),
        ({"penalty_alpha": 0.0, "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0}, {}, False, None),
        ({"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}, {}, False, None),
    ],
)
def test_the_decoding(given: dict[str, Any], configured: dict[str, Any], samples: bool, search: Any) -> None:
    decoding = decoding_of(given, configured)
    assert (decoding.samples, decoding.search, decoding.uses_cache) == (samples, search, True)


def test_options_of_sampling() -> None:
    given = {"do_sample": True, "top_k": 3, "repetition_penalty": 1.5, "num_return_sequences": 2, "use_cache": False}
    decoding = decoding_of(given, {"temperature": 0.5, "top_k": 9, "min_p": None})
    sampling = decoding.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 1.0, 0.0)
    assert (sampling.repetition_penalty, decoding.sequences, decoding.uses_cache) == (1.5, 2, False)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"num_beams": 2, "do_sample": True}, ("num_beams", "do_sample")),
        ({"penalty_alpha": 0.5, "do_sample": True}, ("penalty_alpha", "do_sample")),
        ({"penalty_alpha": 0.5, "num_beams": 2}, ("penalty_alpha", "num_beams")),
        ({"penalty_alpha": 0.5, "top_k": 1}, ("top_k", "penalty_alpha")),
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 1.0}, ("num_beam_groups", "num_beams")),
        ({"num_beam_groups": 2, "diversity_penalty": 1.0}, ("num_beam_groups", "num_beams")),
        ({"num_beams": 4, "num_beam_groups": 2}, ("diversity_penalty", "num_beam_groups")),
        ({"num_beams": 4, "diversity_penalty": 1.0}, ("diversity_penalty", "num_beam_groups")),
        ({"length_penalty": 2.0}, ("length_penalty", "num_beams")),
        ({"early_stopping": True, "do_sample": True}, ("early_stopping", "num_beams")),
        ({"num_beams": 2, "num_return_sequences": 3}, ("num_return_sequences", "num_beams")),
        ({"num_return_sequences": 2}, ("num_return_sequences", "do_sample")),
        ({"penalty_alpha": 0.5, "num_return_sequences": 2}, ("num_return_sequences", "num_beams")),
        ({"temperature": 0.7}, ("temperature", "do_sample")),
        ({"temperature": 0.7, "num_beams": 2}, ("temperature", "do_sample")),
        ({"top_k": 5}, ("top_k", "do_sample")),
        ({"top_p": 0.5, "penalty_alpha": 0.5}, ("top_p", "do_sample")),
        ({"do_sample": True, "temperature": 0}, ("temperature", "do_sample")),
        ({"num_beams": 0}, ("num_beams", "at least 1")),
        ({"num_beams": 2.5}, ("num_beams", "2.5")),
        ({"penalty_alpha": 1.5, "top_k": 4}, ("penalty_alpha", "0 to 1")),
        ({"num_beams": 2, "early_stopping": "always"}, ("early_stopping", "'always'")),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(given: dict[str, Any], named: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        decoding_of(dict.fromkeys(DEFAULTS) | given, {})
    assert all(name in str(refused.value) for name in named)
