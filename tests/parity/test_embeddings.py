"""Vectors of the whole way, HTTP to native engine, against transformers' hidden states of the same GGUF."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.engine.stream import AsyncEngine
from app.interface.text.chat_model import ChatModel
from tests.app.service import http_app, openai_client
from tests.parity.reference import Reference
from tests.parity.test_embedded_model import PROMPTS, ROUNDING_MULTIPLE
from tests.streams import lone_stream

pytestmark = pytest.mark.parity


def engine(folder: Path, compute_type: str, kv_type: str) -> Iterator[Engine]:
    runner = NativeRunner(
        str(folder),
        threads=1,
        compute_type=compute_type,
        kv_type=kv_type,
        kv_pages=64,
        max_sequences=4,
        max_step_tokens=64,
        max_context_tokens=512,
    )
    made = Engine(runner, prompt_chunk_tokens=16)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def exact_engine(embedded_model: Path) -> Iterator[Engine]:
    yield from engine(embedded_model, "fp32", "fp32")


@pytest.fixture(scope="module")
def fast_engine(embedded_model: Path) -> Iterator[Engine]:
    yield from engine(embedded_model, "int8", "int16")


async def embedded(engine: Engine, folder: Path, inputs: Any, pooling: str) -> NDArray[np.float32]:
    streams = AsyncEngine(engine)

    client = openai_client(http_app(partial(lone_stream, streams), model=ChatModel.load(folder)))
    answer = await client.embeddings.create(model="tiny", input=inputs, extra_body={"pooling": pooling})
    return np.array([entry.embedding for entry in answer.data], np.float32)


def expected(reference: Reference, ids: list[int], pooling: str, dtype: str) -> NDArray[np.float64]:
    final = reference.hidden_states(ids, dtype)[-1]
    pooled = final.mean(axis=0) if pooling == "mean" else final[-1]
    return np.asarray(pooled / np.linalg.norm(pooled))


@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_vectors_are_transformers_up_to_rounding(
    reference: Reference, exact_engine: Engine, embedded_model: Path, pooling: str
) -> None:
    vectors = await embedded(exact_engine, embedded_model, list(PROMPTS), pooling)
    for text, vector in zip(PROMPTS, vectors, strict=True):
        ids = reference.encode(text)
        truth = expected(reference, ids, pooling, "float64")
        rounding = np.linalg.norm(expected(reference, ids, pooling, "float32") - truth)
        assert np.linalg.norm(vector - truth) <= ROUNDING_MULTIPLE * rounding, text
        assert abs(np.linalg.norm(vector) - 1) < 1e-6


@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_the_default_arithmetic_stays_near(
    reference: Reference, fast_engine: Engine, embedded_model: Path, pooling: str
) -> None:
    """int8 activations and int16 keys: near the truth, and nearer than any other prompt's vector."""
    ids = [reference.encode(text) for text in PROMPTS]
    vectors = await embedded(fast_engine, embedded_model, ids, pooling)
    truths = np.stack([expected(reference, each, pooling, "float64") for each in ids])
    likeness = vectors @ truths.T
    assert (np.diag(likeness) > 0.99).all(), np.diag(likeness)
    assert (likeness.argmax(axis=1) == np.arange(len(PROMPTS))).all()
