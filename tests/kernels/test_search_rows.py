"""Rows of likeliest tokens for searches, and hidden states compared, against NumPy."""

import numpy as np
import pytest

from kernels import _native

VOCAB = 1000


def rows(sampler: _native.Sampler, logits: np.ndarray) -> tuple[list[int], list[float]]:
    sampler.sample(logits)
    _, tokens, values = sampler.take_scores()
    return tokens[0].tolist(), values[0].tolist()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


@pytest.mark.parametrize("penalize_logprobs", [False, True])
def test_rows_are_numpys_before_and_after_penalties(penalize_logprobs: bool) -> None:
    logits = np.random.default_rng(3).normal(scale=3, size=VOCAB).astype(np.float32)
    prompt = [1, 5, 5, 9, int(logits.argmax())]
    sampler = _native.Sampler(
        vocab_size=VOCAB,
        prompt=prompt,
        repetition_penalty=1.7,
        frequency_penalty=0.25,
        logit_bias={7: 4.0},
        min_tokens=2,
        end_tokens=[11, 12],
        candidates=40,
        penalize_logprobs=penalize_logprobs,
    )
    for drawn in ([], [9], [9, 9]):  # a row that is computed again is the same
        for _ in range(2):
            got = rows(sampler, logits)
            values = log_softmax(logits) if penalize_logprobs else logits.astype(np.float64)
            for token in {*prompt, *drawn}:
                values[token] = values[token] / 1.7 if values[token] > 0 else values[token] * 1.7
                values[token] -= 0.25 * drawn.count(token)
            values[7] += 4
            if len(drawn) < 2:
                values[[11, 12]] = -np.inf
            if not penalize_logprobs:
                values = log_softmax(values)
            expected = np.argsort(-values, kind="stable")[:40]
            assert got[0] == expected.tolist()
            np.testing.assert_allclose(got[1], values[expected], rtol=1e-5, atol=1e-5)
        sampler = sampler.after(9)


def test_both_ways_give_the_same_bits_without_penalties() -> None:
    logits = np.random.default_rng(4).normal(scale=3, size=VOCAB).astype(np.float32)
    first, second = (
        _native.Sampler(vocab_size=VOCAB, prompt=[1], candidates=8, penalize_logprobs=way) for way in (False, True)
    )
    assert rows(first, logits) == rows(second, logits)


@pytest.mark.parametrize("candidates", [-1, 1025, VOCAB + 1])
def test_absurd_counts_are_refused(candidates: int) -> None:
    with pytest.raises(ValueError, match="candidates"):
        _native.Sampler(vocab_size=VOCAB, prompt=[1], candidates=candidates)
    with pytest.raises(ValueError, match="after: token 1000"):
        _native.Sampler(vocab_size=VOCAB, prompt=[1], candidates=4).after(VOCAB)
    with pytest.raises(ValueError, match="hidden_size"):
        _native.HiddenHistory(hidden_size=0)
    with pytest.raises(RuntimeError, match="never computed"):
        _native.CandidateReader(_native.HiddenHistory(hidden_size=8)).choose()
