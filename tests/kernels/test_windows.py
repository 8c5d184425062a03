"""Models whose layers attend by rules of their own: against NumPy, and whatever shares the step."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from quant.families.description import Attention, Decoder, Layer, Mlp
from tests.kernels.paged_attention import Rules
from tests.kernels.tiny_model import F32, Sequences, described_tensors, write_described
from tests.sizes import some

HIDDEN, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 6, 2, 32
SLOPES = tuple(2.0**-power for power in range(1, HEADS + 1))
PLAIN = Attention(HEAD_DIM**-0.5, rope=None)
ALL = replace(PLAIN, softcap=4.0, slopes=SLOPES, sinks=True)
RULES: Mapping[str, Attention] = {
    "window": replace(PLAIN, window=9),
    "window of a page": replace(PLAIN, window=32),
    "soft cap": replace(PLAIN, softcap=0.7),
    "ALiBi": replace(PLAIN, slopes=SLOPES),
    "sinks": replace(PLAIN, sinks=True),
    "all": replace(ALL, window=17),
}


def decoder_of(*kinds: Attention, layers: tuple[int, ...] = ()) -> Decoder:
    return Decoder(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, max_positions=2048, heads=HEADS, kv_heads=KV_HEADS,
        head_dim=HEAD_DIM, kinds=tuple(Layer(kind, mlp=Mlp(96)) for kind in kinds),
        layers=layers or tuple(range(len(kinds))),
    )  # fmt: skip


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


def random_model(folder: Path, decoder: Decoder) -> Path:
    return write_described(folder, decoder, {}, described_tensors(decoder))


def attention_of(attention: Attention, tensors: Mapping[str, F32], x: F32) -> tuple[NDArray[np.float64], float]:
    """What layer 0's attention adds to rows x, in double precision; and the largest score."""

    def weight(name: str) -> NDArray[np.float64]:
        return tensors[f"model.layers.0.{name}"].astype(np.float64)

    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * weight("input_layernorm.weight")
    q = (normed @ weight("self_attn.q_proj.weight").T).reshape(-1, HEADS, HEAD_DIM)
    k, v = ((normed @ weight(f"self_attn.{n}_proj.weight").T).reshape(-1, KV_HEADS, HEAD_DIM) for n in "kv")
    heads, largest = np.zeros_like(q), 0.0
    for i, head in np.ndindex(len(x), HEADS):
        kv_head, seen = head // (HEADS // KV_HEADS), np.array(Rules(window=attention.window).seen(i))
        scores = k[seen, kv_head] @ q[i, head] * attention.scale
        if attention.softcap:
            scores = attention.softcap * np.tanh(scores / attention.softcap)
        if attention.slopes is not None:
            scores = scores - attention.slopes[head] * (i - seen)
        largest = max(largest, np.abs(scores).max())
        weights = np.exp(scores)
        sink = np.exp(weight("self_attn.sinks")[head]) if attention.sinks else 0.0
        heads[i, head] = weights @ v[seen, kv_head] / (weights.sum() + sink)
    return heads.reshape(len(x), -1) @ weight("self_attn.o_proj.weight").T, largest


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_layer_against_numpy(name: str, threads: int, tmp_path: Path) -> None:
    decoder = decoder_of(RULES[name])
    tensors = described_tensors(decoder, seed=3)
    tensors["model.layers.0.mlp.down_proj.weight"] *= 0
    model = Sequences(write_described(tmp_path / "model", decoder, {}, tensors), threads=threads)
    states = model.model.hidden_states(*model.arrays({0: tokens(80)}))
    expected, largest = attention_of(RULES[name], tensors, states[0])
    # fp32: queries and keys are sums of HIDDEN terms and scores of HEAD_DIM, which counts by the score's size; then
    # sums over HIDDEN, the keys and all heads, a few roundings each.
    terms = (2 * HIDDEN + HEAD_DIM) * largest + HIDDEN + 80 + HEADS * HEAD_DIM
    bound = 2 * terms * np.finfo(np.float32).eps * np.abs(expected).max()
    assert np.abs(states[1] - states[0] - expected).max() < bound


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("window", [1, 5, 33])
def test_windows_bound_what_a_token_can_know(window: int, threads: int, tmp_path: Path) -> None:
    """Through each layer a token hears from window - 1 tokens before it."""
    folder = random_model(tmp_path / "model", decoder_of(replace(PLAIN, window=window), layers=(0, 0, 0)))
    ids, reach = tokens(150), 3 * (window - 1)
    before, after = (
        Sequences(folder, threads=threads).logits({0: [first, *ids[1:]]}) for first in (ids[0], ids[0] ^ 1)
    )
    same = (before == after).all(1)
    assert same[reach + 1 :].all()
    assert not same[: reach + 1].any()


def test_a_window_longer_than_the_context_is_none(tmp_path: Path) -> None:
    ids = tokens(70)
    logits = [
        Sequences(random_model(tmp_path / str(window), decoder_of(replace(ALL, window=window)))).logits({0: ids})
        for window in (0, 70, 100000, 69)
    ]
    assert np.array_equal(logits[1], logits[0])
    assert np.array_equal(logits[2], logits[0])
    assert np.array_equal(logits[3][:69], logits[0][:69])
    assert not np.array_equal(logits[3], logits[0])


@pytest.mark.parametrize(("kv_type", "tier"), some(["fp32", "bf16", "int16", "int8"], _native.available_tiers()))
def test_rows_do_not_depend_on_their_step(
    tier: str, kv_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers with and without windows; in chunks, one by one, on several threads and beside others."""
    monkeypatch.setenv("REDOUBT_ISA", tier)
    kinds = (replace(ALL, window=20), PLAIN, replace(PLAIN, window=64, sinks=True))
    folder = random_model(tmp_path / "model", decoder_of(*kinds, layers=(0, 1, 0, 2)))

    def fresh(threads: int = 1) -> Sequences:
        return Sequences(folder, kv_type=kv_type, threads=threads)

    ids = tokens(110)
    whole = fresh().logits({0: ids})
    assert np.isfinite(whole).all()
    chunked = fresh(threads=2)
    parts = [chunked.logits({2: ids[begin:end]}) for begin, end in [(0, 3), (3, 70), (70, 71), (71, 110)]]
    assert np.array_equal(np.concatenate(parts), whole)
    single = fresh(threads=5)
    single.logits({1: ids[:90]})
    assert np.array_equal(np.concatenate([single.logits({1: [token]}) for token in ids[90:]]), whole[90:])
    beside = fresh(threads=3)
    beside.logits({3: tokens(50, 1)})
    assert np.array_equal(beside.logits({3: tokens(60, 2), 0: ids, 1: tokens(5, 3)})[60:170], whole)


@pytest.mark.parametrize("window", [0, 40, 513, 700])
def test_long_contexts_are_split_over_threads_without_a_trace(window: int, tmp_path: Path) -> None:
    ids = tokens(1560)
    folder = random_model(tmp_path / "model", decoder_of(replace(ALL, window=window), PLAIN, layers=(0, 1)))
    alone, split = (Sequences(folder, sequences=1, context=1600, threads=threads) for threads in (1, 3))
    assert np.array_equal(split.logits({0: ids[:1100]}), alone.logits({0: ids[:1100]}))
    for begin, end in ((1100, 1101), (1101, 1530), *((i, i + 1) for i in range(1530, 1560))):
        assert np.array_equal(split.logits({0: ids[begin:end]}), alone.logits({0: ids[begin:end]}))


@pytest.mark.parametrize("window", [6, 600])
def test_the_last_layer_has_a_plan_of_its_own(window: int, tmp_path: Path) -> None:
    """A step that only samples computes one row of the last layer, whose window no other layer has."""
    ids = tokens(700)
    folder = random_model(tmp_path / "model", decoder_of(PLAIN, replace(ALL, window=window)))
    expected = Sequences(folder, context=800).logits({0: ids})[-1].argmax()
    for threads in (1, 3):
        model = Sequences(folder, context=800, threads=threads)
        sampler = _native.Sampler(vocab_size=VOCABULARY, prompt=(), temperature=0.0)
        assert model.model.step(*model.arrays({0: ids}), [sampler]).tolist() == [expected]
