"""The library's generate on the embedded model: transformers' own where it is deterministic, else the papers'."""

from pathlib import Path
from typing import Any

import pytest

from quant import AutoModelForCausalLM
from tests.parity.reference import Reference
from tests.parity.search_definitions import contrastive, diverse_beams
from tests.sizes import some

pytestmark = pytest.mark.parity

NEW_TOKENS = 12
ENDS = [2, 28, 30]
"""The end token, and those of " ." and ".": so that texts do end."""


@pytest.fixture(scope="module")
def model(embedded_model: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(
        embedded_model, threads=1, context_tokens=256, compute_type="fp32", kv_type="fp32"
    )


@pytest.mark.parametrize(
    ("options", "prompt"),
    some(
        [
            {},
            {"use_cache": False},
            {"repetition_penalty": 1.3},
            {"num_beams": 4, "num_return_sequences": 4},
            {"num_beams": 5, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": True},
            {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never"},
        ],
        ["The capital of France is", "Once upon a time, in a small village by the sea,"],
    ),
    ids=str,
)
def test_what_is_deterministic_is_transformers(
    reference: Reference, model: AutoModelForCausalLM, prompt: str, options: dict[str, Any]
) -> None:
    ids = reference.encode(prompt)
    asked = {"max_new_tokens": NEW_TOKENS, "eos_token_id": ENDS, "pad_token_id": 2, **options}
    assert [row[len(ids) :] for row in model.generate(ids, **asked)] == reference.beams(ids, **asked)


def test_diverse_beams_are_the_papers(reference: Reference, model: AutoModelForCausalLM) -> None:
    ids = reference.encode("The three primary colours are")
    options: dict[str, Any] = {
        "num_beams": 4,
        "num_beam_groups": 2,
        "diversity_penalty": 0.8,
        "num_return_sequences": 4,
    }
    rows = model.generate(ids, max_new_tokens=7, eos_token_id=[], **options)
    assert [row[len(ids) :] for row in rows] == diverse_beams(reference.predict, ids, 7, 4, 2, 0.8)


def test_contrastive_search_is_the_papers(reference: Reference, model: AutoModelForCausalLM) -> None:
    ids = reference.encode("The largest planet in the solar system is")
    (row,) = model.generate(ids, penalty_alpha=0.6, top_k=4, max_new_tokens=8, eos_token_id=[])
    assert row[len(ids) :] == contrastive(reference.predict, ids, 8, 4, 0.6)
