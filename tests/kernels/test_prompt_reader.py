"""Scores of prompts, embeddings and scores of drawn tokens, against the same in float64, however a prompt is fed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from tests.kernels.tiny_model import LLAMA, Sequences, write_random_model

VOCAB_SIZE: int = LLAMA["vocab_size"]
HIDDEN_SIZE: int = LLAMA["hidden_size"]
MakeModel = Callable[..., Sequences]


@pytest.fixture
def make(tmp_path: Path) -> MakeModel:
    folder = write_random_model(tmp_path / "model", LLAMA, "sym_int4")
    return lambda **options: Sequences(folder, **({"compute_type": "int8"} | options))


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB_SIZE, count)]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


def read(model: Sequences, reader: _native.PromptReader, chunks: list[list[int]], slot: int = 0, **others: Any) -> None:
    for chunk in chunks:
        model.model.step(*model.arrays({slot: chunk}), [None], [reader])


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("top", [0, 1, 5, VOCAB_SIZE])
@pytest.mark.parametrize("threads", [1, 3])
def test_prompt_scores_are_log_softmax_of_the_logits(make: MakeModel, top: int, threads: int) -> None:
    ids = tokens(75)
    expected = log_softmax(make().logits({0: ids}))[:-1]
    scorer = _native.PromptScorer(vocab_size=VOCAB_SIZE, prompt=ids, top=top)
    read(make(threads=threads), scorer, [ids])
    logprobs, top_tokens, top_logprobs = scorer.scores()
    assert np.allclose(logprobs, expected[np.arange(74), ids[1:]], atol=2e-6)
    assert top_tokens.shape == top_logprobs.shape == (74, top)
    assert np.allclose(top_logprobs, -np.sort(-expected, axis=1)[:, :top], atol=2e-6)
    assert np.allclose(np.take_along_axis(expected, top_tokens.astype(np.int64), 1), top_logprobs, atol=2e-6)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_what_a_reader_gets_depends_on_no_chunk_and_no_batch(make: MakeModel, pooling: str) -> None:
    ids, other = tokens(60), tokens(90, 1)

    def readers() -> tuple[_native.PromptScorer, _native.PromptEmbedder]:
        return (
            _native.PromptScorer(vocab_size=VOCAB_SIZE, prompt=ids, top=3),
            _native.PromptEmbedder(hidden_size=HIDDEN_SIZE, prompt_tokens=60, pooling=pooling),
        )

    whole = readers()
    for reader in whole:
        read(make(), reader, [ids])
    mixed = readers()
    for reader in mixed:
        model = make(threads=2)
        model.model.step(*model.arrays({0: ids[:1], 1: other[:50]}), [None, None], [reader, None])
        sampler = _native.Sampler(vocab_size=VOCAB_SIZE, prompt=other)
        model.model.step(*model.arrays({1: other[50:], 0: ids[1:41]}), [sampler, None], [None, reader])
        read(model, reader, [ids[41:59], ids[59:]])
    assert same(mixed[0].scores(), whole[0].scores())
    assert np.array_equal(mixed[1].embedding(), whole[1].embedding())


def test_embeddings_are_the_final_hidden_states(make: MakeModel) -> None:
    ids = tokens(30)
    model = make()
    final = model.model.hidden_states(*model.arrays({0: ids}))[-1]
    for pooling, expected in [("mean", final.astype(np.float64).mean(axis=0)), ("last", final[-1])]:
        embedder = _native.PromptEmbedder(hidden_size=HIDDEN_SIZE, prompt_tokens=30, pooling=pooling)
        read(make(threads=2), embedder, [ids[:17], ids[17:]])
        assert np.allclose(embedder.embedding(), expected, rtol=1e-6, atol=1e-7)
        again = make()
        read(again, embedder, [ids])  # preempted: from the beginning
        assert np.allclose(embedder.embedding(), expected, rtol=1e-6, atol=1e-7)


def test_a_reader_beside_a_sampler_changes_no_token(make: MakeModel) -> None:
    ids, other = tokens(50), tokens(9, 2)

    def sampled(readers: list[_native.PromptReader | None]) -> list[int]:
        model = make(threads=2)
        samplers = [_native.Sampler(vocab_size=VOCAB_SIZE, prompt=p, seed=4) for p in (ids, other)]
        first = model.model.step(*model.arrays({0: ids, 1: other}), samplers, readers)
        second = model.model.step(*model.arrays({0: [int(first[0])], 1: [int(first[1])]}), samplers, readers)
        return [*first.tolist(), *second.tolist()]

    scorer = _native.PromptScorer(vocab_size=VOCAB_SIZE, prompt=ids, top=2)
    embedder = _native.PromptEmbedder(hidden_size=HIDDEN_SIZE, prompt_tokens=len(other), pooling="mean")
    assert sampled([scorer, embedder]) == sampled([])
    assert np.isfinite(scorer.scores()[0]).all()
    assert embedder.embedding().any()


def test_readers_that_do_not_fit_are_refused(make: MakeModel) -> None:
    model = make().model
    token, zero, one = (np.array([n], np.int32) for n in (1, 0, 1))
    good = _native.PromptScorer(vocab_size=VOCAB_SIZE, prompt=[1], top=1)
    other = _native.PromptScorer(vocab_size=VOCAB_SIZE + 1, prompt=[1], top=1)
    cases: list[Any] = [[other], [good, good], [1]]
    for readers in cases:
        with pytest.raises(ValueError, match="readers"):
            model.step(token, zero, zero, one, zero, [None], readers)
    for prompt, top in [([], 0), ([VOCAB_SIZE], 0), ([-1], 0), ([1], -1), ([1], VOCAB_SIZE + 1)]:
        with pytest.raises(ValueError, match=r"prompt|top"):
            _native.PromptScorer(vocab_size=VOCAB_SIZE, prompt=prompt, top=top)
    for size, count, pooling in [(0, 1, "mean"), (1, 0, "mean"), (1, 1, "max")]:
        with pytest.raises(ValueError, match=r"hidden_size|prompt_tokens|pooling"):
            _native.PromptEmbedder(hidden_size=size, prompt_tokens=count, pooling=pooling)
