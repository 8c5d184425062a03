"""A native model with windows under the engine: with page groups it gives the tokens that it gives without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner, kv_pages_within
from app.messages.requests import GenerateRequest
from quant.families.description import Attention, Decoder, Experts, Layer, Mlp, Rope
from tests import sizes
from tests.engine.native_runs import Outputs, check_second_turn, outputs, outputs_one_by_one, requests_of_lengths
from tests.kernels.tiny_model import described_tensors, write_described

CONTEXT = 512
ROPE = Rope(32, tuple(10000 ** (-i / 16) for i in range(16)))
FULL = Attention(32**-0.5)
KINDS = (replace(FULL, window=40), FULL, replace(FULL, window=70, sinks=True))
DECODER = Decoder(
    vocab_size=96, hidden_size=64, max_positions=2048, heads=4, kv_heads=2, head_dim=32, ropes=(ROPE,),
    kinds=tuple(Layer(kind, mlp=Mlp(96)) for kind in KINDS), layers=(0, 0, 1, 2),
)  # fmt: skip
LOCAL = Attention(1.0, window=40, qk_norm="head", value_norm=True)
MIXED = Layer(
    LOCAL, Mlp(96, "gelu_tanh"), Experts(6, 2, 64, "gelu_tanh", renormalize=True, router_norm=True, expert_scale=True),
    attention_output_norm=True, mlp_output_norm=True, scaled=True,
)  # fmt: skip
GEMMA4 = replace(
    DECODER, layers=(0, 0, 1, 0, 1),
    kinds=(MIXED, replace(MIXED, attention=replace(LOCAL, window=0, kv_heads=1, value_is_key=True))),
)  # fmt: skip
MODELS = {"windows": (DECODER, [0, 70, 40, 40]), "heads of two shapes": (GEMMA4, [0, 40, 40, 40])}
# threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages
SHAPES = {
    "batched": (2, 16, 256, 256, 400),
    "chunked": (1, 8, 43, 35, 400),
    "preempted": (1, 8, 64, 64, 44),
    "guessed": (1, 4, 64, 64, 400),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    decoder = MODELS[request.param][0]
    folder = tmp_path_factory.mktemp("groups") / request.param
    return write_described(folder, decoder, {}, described_tensors(decoder))


@contextmanager
def running(model: Path, shape: str, *, page_groups: bool = True, **options: Any) -> Iterator[Engine]:
    threads, max_sequences, max_step_tokens, prompt_chunk_tokens, kv_pages = SHAPES[shape]
    runner = NativeRunner(
        str(model),
        threads=threads,
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_context_tokens=CONTEXT,
        page_groups=page_groups,
    )
    assert list(runner.group_windows) == (MODELS[model.name][1] if page_groups else [0])
    guesses = 3 if shape == "guessed" else 0
    engine = Engine(
        runner, prompt_chunk_tokens=prompt_chunk_tokens, expected_output_tokens=1, guess_tokens=guesses, **options
    )
    try:
        yield engine
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0


def made_requests() -> list[GenerateRequest]:
    return requests_of_lengths((1, 31, 33, 65, 71, 160, 224, 300))


@pytest.fixture(scope="module")
def expected(model: Path) -> Outputs:
    """Without page groups, without a cache, one after the other."""
    with running(model, "batched", page_groups=False, prefix_cache=False) as engine:
        return outputs_one_by_one(engine, made_requests())


@pytest.mark.parametrize(("shape", "prefix_cache"), sizes.some([*SHAPES], [True, False]))
def test_page_groups_change_no_token(shape: str, prefix_cache: bool, model: Path, expected: Outputs) -> None:
    assert len(set(expected.values())) == len(expected)
    requests = made_requests()
    with running(model, shape, prefix_cache=prefix_cache) as engine:
        assert outputs(engine, requests) == expected
        assert outputs(engine, requests[::-1]) == expected, "from the cache, in another order"
        counts = engine.statistics()
        assert (counts.preemptions > 0) == (shape == "preempted")
        assert (counts.cached_tokens > 0) == prefix_cache


@pytest.mark.parametrize("behind", range(60, 75) if sizes.FULL else (60, 63, 64, 65, 74))
def test_a_second_turn_finds_the_first_wherever_it_ended(behind: int, model: Path) -> None:
    uncached = running(model, "batched", page_groups=False, prefix_cache=False)
    check_second_turn(behind, running(model, "batched"), uncached)


def test_a_budget_has_more_and_smaller_pages(tmp_path: Path) -> None:
    folder = str(write_described(tmp_path / "model", DECODER, {}, described_tensors(DECODER)))
    budget = 100 * 4 * 2 * 2 * 32 * 32 * 4
    assert kv_pages_within(folder, "fp32", budget) == 100
    assert kv_pages_within(folder, "fp32", budget, grouped_context_tokens=CONTEXT) == 400
