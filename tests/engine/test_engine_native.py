"""The real model under the real engine: neither other requests, chunks, nor preemption change a request's tokens."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.messages.failures import EngineStoppedError
from app.messages.requests import GenerateRequest, Priority, SamplingParams
from kernels import _native
from tests.engine.test_engine import Receiver
from tests.sizes import FULL

TEXT = Path(__file__).parents[1] / "data" / "alice.txt"
NEW_TOKENS = 40
LENGTHS = (31, 33, 32, 1, 97, 200) if FULL else (31, 33, 1, 97)
# threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages
SHAPES = {
    "alone": (1, 1, 256, 256, 8),
    "batched": (2, 16, 256, 256, 64),
    "chunked": (1, 8, 11, 7, 64),
    "preempted": (1, 8, 64, 64, 8),
}


@pytest.fixture(scope="module")
def requests(embedded_model: Path) -> list[GenerateRequest]:
    """Greedy and seeded, around the borders of pages (32 tokens), with and without penalties."""
    tokenizer = Tokenizer.from_file(str(embedded_model / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids
    made = []
    for number, length in enumerate(LENGTHS):
        prompt = tuple(ids[10 * number : 10 * number + length])
        greedy = SamplingParams(temperature=0.0, repetition_penalty=1.1 if number % 2 else 1.0)
        drawn = SamplingParams(temperature=1.0, top_p=0.95, top_k=100, frequency_penalty=0.2, seed=number)
        made.append(GenerateRequest(f"greedy {length}", prompt, NEW_TOKENS, greedy, tenant=b""))
        made.append(GenerateRequest(f"drawn {length}", prompt, NEW_TOKENS, drawn, tenant=b""))
    return made


@contextmanager
def stopping(model: Path, shape: str, **compute_types: Any) -> Iterator[Engine]:
    threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages = SHAPES[shape]
    runner = NativeRunner(
        str(model),
        threads=threads,
        **compute_types,
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_context_tokens=256,
    )
    engine = Engine(runner, prompt_chunk_tokens=prompt_chunk_tokens, expected_output_tokens=1)
    try:
        yield engine
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0


@pytest.fixture(scope="module")
def alone(embedded_model: Path, requests: list[GenerateRequest]) -> dict[str, tuple[int, ...]]:
    return one_after_the_other(embedded_model, requests)


def one_after_the_other(
    model: Path, requests: list[GenerateRequest], **compute_types: Any
) -> dict[str, tuple[int, ...]]:
    receiver = Receiver()
    with stopping(model, "alone", **compute_types) as engine:
        engine.start()
        for request in requests:
            receiver.submit(engine, request)
            receiver.tokens(request.request_id)
    return {request.request_id: receiver.tokens(request.request_id) for request in requests}


def test_alone_gives_what_the_bare_model_gives(
    embedded_model: Path, requests: list[GenerateRequest], alone: dict[str, tuple[int, ...]]
) -> None:
    model = _native.Model(
        str(embedded_model), threads=1, kv_pages=8, max_sequences=1, max_step_tokens=256, max_context_tokens=256
    )
    model.page_table[0] = np.arange(8)[::-1]
    one = np.array([0], np.int32)
    for request in requests[:4:2]:  # the first greedy ones, without and with a repetition penalty
        sampler = _native.Sampler(
            vocab_size=model.vocab_size,
            prompt=request.prompt_token_ids,
            temperature=0.0,
            repetition_penalty=request.sampling.repetition_penalty,
        )
        answer = alone[request.request_id]
        tokens = [*request.prompt_token_ids, *answer]
        ids, positions = np.array(tokens, np.int32), np.arange(len(tokens), dtype=np.int32)
        logits = model.logits(ids, positions, one, np.array([len(tokens)], np.int32), one)
        # What follows a token does not change its row, so one pass has the row of every step.
        rows = logits[len(request.prompt_token_ids) - 1 : -1]
        assert tuple(sampler.sample(row) for row in rows) == answer


@pytest.mark.parametrize("shape", ["batched", "chunked", "preempted"])
def test_other_requests_chunks_and_preemption_change_no_token(
    shape: str, embedded_model: Path, requests: list[GenerateRequest], alone: dict[str, tuple[int, ...]]
) -> None:
    receiver = Receiver()
    with stopping(embedded_model, shape) as engine:
        for request in requests:
            receiver.submit(engine, request)
        engine.start()
        for request in requests:
            assert receiver.tokens(request.request_id) == alone[request.request_id], request.request_id
        assert (engine.statistics().preemptions > 0) == (shape == "preempted")


@pytest.mark.parametrize("shape", ["batched", "preempted"])
def test_chats_that_come_beside_a_batch_change_no_token(
    shape: str, embedded_model: Path, requests: list[GenerateRequest], alone: dict[str, tuple[int, ...]]
) -> None:
    receiver = Receiver()
    with stopping(embedded_model, shape) as engine:
        engine.start()
        for line in requests[::2]:
            receiver.submit(engine, replace(line, priority=Priority.BATCH))
        first = requests[0].request_id
        for number, chat in enumerate(requests[1::2]):
            receiver.wait_until(lambda had=number: len(receiver.events[first]) > had)  # type: ignore[misc]
            receiver.submit(engine, chat)
        for request in requests:
            assert receiver.tokens(request.request_id) == alone[request.request_id], request.request_id
        assert engine.statistics().begun == len(requests) // 2


def test_an_idle_engine_gives_its_memory_back_and_computes_the_same_afterwards(
    embedded_model: Path, requests: list[GenerateRequest], alone: dict[str, tuple[int, ...]]
) -> None:
    receiver = Receiver()
    with stopping(embedded_model, "batched", weight_memory="mapped") as engine:
        assert engine.release_memory().cancel()  # by one who does not wait for it
        engine.start()
        for again in (False, True):
            for request in requests:
                receiver.submit(engine, replace(request, request_id=f"{request.request_id} {again}"))
            assert not engine.release_memory().result()  # requests are running
            for request in requests:
                assert receiver.tokens(f"{request.request_id} {again}") == alone[request.request_id]
            before_bytes = resident_bytes()
            while not engine.release_memory().result():
                time.sleep(0.001)
            weights_bytes = (embedded_model / "model.safetensors").stat().st_size
            assert resident_bytes() < before_bytes - 0.9 * weights_bytes
            assert engine.statistics().pages_cached == 0
    with pytest.raises(EngineStoppedError):
        engine.release_memory().result()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif("amx_int8" not in _native.available_tiers(), reason="bf16 needs AMX")
@pytest.mark.parametrize("what", ["prompt_compute_type", "compute_type"])
def test_other_requests_change_no_token_in_bf16_either(
    embedded_model: Path, requests: list[GenerateRequest], what: str
) -> None:
    expected = one_after_the_other(embedded_model, requests, **{what: "bf16"})
    for shape in ("batched", "chunked", "preempted"):
        receiver = Receiver()
        with stopping(embedded_model, shape, **{what: "bf16"}) as engine:
            for request in requests:
                receiver.submit(engine, request)
            engine.start()
            for request in requests:
                assert receiver.tokens(request.request_id) == expected[request.request_id], (shape, request.request_id)


def test_outputs_are_different_texts(alone: dict[str, tuple[int, ...]]) -> None:
    assert len(set(alone.values())) == len(alone)
    assert all(len(tokens) == NEW_TOKENS for tokens in alone.values())


def test_an_abort_frees_the_pages_and_leaves_the_others_alone(
    embedded_model: Path, requests: list[GenerateRequest], alone: dict[str, tuple[int, ...]]
) -> None:
    receiver = Receiver()
    leaving, staying = requests[::2], requests[1::2]
    with stopping(embedded_model, "batched") as engine:
        for request in requests:
            receiver.submit(engine, request)
        engine.start()
        for request in leaving:
            engine.abort(request.request_id)
        for request in staying:
            assert receiver.tokens(request.request_id) == alone[request.request_id]
        assert not any(receiver.ended(request.request_id) for request in leaving)
