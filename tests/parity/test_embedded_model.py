"""The engine on the embedded model against transformers, which reads the same GGUF by its own code.

The reference is float64. Two float32 implementations of the same function differ from it by rounding only,
so the engine's distance may be at most a small multiple of transformers' own float32 distance: a bound that
is computed, not chosen, and that any real mistake (a permuted head, a wrong epsilon, one scale off) breaks by
orders of magnitude. The multiple allows for the engine's strictly ascending sums where a BLAS sums in blocks.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from tests import sizes
from tests.parity.reference import Reference

pytestmark = pytest.mark.parity

I32 = NDArray[np.int32]

ROUNDING_MULTIPLE = 8.0
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea,",
    "The three primary colours are",
    "In 1969, the first human being to walk on the Moon was",
    "To make a cup of tea, first",
    "The derivative of x squared is",
    "Dear Sir or Madam,\n\nI am writing to",
    "The largest planet in the solar system is",
    "import numpy as np\n\n# Compute the mean of an array\n",
    "人工智能是",
)


class Runner:
    """One sequence on the native model, with fresh pages each time."""

    def __init__(self, folder: Path, compute_type: str, kv_type: str) -> None:
        self.model = _native.Model(
            str(folder),
            threads=1,
            compute_type=compute_type,
            kv_type=kv_type,
            kv_pages=64,
            max_sequences=1,
            max_step_tokens=1024,
            max_context_tokens=2048,
        )
        self.model.page_table[0, :] = np.arange(64, dtype=np.int32)

    @staticmethod
    def _arrays(ids: list[int], start: int) -> tuple[I32, I32, I32, I32, I32]:
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        slot, length, context = (np.array([v], dtype=np.int32) for v in (0, len(ids), start))
        return np.array(ids, dtype=np.int32), positions, slot, length, context

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        return self.model.logits(*self._arrays(ids, 0))

    def hidden_states(self, ids: list[int]) -> NDArray[np.float32]:
        return self.model.hidden_states(*self._arrays(ids, 0))

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        sampler = _native.Sampler(vocab_size=self.model.vocab_size, prompt=prompt, temperature=0.0)
        output: list[int] = []
        new, start = prompt, 0
        while len(output) < count:
            token = int(self.model.step(*self._arrays(new, start), [sampler])[0])
            output.append(token)
            start += len(new)
            new = [token]
        return output


@pytest.fixture(scope="module")
def exact(embedded_model: Path) -> Runner:
    return Runner(embedded_model, "fp32", "fp32")


@pytest.fixture(scope="module")
def fast(embedded_model: Path) -> Runner:
    return Runner(embedded_model, "int8", "int16")


@pytest.fixture(scope="module")
def text_ids(reference: Reference) -> list[int]:
    text = (Path(__file__).parents[1] / "data" / "alice.txt").read_text(encoding="utf-8")
    return reference.encode(text)[: 512 if sizes.FULL else 192]


def log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    sums = np.exp(shifted).sum(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(sums))


def test_hidden_states_of_every_layer(reference: Reference, exact: Runner, text_ids: list[int]) -> None:
    ids = text_ids[: 160 if sizes.FULL else 64]
    truth = reference.hidden_states(ids, "float64")
    rounded = reference.hidden_states(ids, "float32")
    ours = exact.hidden_states(ids)
    assert ours.shape == truth.shape
    assert np.array_equal(ours[0], truth[0].astype(np.float32)), "embedding rows are exact"
    for layer in range(1, len(truth)):
        rounding = np.linalg.norm(rounded[layer] - truth[layer], axis=-1)
        allowed = ROUNDING_MULTIPLE * np.maximum(rounding, np.median(rounding))
        error = np.linalg.norm(ours[layer] - truth[layer], axis=-1)
        worst = int(np.argmax(error / allowed))
        assert error[worst] <= allowed[worst], f"layer {layer}, token {worst}"


def test_logits(reference: Reference, exact: Runner, text_ids: list[int]) -> None:
    ids = text_ids[: 160 if sizes.FULL else 64]
    truth = reference.logits(ids, "float64")
    rounding = np.linalg.norm(reference.logits(ids, "float32") - truth, axis=-1)
    # One token's rounding is luck; what is usual in this text bounds the lucky ones.
    allowed = ROUNDING_MULTIPLE * np.maximum(rounding, np.sqrt(np.mean(rounding**2)))
    error = np.linalg.norm(exact.logits(ids) - truth, axis=-1)
    assert np.all(error <= allowed), float((error / allowed).max())


def test_int8_activations_and_int16_kv_cost_little(reference: Reference, fast: Runner, text_ids: list[int]) -> None:
    truth = log_softmax(reference.logits(text_ids, "float32"))
    ours = log_softmax(fast.logits(text_ids))
    kl = (np.exp(truth) * (truth - ours)).sum(axis=-1)
    following = np.array(text_ids[1:])
    rows = np.arange(len(following))
    nll_increase = float((truth[rows, following] - ours[rows, following]).mean())
    # The engine may cost at most 0.5 % of perplexity, 0.005 nat a token; a fifth of that is kept as the bound.
    assert float(kl.mean()) < 0.001, float(kl.mean())
    assert float(np.percentile(kl, 99)) < 0.01, float(np.percentile(kl, 99))
    assert abs(nll_increase) < 0.005, nll_increase


@pytest.fixture(scope="module")
def exact_text(exact: Runner, text_ids: list[int]) -> NDArray[np.float64]:
    """What the exact path says of the text: log-probabilities [tokens, vocabulary]."""
    return log_softmax(exact.logits(text_ids))


@pytest.mark.parametrize(("kv_type", "bound"), [("int16", 2e-6), ("bf16", 5e-5)])
def test_kv_of_16_bits_costs_next_to_nothing(
    exact_text: NDArray[np.float64], embedded_model: Path, text_ids: list[int], kv_type: str, bound: float
) -> None:
    """Measured: 0.0000007 and 0.000025 (bench.experiments.kv_error)."""
    ours = log_softmax(Runner(embedded_model, "fp32", kv_type).logits(text_ids))
    assert 0 < float((np.exp(exact_text) * (exact_text - ours)).sum(axis=-1).mean()) < bound


def test_int8_kv_costs_little(exact_text: NDArray[np.float64], embedded_model: Path, text_ids: list[int]) -> None:
    """Keys and values alone: everything else is fp32 on both sides."""
    ours = log_softmax(Runner(embedded_model, "fp32", "int8").logits(text_ids))
    kl = (np.exp(exact_text) * (exact_text - ours)).sum(axis=-1)
    # Measured: 0.0007 here. One scale per head costs four times as much, one per tensor five (the same bench).
    assert 0 < float(kl.mean()) < 0.0012, float(kl.mean())
    assert float(np.percentile(kl, 99)) < 0.01, float(np.percentile(kl, 99))


@pytest.mark.parametrize("prompt", PROMPTS if sizes.FULL else PROMPTS[::3])
def test_greedy_text_is_equal(reference: Reference, exact: Runner, prompt: str) -> None:
    ids = reference.encode(prompt)
    ours = exact.greedy(ids, 40)
    assert reference.most_probable([*ids, *ours[:-1]])[-len(ours) :] == ours


def test_the_fast_path_answers_what_the_exact_one_does(reference: Reference, exact: Runner, fast: Runner) -> None:
    """A near tie (0.15 to 0.14) after a chat template: int8 noise alone once turned the answer into nonsense."""
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = reference.encode(prompt)
    expected = reference.encode("The capital of France is Paris.")
    assert exact.greedy(ids, len(expected)) == expected
    assert fast.greedy(ids, len(expected)) == expected
