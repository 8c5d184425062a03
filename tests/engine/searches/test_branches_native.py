"""Searches on a native model: neither other requests, nor chunks, nor preemption change an answer or lose a page."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.messages.requests import BeamParams, ContrastiveParams, GenerateRequest, SamplingParams
from tests.engine.searches.test_branches import answers
from tests.engine.test_engine import Receiver
from tests.sizes import FULL

TEXT = Path(__file__).parents[2] / "data" / "alice.txt"
NEW_TOKENS = 24
# threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages
SHAPES = {"alone": (1, 6, 256, 256, 64), "batched": (2, 24, 256, 256, 128), "preempted": (1, 12, 23, 7, 9)}

Answers = dict[str, list[tuple[tuple[int, ...], str | None]]]


@pytest.fixture(scope="module")
def requests(engine_model: Path) -> list[GenerateRequest]:
    """Prompts that end inside a page and at its border (32 tokens), and plain requests between them."""
    ids = Tokenizer.from_file(str(engine_model / "tokenizer.json")).encode(TEXT.read_text()).ids
    greedy, drawn = SamplingParams(temperature=0.0), SamplingParams(seed=1)
    penalized = SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={28: -2.0})
    return [
        GenerateRequest(
            "beams", tuple(ids[:60]), NEW_TOKENS, greedy, frozenset([2, 30]), search=BeamParams(4, 4), tenant=b""
        ),
        GenerateRequest("plain", tuple(ids[5:70]), 80, drawn, tenant=b""),
        GenerateRequest(
            "contrastive", tuple(ids[20:84]), NEW_TOKENS, greedy, search=ContrastiveParams(5, 0.6), tenant=b""
        ),
        GenerateRequest("penalized", tuple(ids[90:121]), NEW_TOKENS, penalized, search=BeamParams(3, 2), tenant=b""),
        GenerateRequest("also plain", tuple(ids[:107]), 60, drawn, tenant=b""),
        GenerateRequest(
            "diverse",
            tuple(ids[60:100]),
            NEW_TOKENS,
            search=BeamParams(6, 6, groups=3, diversity_penalty=1.0, length_penalty=0.5),
            tenant=b"",
        ),
        GenerateRequest(
            "unlike", tuple(ids[90:121]), NEW_TOKENS, penalized, search=ContrastiveParams(3, 0.4), tenant=b""
        ),
    ]


def run(model: Path, requests: list[GenerateRequest], shape: str, kv_type: str) -> tuple[Answers, int]:
    """All answers, and how often a sequence was preempted."""
    threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages = SHAPES[shape]
    runner = NativeRunner(
        str(model),
        threads=threads,
        kv_type=kv_type,
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_context_tokens=256,
    )
    engine, receiver = Engine(runner, prompt_chunk_tokens=prompt_chunk_tokens, expected_output_tokens=1), Receiver()
    try:
        if shape == "alone":
            engine.start()
        for request in requests:
            receiver.submit(engine, request)
            if shape == "alone":
                answers(receiver, request.request_id)
        if shape != "alone":
            engine.start()  # only now: otherwise a busy machine would run them one after the other
        found = {request.request_id: answers(receiver, request.request_id) for request in requests}
    finally:
        engine.stop()
    counts = engine.statistics()
    assert (counts.pages_used, counts.pages_free) == (0, kv_pages)
    return found, counts.preemptions


@pytest.mark.parametrize("kv_type", ["int16", "bf16", "int8"] if FULL else ["int16"])
def test_other_requests_chunks_and_preemption_change_no_answer(
    kv_type: str, engine_model: Path, requests: list[GenerateRequest]
) -> None:
    alone, _ = run(engine_model, requests, "alone", kv_type)
    assert len({tokens for each in alone.values() for tokens, _ in each}) == sum(map(len, alone.values()))
    for shape in ("batched", "preempted"):
        found, preemptions = run(engine_model, requests, shape, kv_type)
        assert found == alone, shape
        assert (preemptions > 0) == (shape == "preempted")
