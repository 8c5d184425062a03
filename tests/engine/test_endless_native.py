"""Endless outputs on the real engine, against a float64 model that defines what they should be.

The definition: a token's key (before rotation) and value are computed once, from what the token saw when it came, and
are kept as long as the token is in the window. A query sees the window's tokens at positions that follow each
other without a gap. The reference keeps keys unrotated and rotates them anew for every query by their place in the
window; the engine leaves them where they are and turns the first pages' only, by as much as has been dropped.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.messages.requests import ContextWindow, GenerateRequest, SamplingParams
from quant.families.registry import describe
from tests.engine.test_engine import Receiver
from tests.kernels.tiny_model import F32, LLAMA, random_tensors, write_described, write_model
from tests.sizes import some

F64 = NDArray[np.float64]
WINDOW = ContextWindow(tokens=128, keep_tokens=32, discard_tokens=32)
NEW_TOKENS = 400
PROMPTS = [tuple(int(t) for t in np.random.default_rng(seed).integers(0, 199, 20 + 30 * seed)) for seed in range(4)]


SLOPES = (0.5, 0.25, 0.125, 0.0625)
"""Of ALiBi, by head."""


class Reference:
    """A Llama in float64, one token at a time, over whatever keys and values it has kept; with RoPE or with ALiBi."""

    def __init__(self, tensors: dict[str, F32], positions: str) -> None:
        self.rotates = positions == "RoPE"
        self.weights = {name: values.astype(np.float64) for name, values in tensors.items()}
        self.heads, self.kv_heads, self.layers = 4, 2, 2
        self.head_dim = 16
        self.keys: list[list[F64]] = [[] for _ in range(self.layers)]
        self.values: list[list[F64]] = [[] for _ in range(self.layers)]

    def drop(self, begin: int, end: int) -> None:
        for kept in (*self.keys, *self.values):
            del kept[begin:end]

    def logits(self, token: int) -> F64:
        x = self.weights["model.embed_tokens.weight"][token]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            normed = self._norm(x, name + "input_layernorm.weight")
            q, k, v = (self._linear(normed, f"{name}self_attn.{part}_proj.weight") for part in "qkv")
            self.keys[layer].append(k.reshape(self.kv_heads, -1))
            self.values[layer].append(v.reshape(self.kv_heads, -1))
            x = x + self._linear(self._attend(layer, q.reshape(self.heads, -1)), name + "self_attn.o_proj.weight")
            normed = self._norm(x, name + "post_attention_layernorm.weight")
            gate = self._linear(normed, name + "mlp.gate_proj.weight")
            up = self._linear(normed, name + "mlp.up_proj.weight")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, name + "mlp.down_proj.weight")
        return self._linear(self._norm(x, "model.norm.weight"), "lm_head.weight")

    def _attend(self, layer: int, queries: F64) -> F64:
        keys, values = np.array(self.keys[layer]), np.array(self.values[layer])
        places = np.arange(len(keys))
        out = []
        for head, query in enumerate(queries):
            kv_head = head * self.kv_heads // self.heads
            scores = keys[:, kv_head] @ query - SLOPES[head] * np.sqrt(self.head_dim) * (places[-1] - places)
            if self.rotates:
                scores = self._rotate(keys[:, kv_head], places) @ self._rotate(query[None], places[-1:])[0]
            scores = scores / np.sqrt(self.head_dim)
            weights = np.exp(scores - scores.max())
            out.append(weights @ values[:, kv_head] / weights.sum())
        return np.concatenate(out)

    def _rotate(self, vectors: F64, positions: NDArray[np.int64]) -> F64:
        half = self.head_dim // 2
        angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
        first, second = vectors[:, :half], vectors[:, half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)

    def _linear(self, x: F64, name: str) -> F64:
        return self.weights[name] @ x

    def _norm(self, x: F64, name: str) -> F64:
        normed: F64 = x / np.sqrt(np.mean(x * x) + 1e-6) * self.weights[name]
        return normed


@pytest.fixture(scope="module")
def tensors() -> dict[str, F32]:
    return random_tensors(LLAMA)


@pytest.fixture(scope="module")
def folder(tensors: dict[str, F32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"), LLAMA, tensors, "fp32")


@pytest.fixture(scope="module")
def alibi_folder(tensors: dict[str, F32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, but scores fall with the distance and nothing is rotated."""
    decoder = describe(LLAMA, "config.json")
    kind = decoder.kinds[0]
    assert kind.attention is not None
    attention = replace(kind.attention, rope=None, slopes=SLOPES)
    decoder = replace(decoder, ropes=(), kinds=(replace(kind, attention=attention),))
    return write_described(tmp_path_factory.mktemp("alibi"), decoder, LLAMA, tensors, "fp32")


def run(
    folder: Path, requests: list[GenerateRequest], *, kv_pages: int = 40, guess_tokens: int = 0, **options: Any
) -> list[tuple[int, ...]]:
    values: dict[str, Any] = {"threads": 1, "compute_type": "fp32", "kv_type": "fp32", "max_step_tokens": 64}
    runner = NativeRunner(str(folder), kv_pages=kv_pages, max_sequences=4, max_context_tokens=128, **(values | options))
    engine, receiver = Engine(runner, guess_tokens=guess_tokens), Receiver()
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    outputs = [receiver.tokens(request.request_id) for request in requests]
    engine.stop()
    assert engine.statistics().pages_used == 0
    if guess_tokens:
        assert engine.statistics().accepted_tokens > 0
    return outputs


def ask(number: int, *, temperature: float = 0.0) -> GenerateRequest:
    sampling = SamplingParams(temperature=temperature, seed=number)
    return GenerateRequest(f"{number}", PROMPTS[number], NEW_TOKENS, sampling, window=WINDOW, tenant=b"")


@pytest.mark.parametrize("positions", ["RoPE", "ALiBi"])
def test_an_endless_output_is_what_float64_makes_of_the_same_window(
    positions: str, tensors: dict[str, F32], folder: Path, alibi_folder: Path
) -> None:
    (output,) = run(folder if positions == "RoPE" else alibi_folder, [ask(0)])
    reference = Reference(tensors, positions)
    for token in PROMPTS[0]:
        logits = reference.logits(token)
    known = len(PROMPTS[0])
    closest = np.inf
    for index, token in enumerate(output):
        best, second = np.sort(logits)[::-1][:2]
        closest = min(closest, best - second)
        assert token == int(logits.argmax()), f"token {index}, ahead by {best - second}"
        if known == WINDOW.tokens:
            reference.drop(WINDOW.keep_tokens, WINDOW.keep_tokens + WINDOW.discard_tokens)
            known -= WINDOW.discard_tokens
        logits = reference.logits(token)
        known += 1
    assert closest > 1e-5, "the test decides nothing where two tokens are equally likely"
    assert len(set(output)) > 20, "a text that repeats itself shows little"


@pytest.mark.parametrize(("kv_type", "temperature"), some(["fp32", "int16", "bf16", "int8"], [0.0, 1.0]))
@pytest.mark.parametrize("positions", ["RoPE", "ALiBi"])
def test_neither_other_requests_nor_guesses_nor_chunks_change_a_token(
    positions: str, folder: Path, alibi_folder: Path, kv_type: str, temperature: float
) -> None:
    folder = folder if positions == "RoPE" else alibi_folder
    requests = [ask(number, temperature=temperature) for number in range(4)]
    alone = [run(folder, [request], kv_type=kv_type)[0] for request in requests]
    options: dict[str, Any] = {"kv_type": kv_type, "max_step_tokens": 23, "threads": 2}
    assert run(folder, requests, **options) == alone
    if temperature == 0:
        assert run(folder, requests, guess_tokens=8, **options) == alone
