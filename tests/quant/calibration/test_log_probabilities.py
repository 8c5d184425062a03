"""Log-softmax and KL divergence against fp64 formulas."""

import numpy as np

from quant.calibration.log_probabilities import divergence, log_probabilities


def log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def test_log_probabilities() -> None:
    generator = np.random.default_rng(0)
    logits = (generator.standard_normal((70, 999)) * 5 + 1000).astype(np.float32)
    targets = generator.integers(0, 999, 70)
    expected = log_softmax(logits)[np.arange(70), targets]
    assert np.allclose(log_probabilities(logits, targets), expected, rtol=1e-5)


def test_divergence() -> None:
    generator = np.random.default_rng(1)
    baseline = (generator.standard_normal((70, 500)) * 3).astype(np.float32)
    logits = baseline + generator.standard_normal((70, 500)).astype(np.float32)
    base, ours = log_softmax(baseline), log_softmax(logits)
    parts = divergence(baseline, logits)
    assert np.allclose(parts.kl, (np.exp(base) * (base - ours)).sum(-1), rtol=1e-4)
    assert np.array_equal(parts.agree, base.argmax(-1) == ours.argmax(-1))


def test_equal_logits_diverge_by_nothing_at_all() -> None:
    logits = np.random.default_rng(2).standard_normal((40, 300)).astype(np.float32)
    parts = divergence(logits, logits.copy())
    assert not parts.kl.any()
    assert parts.agree.all()
