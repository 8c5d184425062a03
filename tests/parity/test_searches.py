"""Searches on the embedded model: transformers' own beams, and the papers' definitions on transformers' numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest, SamplingParams
from tests.engine.searches.test_branches import answers
from tests.engine.test_engine import Receiver
from tests.parity.reference import Reference
from tests.parity.search_definitions import contrastive, diverse_beams
from tests.sizes import some

pytestmark = pytest.mark.parity

NEW_TOKENS = 16
STOPS = [2, 28, 30]
"""The end token, and those of " ." and ".": so that texts do end."""


@pytest.fixture(scope="module")
def engine(embedded_model: Path) -> Iterator[Engine]:
    runner = NativeRunner(
        str(embedded_model),
        threads=1,
        compute_type="fp32",
        kv_type="fp32",
        kv_pages=64,
        max_sequences=16,
        max_step_tokens=64,
        max_context_tokens=256,
    )
    engine = Engine(runner)
    engine.start()
    yield engine
    engine.stop()
    assert engine.statistics().pages_used == 0


def search(
    engine: Engine,
    prompt: list[int],
    params: BeamParams | ContrastiveParams,
    *,
    new_tokens: int = NEW_TOKENS,
    **sampling: Any,
) -> list[list[int]]:
    receiver = Receiver()
    stops = frozenset(STOPS if isinstance(params, BeamParams) and params.groups == 1 else ())
    sampled = SamplingParams(end_token_ids=stops, **sampling)
    receiver.submit(engine, GenerateRequest("a", tuple(prompt), new_tokens, sampled, stops, search=params, tenant=b""))
    return [list(tokens) for tokens, _ in answers(receiver, "a")]


def until_end(tokens: list[int]) -> list[int]:
    return tokens[: next((index for index, token in enumerate(tokens) if token in STOPS), len(tokens))]


@pytest.mark.parametrize(
    ("options", "prompt"),
    some(
        [
            {"num_beams": 4, "num_return_sequences": 4},
            {"num_beams": 5, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": True},
            {"num_beams": 3, "length_penalty": -1.0, "early_stopping": "never"},
            {"num_beams": 3, "num_return_sequences": 3, "repetition_penalty": 1.3, "min_new_tokens": 8},
        ],
        ["The capital of France is", "Once upon a time, in a small village by the sea,"],
    ),
    ids=str,
)
def test_beams_are_transformers(reference: Reference, engine: Engine, prompt: str, options: dict[str, Any]) -> None:
    ids = reference.encode(prompt)
    expected = reference.beams(ids, max_new_tokens=NEW_TOKENS, eos_token_id=STOPS, pad_token_id=2, **options)
    params = BeamParams(
        options["num_beams"],
        options.get("num_return_sequences", 1),
        options.get("length_penalty", 1.0),
        options.get("early_stopping", False),
    )
    sampling = {
        "repetition_penalty": options.get("repetition_penalty", 1.0),
        "min_new_tokens": options.get("min_new_tokens", 0),
    }
    assert search(engine, ids, params, **sampling) == [until_end(row) for row in expected]


def test_diverse_beams_are_the_papers(reference: Reference, engine: Engine) -> None:
    ids = reference.encode("The three primary colours are")
    expected = diverse_beams(reference.predict, ids, 7, 4, 2, 0.8)
    params = BeamParams(4, 4, groups=2, diversity_penalty=0.8)
    assert search(engine, ids, params, new_tokens=7) == expected


@pytest.mark.parametrize(("candidates", "alpha"), [(4, 0.6), (6, 0.9)])
def test_contrastive_search_is_the_papers(reference: Reference, engine: Engine, candidates: int, alpha: float) -> None:
    ids = reference.encode("The largest planet in the solar system is")
    expected = contrastive(reference.predict, ids, 8, candidates, alpha)
    assert search(engine, ids, ContrastiveParams(candidates, alpha), new_tokens=8) == [expected]
