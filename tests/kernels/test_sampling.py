"""The sampler: greedy, penalties, the kept sets against float64, distributions of many draws, and the generator.

Draws are deterministic (fixed seeds), so a test of a distribution passes always or never.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import _native
from kernels._native import Sampler, testing
from tests.sizes import some

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
LARGE_VOCABULARY = 151_936


@pytest.fixture(params=_native.available_tiers(), autouse=True)
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Samplers take the default tier when they are made."""
    monkeypatch.setenv("REDOUBT_ISA", request.param)
    return str(request.param)


def softmax(logits: F32, temperature: float = 1.0) -> F64:
    wide: F64 = logits.astype(np.float64) / temperature
    weights: F64 = np.exp(wide - wide.max())
    weights /= weights.sum()
    return weights


def kept(logits: F32, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> F64:
    """The distribution that is left of each token, by the definitions in sampling/sampler.h."""
    p = softmax(logits, temperature)
    if top_k:
        p[logits < np.sort(logits)[-top_k]] = 0
        p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        needed = int(np.searchsorted(np.cumsum(p[order]), np.float32(top_p))) + 1
        p[order[needed:]] = 0
    p[p < min_p * p.max()] = 0
    p /= p.sum()
    return p


def assert_draws_follow(draws: NDArray[np.int64], expected: F64) -> None:
    """Chi-square of the draws: cells of at least 5 expected draws, the rest together, below the 99.9% quantile."""
    counts = np.bincount(draws, minlength=len(expected))
    assert (counts[expected == 0] == 0).all()
    mass = expected * len(draws)
    cells = mass >= 5
    observed = np.append(counts[cells], counts[~cells].sum())
    wanted = np.append(mass[cells], mass[~cells].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    if len(wanted) > 1 and wanted[-1] < 5:
        observed, wanted = observed[:-1], wanted[:-1]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = max(len(wanted) - 1, 1)
    quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson and Hilferty 1931
    assert statistic < quantile


def draw(logits: F32, times: int, **options: float) -> NDArray[np.int64]:
    sampler = Sampler(vocab_size=len(logits), prompt=[], **options)  # type: ignore[arg-type]
    return np.array([sampler.sample(logits) for _ in range(times)])


def greedy(logits: F32, **options: object) -> int:
    options = {"prompt": [], "temperature": 0.0, **options}
    return Sampler(vocab_size=len(logits), **options).sample(logits)  # type: ignore[arg-type]


# --- greedy, and logits that are no numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [1, 5, 127, 128, 129, 49_152, LARGE_VOCABULARY + 1])
def test_greedy_takes_the_largest_and_the_lowest_of_equals(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = rng.standard_normal(vocab_size, np.float32)
    before = logits.copy()
    assert greedy(logits) == logits.argmax()
    assert np.array_equal(logits, before)
    for position in {0, vocab_size // 2, vocab_size - 1}:
        tied = logits.copy()
        tied[position] = tied[-1] = 9
        assert greedy(tied) == position


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_never_wins(temperature: float) -> None:
    logits = np.full(1000, np.nan, np.float32)
    logits[700] = -5
    assert draw(logits, 20, temperature=temperature).tolist() == [700] * 20
    for options in ({"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}):
        assert draw(logits, 20, temperature=temperature, **options).tolist() == [700] * 20


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.3}])
def test_logits_without_a_finite_maximum(options: dict[str, float]) -> None:
    nothing = np.array([np.nan, -np.inf, np.nan, -np.inf], np.float32)
    assert draw(nothing, 3, **options).tolist() == [0, 0, 0]
    infinite = np.array([0, np.nan, np.inf, 1e30, np.inf], np.float32)
    assert draw(infinite, 3, **options).tolist() == [2, 2, 2]
    banned = np.array([-np.inf, 1, -np.inf, 1], np.float32)
    assert set(draw(banned, 40, **options).tolist()) <= {1, 3}


# --- penalties and bias -----------------------------------------------------------------------------------------------


def test_repetition_penalty_covers_prompt_and_output() -> None:
    logits = np.array([4.0, 3.9, 1.0, -0.5], np.float32)
    sampler = Sampler(vocab_size=4, prompt=[0, 0], temperature=0.0, repetition_penalty=2.0)
    # 0 counts 2.0 from the start however often it occurs; 1 falls to 1.95 once drawn.
    assert [sampler.sample(logits) for _ in range(3)] == [1, 0, 0]
    negative = np.array([-1.0, -1.5, -3.0], np.float32)
    assert greedy(negative, prompt=[0], repetition_penalty=2.0) == 1


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = np.array([2.0, 1.5, 1.2], np.float32)
    assert greedy(logits, prompt=[0, 0, 0], presence_penalty=2.0, frequency_penalty=2.0) == 0
    presence = Sampler(vocab_size=3, prompt=[], temperature=0.0, presence_penalty=0.6)
    assert [presence.sample(logits) for _ in range(6)] == [0, 1, 0, 0, 0, 0]
    logits = np.array([2.0, 1.75, 1.2], np.float32)
    frequency = Sampler(vocab_size=3, prompt=[], temperature=0.0, frequency_penalty=0.5)
    assert [frequency.sample(logits) for _ in range(6)] == [0, 1, 0, 1, 2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_penalties_together_against_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size = 300
    prompt = rng.integers(0, vocab_size, 40).tolist()
    repetition, presence, frequency = np.float32(1.3), np.float32(0.4), np.float32(-0.25)
    bias = {int(token): float(rng.normal()) for token in rng.integers(0, vocab_size, 8)}
    sampler = Sampler(
        vocab_size=vocab_size,
        prompt=prompt,
        temperature=0.0,
        repetition_penalty=float(repetition),
        presence_penalty=float(presence),
        frequency_penalty=float(frequency),
        logit_bias=bias,
    )
    counts = np.zeros(vocab_size, np.int64)
    seen = np.zeros(vocab_size, bool)
    seen[prompt] = True
    for _ in range(60):
        logits = rng.standard_normal(vocab_size, np.float32) * np.float32(2)
        expected = np.where(seen, np.where(logits > 0, logits / repetition, logits * repetition), logits)
        expected = expected - (counts > 0) * (presence + frequency * counts.astype(np.float32))
        for token, value in bias.items():
            expected[token] += np.float32(value)
        token = sampler.sample(logits)
        assert token == expected.argmax()
        counts[token] += 1
        seen[token] = True


def test_bias_of_100_forces_and_bans() -> None:
    logits = np.random.default_rng(0).standard_normal(500, np.float32) * 5
    best = int(logits.argmax())
    forced = Sampler(vocab_size=500, prompt=[], logit_bias={17: 100.0}, seed=1)
    assert [forced.sample(logits) for _ in range(50)] == [17] * 50
    banned = Sampler(vocab_size=500, prompt=[], logit_bias={best: -100.0}, seed=1)
    assert best not in [banned.sample(logits) for _ in range(300)]
    assert greedy(logits, logit_bias={best: -float("inf")}) != best


# --- what is kept, and how it is drawn --------------------------------------------------------------------------------

CHOICES: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 200},
    {"top_p": 0.05},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.3},
    {"min_p": 0.02},
    {"top_k": 30, "top_p": 0.8},
    {"top_k": 30, "min_p": 0.2},
    {"top_p": 0.9, "min_p": 0.1, "temperature": 1.7},
    {"top_k": 100, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
)


@pytest.mark.parametrize(("options", "vocab_size"), some(CHOICES, [200, 3001]))
def test_draws_follow_the_kept_distribution(options: dict[str, float], vocab_size: int) -> None:
    logits = np.random.default_rng(vocab_size).standard_normal(vocab_size, np.float32) * 2
    assert_draws_follow(draw(logits, 2500, seed=5, **options), kept(logits, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"top_k": 20}, {"top_p": 0.7}, {"min_p": 0.4}, {"top_k": 25, "top_p": 0.8, "min_p": 0.3}]
)
def test_kept_sets_are_exact(options: dict[str, float]) -> None:
    # 40 tokens of like weight among 3000 hopeless ones: each kept one is drawn at least once, no other ever.
    rng = np.random.default_rng(1)
    logits = np.full(3000, -30, np.float32)
    logits[rng.permutation(3000)[:40]] = rng.uniform(0, 1.5, 40)
    expected = kept(logits, **options)  # type: ignore[arg-type]
    assert set(draw(logits, 3000, **options).tolist()) == set(np.flatnonzero(expected).tolist())


def test_ties() -> None:
    logits = np.zeros(10, np.float32)
    assert set(draw(logits, 500, top_k=3).tolist()) == set(range(10))  # all equal the third largest
    assert set(draw(logits, 500, top_p=0.35).tolist()) == {0, 1, 2, 3}  # 4 are needed: the lowest ids
    assert set(draw(logits, 500, top_p=0.5).tolist()) == {0, 1, 2, 3, 4}  # 5 reach it exactly
    assert set(draw(logits, 500, top_p=1e-6).tolist()) == {0}
    assert set(draw(logits, 500, min_p=0.99).tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("options", "spread"),
    some(
        [{"top_k": 50}, {"top_k": 5000}, {"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.05}, {}], [0.01, 1.0, 4.0, 12.0]
    ),
)
def test_large_vocabularies(spread: float, options: dict[str, float]) -> None:
    # From nearly uniform (a hundred thousand tokens kept) to one token that is nearly certain.
    logits = np.random.default_rng(4).standard_normal(LARGE_VOCABULARY, np.float32) * np.float32(spread)
    expected = kept(logits, **options)  # type: ignore[arg-type]
    draws = draw(logits, 25, seed=9, **options)
    # Sums in fp32 and in float64 may differ about the last token of top-p: its weight is the least that is kept.
    assert (softmax(logits)[draws] >= softmax(logits)[expected > 0].min() * (1 - 1e-6)).all()


def test_the_smallest_temperature_is_greedy() -> None:
    logits = np.random.default_rng(2).standard_normal(1000, np.float32)
    assert set(draw(logits, 50, temperature=1e-44).tolist()) == {int(logits.argmax())}
    assert set(draw(logits, 50, temperature=1e-4).tolist()) == {int(logits.argmax())}


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_on_every_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(3).standard_normal(5003, np.float32) * 3
    for options in CHOICES:
        sequences = []
        for each in _native.available_tiers():
            monkeypatch.setenv("REDOUBT_ISA", each)
            sequences.append(draw(logits, 40, seed=2**64 - 3, **options).tolist())
        assert all(sequence == sequences[0] for sequence in sequences)


def test_seeds_differ_and_samplers_do_not_share_state() -> None:
    logits = np.zeros(5000, np.float32)
    assert draw(logits, 20, seed=1).tolist() != draw(logits, 20, seed=2).tolist()
    one, two = (Sampler(vocab_size=5000, prompt=[], seed=6) for _ in range(2))
    mixed = [(one.sample(logits), two.sample(logits)) for _ in range(20)]
    assert all(a == b for a, b in mixed)
    assert [a for a, _ in mixed] == draw(logits, 20, seed=6).tolist()


def test_the_first_draw_is_the_generators_first_block() -> None:
    seed, vocab_size = 0x299F31D0A4093822, 1000
    high, low, *_ = testing.philox_4x32_10([0, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
    uniform = ((high << 32 | low) >> 11) * 2.0**-53
    assert draw(np.zeros(vocab_size, np.float32), 1, seed=seed)[0] == int(uniform * vocab_size)


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [  # Random123's kat_vectors, "philox4x32 10"
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_known_answers(counter: list[int], key: list[int], block: list[int]) -> None:
    assert testing.philox_4x32_10(counter, key) == block


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", float("inf")),
        ("logit_bias", {10: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: float("inf")}),
        ("prompt", [3, 10]),
        ("vocab_size", 0),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object) -> None:
    arguments = {"vocab_size": 10, "prompt": [], option: value}
    with pytest.raises(ValueError, match=option):
        Sampler(**arguments)  # type: ignore[arg-type]


def test_logits_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        Sampler(vocab_size=10, prompt=[]).sample(np.zeros(9, np.float32))


# --- masks, late ends and scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vocab_size", "options"), some([1, 31, 32, 33, 1000], [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.5}])
)
def test_a_masked_token_is_never_drawn(vocab_size: int, options: dict[str, float]) -> None:
    rng = np.random.default_rng(vocab_size)
    allowed = rng.random(vocab_size) < 0.3
    allowed[rng.integers(vocab_size)] = True
    sampler = Sampler(vocab_size=vocab_size, prompt=[], **options)  # type: ignore[arg-type]
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[:vocab_size] = allowed
    sampler.masks(1)[:] = np.packbits(bits, bitorder="little").view(np.uint32)
    logits = rng.standard_normal(vocab_size).astype(np.float32)
    free = [sampler.sample(logits) for _ in range(200)]
    sampler.set_masked(True)
    drawn = [sampler.sample(logits) for _ in range(200)]
    assert all(allowed[token] for token in drawn)
    assert vocab_size < 31 or not all(allowed[token] for token in free) or options
    if options == {"temperature": 0.0}:
        assert set(drawn) == {int(np.where(allowed, logits, -np.inf).argmax())}


def test_each_draw_has_a_mask_of_its_own_until_the_last() -> None:
    sampler = Sampler(vocab_size=40, prompt=[], temperature=0.0)
    sampler.set_masked(True)
    logits = np.arange(40, dtype=np.float32)
    for rows in ((3, 35, 20), (7,)):
        masks = sampler.masks(len(rows))
        masks[:] = 0
        for row, token in enumerate(rows):
            masks[row, token // 32] = 1 << token % 32
        assert [sampler.sample(logits) for _ in range(4)] == [*rows, *[rows[-1]] * (4 - len(rows))]


def test_ends_come_late() -> None:
    logits = np.array([0, 5, 9, 1], np.float32)
    sampler = Sampler(vocab_size=4, prompt=[], temperature=0.0, min_tokens=3, end_tokens=[2, 3])
    assert [sampler.sample(logits) for _ in range(5)] == [1, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="min_tokens"):
        Sampler(vocab_size=4, prompt=[], min_tokens=-1)
    with pytest.raises(ValueError, match="end_tokens"):
        Sampler(vocab_size=4, prompt=[], end_tokens=[4])


@pytest.mark.parametrize("vocab_size", [1, 5, 129, 49_152])
def test_scores_are_of_the_logits_as_they_came(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    top = min(5, vocab_size)
    sampler = Sampler(
        vocab_size=vocab_size, prompt=[], temperature=0.3, top_k=2, frequency_penalty=1.0, logit_bias={0: 9.0},
        seed=1, logprobs=top,
    )  # fmt: skip
    plain = Sampler(
        vocab_size=vocab_size, prompt=[], temperature=0.3, top_k=2, frequency_penalty=1.0, logit_bias={0: 9.0}, seed=1
    )
    rows = rng.standard_normal((4, vocab_size)).astype(np.float32) * 4
    drawn = [sampler.sample(row) for row in rows]
    assert drawn == [plain.sample(row) for row in rows]
    logprobs, tokens, top_logprobs = sampler.take_scores()
    expected = np.log(np.stack([softmax(row) for row in rows]))
    assert np.allclose(logprobs, expected[np.arange(4), drawn], atol=4e-6)
    assert np.array_equal(tokens, np.argsort(-rows, axis=1, kind="stable")[:, :top])
    assert np.allclose(top_logprobs, -np.sort(-expected, axis=1)[:, :top], atol=4e-6)
    assert sampler.take_scores()[0].size == plain.take_scores()[0].size == 0


def test_scores_of_logits_that_are_no_numbers() -> None:
    inf = np.inf
    for row, token, logprob in [
        ([np.nan] * 3, 0, -inf),
        ([1, inf, np.nan], 1, 0.0),
        ([-inf, -inf, 2], 2, 0.0),
        ([-inf] * 3, 0, -inf),
    ]:
        sampler = Sampler(vocab_size=3, prompt=[], temperature=0.0, logprobs=3)
        assert sampler.sample(np.array(row, np.float32)) == token
        scores = sampler.take_scores()
        assert scores[0][0] == logprob
        assert sorted(scores[1][0].tolist()) == [0, 1, 2]
        assert not np.isnan(scores[2]).any()
    for logprobs in (-2, 4):
        with pytest.raises(ValueError, match="logprobs"):
            Sampler(vocab_size=3, prompt=[], logprobs=logprobs)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3, "presence_penalty": 0.5}, {"min_tokens": 6}])
def test_a_sampler_that_remembers_goes_on_as_the_one_that_drew(options: dict[str, float]) -> None:
    rows = np.random.default_rng(4).standard_normal((12, 40)).astype(np.float32) * 3

    def made() -> Sampler:
        return Sampler(vocab_size=40, prompt=[3, 4], temperature=1.0, seed=9, end_tokens=[1, 2], **options)  # type: ignore[arg-type]

    one = made()
    drawn = [one.sample(row) for row in rows]
    for known in range(len(rows)):
        other = made()
        other.remember(drawn[:known])
        assert [other.sample(row) for row in rows[known:]] == drawn[known:]
    with pytest.raises(ValueError, match="40"):
        one.remember([1, 40])
