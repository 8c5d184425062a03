"""Frequencies beside transformers', spellings of configurations, and values that make no sense."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from quant.calibration.rope import rotary_angles
from quant.errors import SourceError, UnsupportedModelError
from quant.families.rope import rope_of
from quant.families.settings import Settings

HEAD_DIM, POSITIONS = 32, 4096
FACTORS = {
    "short_factor": [1.0 + i / 16 for i in range(16)],
    "long_factor": [1.0 + i for i in range(16)],
}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn, exact ends": {
        "rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32.0, "original_max_position_embeddings": 128,
        "truncate": False, "beta_fast": 24.0, "beta_slow": 2.0,
    },
    "yarn, mscale": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 128, "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "yarn, attention factor": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024,
        "attention_factor": 1.5,
    },
    "longrope": {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024, **FACTORS},
    "longrope, factor": {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024, "factor": 2.0, **FACTORS,
    },
}  # fmt: skip


def rope(config: Mapping[str, Any], **options: Any) -> Any:
    return rope_of(Settings(config, "x"), HEAD_DIM, POSITIONS, **{"partial": True, **options})


@pytest.mark.parity
@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("name", PARAMETERS)
def test_frequencies_are_transformers(name: str, part: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**PARAMETERS[name], **({} if part == 1.0 else {"partial_rotary_factor": part})}
    if "short_factor" in parameters:
        halves = int(HEAD_DIM * part) // 2
        parameters |= {key: values[:halves] for key, values in FACTORS.items()}
    ours = rope({"rope_parameters": dict(parameters)})
    config = LlamaConfig(head_dim=HEAD_DIM, rope_parameters=dict(parameters), max_position_embeddings=POSITIONS)
    if parameters["rope_type"] == "default":
        theirs, factor = 5e5 ** (-np.arange(0, int(HEAD_DIM * part), 2) / int(HEAD_DIM * part)), 1.0
    else:
        tensor, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")
        theirs = tensor.double().numpy()
    assert ours.rotary_dim == int(HEAD_DIM * part)
    np.testing.assert_allclose(ours.frequencies, theirs, rtol=2e-6)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-12)
    if ours.long_frequencies is not None:
        assert ours.short_positions == 1024
        tensor, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=2048)
        np.testing.assert_allclose(ours.long_frequencies, tensor.double().numpy(), rtol=2e-6)
        assert ours.long_attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", PARAMETERS)
def test_all_spellings_mean_the_same(name: str) -> None:
    parameters = dict(PARAMETERS[name])
    expected = rope({"rope_parameters": parameters})
    theta = parameters.pop("rope_theta")
    assert rope({"rope_theta": theta, "rope_scaling": parameters}) == expected
    assert rope({"rope_scaling": parameters}, theta=theta) == expected
    kind = parameters.pop("rope_type")
    assert rope({"rope_theta": theta, "rope_scaling": {"type": kind, **parameters}}) == expected
    layered = {"full_attention": PARAMETERS[name], "sliding_attention": {"rope_theta": 7.0}}
    assert rope({"rope_parameters": layered}, layer_type="full_attention") == expected


def test_the_trained_length_beside_the_object_counts() -> None:
    outside = {"rope_scaling": {**PARAMETERS["longrope"]}, "original_max_position_embeddings": 256}
    assert rope(outside).short_positions == 256


def test_dynamic_scaling_is_the_engines() -> None:
    dynamic = rope({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}).dynamic
    assert (dynamic.theta, dynamic.factor, dynamic.trained_positions) == (1e4, 2.0, POSITIONS)


def test_frequencies_are_computed_as_the_engine_always_did() -> None:
    """One order of operations in double precision, so that models give the same bits as before."""
    for i, frequency in enumerate(rope({"rope_theta": 1e5}).frequencies):
        assert frequency == math.pow(1e5, -2.0 * i / HEAD_DIM)


def test_angles_of_long_contexts() -> None:
    long = rope({"rope_scaling": {**PARAMETERS["longrope"], "attention_factor": 1.25}})
    short_cosines, _ = rotary_angles(long, 1024)
    long_cosines, _ = rotary_angles(long, 1025)
    assert np.allclose(short_cosines[1000], 1.25 * np.cos(1000 * np.array(long.frequencies)))
    assert np.allclose(long_cosines[1000], 1.25 * np.cos(1000 * np.array(long.long_frequencies)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": "linear"}, "rope_scaling is not an object"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"rope_theta": 1}, "rope_theta is 1.0, not greater than 1"),
        ({"rope_theta": "much"}, "rope_theta is 'much'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "rope_scaling.factor is -2"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}}, "high_freq_factor is missing"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "high_freq_factor is not greater",
        ),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor is 2.0, more than 1"),
        ({"partial_rotary_factor": 0.01}, "makes 0 rotary numbers of 32"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor is not a list of 16"),
        ({"rope_scaling": {"rope_type": "longrope", **FACTORS, "short_factor": [0.0] * 16}}, "out of range"),
        ({"rope_scaling": {"rope_type": "longrope", **FACTORS, "long_factor": [-1.0] * 16}}, "a frequency of -"),
    ],
)
def test_wrong(config: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        rope(config)


@pytest.mark.parametrize("parameters", [{"rope_type": "ntk"}, {"type": "mrope", "mrope_section": [1]}])
def test_unknown_scaling_is_refused_by_name(parameters: Mapping[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'(ntk|mrope)' is not supported as RoPE scaling"):
        rope({"rope_scaling": parameters})
