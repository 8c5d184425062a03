"""A native model of Gated DeltaNet, convolutions and attention under the engine: the same tokens whatever it does."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner, kv_pages_within
from app.engine.scheduling.limits import least_state_pages
from app.engine.speculative.drafter import NgramDrafter
from app.messages.requests import ContrastiveParams, GenerateRequest, Priority
from quant.families.description import Attention, Decoder, DeltaNet, Layer, Mlp, Rope, ShortConv
from tests import sizes
from tests.engine.native_runs import (
    GREEDY,
    Outputs,
    check_second_turn,
    first_turn,
    interrupted,
    made_text,
    outputs,
    outputs_one_by_one,
    requests_of_lengths,
)
from tests.engine.test_engine import assert_no_state_is_held
from tests.kernels.tiny_model import F32, described_tensors, write_described

CONTEXT = 1024
ROPE = Rope(32, tuple(10000 ** (-i / 16) for i in range(16)))
FULL = Attention(32**-0.5, output_gate=True)
DELTA = Layer(delta=DeltaNet(key_heads=2, value_heads=4, key_dim=32, value_dim=32), mlp=Mlp(96))
CONV = Layer(conv=ShortConv(taps=4, bias=True), mlp=Mlp(96))
DECODER = Decoder(
    vocab_size=96, hidden_size=64, max_positions=2048, heads=4, kv_heads=2, head_dim=32, ropes=(ROPE,),
    kinds=(DELTA, Layer(FULL, mlp=Mlp(96)), Layer(replace(FULL, window=40), mlp=Mlp(96)), CONV),
    layers=(0, 1, 0, 3, 0, 2, 3),
)  # fmt: skip
# threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages, state pages beyond those that must be
SHAPES = {
    "batched": (2, 16, 256, 256, 400, 20),
    "chunked": (1, 8, 43, 35, 400, 20),
    "tight": (2, 8, 128, 100, 400, 0),
    "preempted": (1, 8, 64, 64, 30, 4),
    "guessed": (1, 4, 80, 64, 400, 6),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_described(tmp_path_factory.mktemp("states") / "model", DECODER, {}, tensors_with(decay=0.01))


def tensors_with(decay: float) -> dict[str, F32]:
    """Random ones, with states that lose about `decay` of themselves in each token."""
    tensors = described_tensors(DECODER)
    return {name: values * decay if name.endswith("delta.decay") else values for name, values in tensors.items()}


@contextmanager
def running(model: Path, shape: str, **options: Any) -> Iterator[Engine]:
    threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages, more = SHAPES[shape]
    runner = NativeRunner(
        str(model),
        threads=threads,
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_context_tokens=CONTEXT,
        page_groups=True,
        state_pages=least_state_pages(max_sequences) + more,
    )
    assert runner.state_pages == least_state_pages(max_sequences) + more
    assert sorted(runner.group_windows) == [0, 40]
    assert len(runner.page_tables) == 3
    guesses = 40 if shape == "guessed" else 0
    engine = Engine(
        runner, prompt_chunk_tokens=prompt_chunk_tokens, expected_output_tokens=1, guess_tokens=guesses, **options
    )
    if engine._speculation is not None:
        engine._speculation._paying = lambda chances, rows, spent_s=None: len(chances)  # type: ignore[method-assign]
    try:
        yield engine
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0
    assert_no_state_is_held(engine)


def made_requests() -> list[GenerateRequest]:
    text = made_text(140)
    repeated = GenerateRequest("repeated", tuple(text[:3]) * 20, 120, GREEDY, tenant=b"")
    search = ContrastiveParams(3, 0.6)
    contrastive = GenerateRequest("contrastive", tuple(text[50:110]), 40, search=search, tenant=b"")
    return [*requests_of_lengths((1, 31, 32, 33, 71, 160, 300, 600)), repeated, contrastive]


@pytest.fixture(scope="module")
def expected(model: Path) -> Outputs:
    """Without a cache, one after the other."""
    with running(model, "batched", prefix_cache=False) as engine:
        return outputs_one_by_one(engine, made_requests())


@pytest.mark.parametrize("shape", ["chunked", "guessed"])
def test_an_interrupted_step_is_computed_again(shape: str, model: Path, expected: Outputs) -> None:
    requests = [replace(request, priority=Priority.BATCH) for request in made_requests()]
    with running(model, shape) as engine, interrupted(engine):
        assert outputs(engine, requests) == expected
        assert engine.statistics().interruptions > 0


@pytest.mark.parametrize(("shape", "prefix_cache"), sizes.some([*SHAPES], [True, False]))
def test_nothing_that_the_engine_does_changes_a_token(
    shape: str, prefix_cache: bool, model: Path, expected: Outputs
) -> None:
    assert len(set(expected.values())) == len(expected)
    requests = made_requests()
    with running(model, shape, prefix_cache=prefix_cache) as engine:
        assert outputs(engine, requests) == expected
        assert outputs(engine, requests[::-1]) == expected, "from the cache, in another order"
        counts = engine.statistics()
        assert (counts.preemptions > 0) == (shape == "preempted")
        assert (counts.cached_tokens > 0) == prefix_cache
        assert (counts.drafted_tokens > 0) == (shape == "guessed")


@pytest.mark.parametrize("behind", range(60, 75) if sizes.FULL else (60, 63, 64, 65, 74))
def test_a_second_turn_finds_the_first_wherever_it_ended(behind: int, model: Path) -> None:
    check_second_turn(behind, running(model, "batched"), running(model, "batched", prefix_cache=False))


@pytest.mark.parametrize("behind", range(60, 75) if sizes.FULL else (63, 64, 65))
def test_a_second_turn_finds_one_that_ended_among_guesses(
    behind: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which every fifth is wrong."""
    with running(model, "batched") as engine:
        first = first_turn(80)
        text = [*first.prompt_token_ids, *outputs(engine, [first])["first"]]
    text[54::5] = [(token + 1) % 96 for token in text[54::5]]
    monkeypatch.setattr(NgramDrafter, "look_up", lambda self, most: text[len(self._tokens) :][:most])
    monkeypatch.setattr(NgramDrafter, "chances", lambda _: [0.9] * len(text))
    monkeypatch.setattr(NgramDrafter, "learn", lambda *_: None)
    with running(model, "guessed") as engine:
        check_second_turn(behind, nullcontext(engine), running(model, "batched", prefix_cache=False))
        assert 8 < engine.statistics().accepted_tokens < engine.statistics().drafted_tokens


def test_a_text_depends_on_its_states(model: Path, tmp_path: Path) -> None:
    """The same weights, but states that forget at once, make other texts."""
    forgetful = write_described(tmp_path / "model", DECODER, {}, tensors_with(decay=100))
    request = made_requests()[6]
    texts = []
    for folder in (model, forgetful):
        with running(folder, "batched") as engine:
            texts.append(outputs(engine, [request])[request.request_id])
    assert texts[0] != texts[1]


def test_a_model_without_any_attention_is_refused(tmp_path: Path) -> None:
    decoder = replace(DECODER, kinds=(DELTA,), layers=(0, 0))
    folder = str(write_described(tmp_path / "model", decoder, {}, described_tensors(decoder)))
    with pytest.raises(ValueError, match="no layer of this model has attention"):
        kv_pages_within(folder, "fp32", 1 << 30, grouped_context_tokens=CONTEXT)


def test_a_runner_has_the_state_pages_that_its_sequences_need(model: Path) -> None:
    runner = NativeRunner(
        str(model), threads=1, kv_pages=4, max_sequences=3, max_step_tokens=8, max_context_tokens=64, page_groups=False
    )
    assert (runner.state_pages, list(runner.group_windows)) == (8, [0])
    assert len(runner.page_tables) == 2
