"""Outputs beyond the context: what they see, and what they cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.scheduling.limits import SchedulerLimits
from app.messages.failures import EngineError, InvalidRequestError, RequestTooLongError
from app.messages.requests import ContextWindow, GenerateRequest, SamplingParams
from tests.engine.test_engine import Receiver
from tests.fakes import FakeRunner
from tests.sizes import examples

PROMPT = tuple(Random(0).choices(range(1000), k=40))


def ask(
    name: str,
    prompt_tokens: int,
    new_tokens: int,
    window: ContextWindow | None,
    *,
    seed: int | None = 1,
    stops: frozenset[int] = frozenset(),
) -> GenerateRequest:
    sampling = SamplingParams(temperature=1.0 if seed is not None else 0.0, seed=seed)
    return GenerateRequest(name, PROMPT[:prompt_tokens], new_tokens, sampling, stops, window=window, tenant=b"")


@contextmanager
def stopping(runner: FakeRunner, **options: Any) -> Iterator[Engine]:
    engine = Engine(runner, expected_output_tokens=1, **options)
    yield engine
    engine.stop()
    counts = engine.statistics()
    assert (counts.pages_used, counts.pages_free) == (0, runner.kv_pages)


@pytest.mark.parametrize("guess_tokens", [0, 8])
@pytest.mark.parametrize("prompt_tokens", [1, 15, 32])
@pytest.mark.parametrize(
    "window",
    [
        ContextWindow(32, 4, 8),
        ContextWindow(33, 0, 4),  # as 32: whole pages
        ContextWindow(32, 5, 1),  # keeps 8, discards 4
        ContextWindow(32, 12, 16),
    ],
)
def test_an_output_continues_beyond_its_window(window: ContextWindow, prompt_tokens: int, guess_tokens: int) -> None:
    runner = FakeRunner(kv_pages=12, max_context_tokens=64, max_sequences=2, vocab_size=40 if guess_tokens else 1000)
    with stopping(runner, guess_tokens=guess_tokens) as engine:
        receiver = Receiver()
        request = ask("endless", min(prompt_tokens, 32), 500, window)
        request = GenerateRequest(
            "endless", tuple(t % 40 for t in request.prompt_token_ids), 500, request.sampling, window=window, tenant=b""
        )
        receiver.submit(engine, request)
        engine.start()
        assert receiver.tokens("endless") == runner.expected_tokens(request)
        assert receiver.finish_reason("endless") == "length"
        assert len(receiver.tokens("endless")) == 500


def test_an_endless_output_takes_no_further_memory() -> None:
    runner = FakeRunner(kv_pages=9, max_context_tokens=32, max_sequences=1)
    most = 0

    def look(batch: object) -> None:
        nonlocal most
        (generation,) = engine._outputs.generations.values()
        most = max(most, len(generation.tokens), engine.statistics().pages_used * 4)

    runner.before_step = look
    with stopping(runner) as engine:
        receiver = Receiver()
        receiver.submit(engine, ask("endless", 8, 3000, ContextWindow(32, 4, 8)))
        engine.start()
        assert len(receiver.tokens("endless")) == 3000
        assert most <= 36


def test_a_request_that_fits_needs_no_window_and_is_cached_as_usual() -> None:
    runner = FakeRunner(max_context_tokens=64)
    with stopping(runner) as engine:
        engine.start()
        receiver = Receiver()
        for name in ("first", "second"):
            request = ask(name, 30, 20, ContextWindow(64, 4, 8))
            receiver.submit(engine, request)
            assert receiver.tokens(name) == runner.expected_tokens(request)
        assert engine.statistics().cached_tokens == 28


def test_the_first_pages_of_an_endless_output_stay_in_the_cache() -> None:
    runner = FakeRunner(kv_pages=40, max_context_tokens=32)
    with stopping(runner) as engine:
        engine.start()
        receiver = Receiver()
        for name in ("endless", "same prompt"):
            request = ask(name, 30, 200, ContextWindow(32, 4, 8))
            receiver.submit(engine, request)
            assert receiver.tokens(name) == runner.expected_tokens(request)
        assert engine.statistics().cached_tokens == 28


@pytest.mark.parametrize(
    ("prompt_tokens", "window", "message"),
    [
        (8, ContextWindow(32, 16, 16), "8 whole pages of 4 tokens: too few to keep 4, discard 4"),
        (8, ContextWindow(68, 4, 4), "68 tokens, but the context holds 64"),
        (33, ContextWindow(32, 4, 4), "the prompt has 33 tokens, but the context window holds 32"),
        (8, ContextWindow(64, 20, 4), "needs 21 pages of 4 tokens .* but the KV cache has 20"),
    ],
)
def test_windows_without_room_are_refused(prompt_tokens: int, window: ContextWindow, message: str) -> None:
    with stopping(FakeRunner(kv_pages=20, max_context_tokens=64)) as engine, pytest.raises(EngineError, match=message):
        Receiver().submit(engine, ask("endless", prompt_tokens, 1000, window))


def test_a_model_whose_positions_are_absolute_is_refused() -> None:
    runner = FakeRunner()
    runner.has_relative_positions = False
    with stopping(runner) as engine, pytest.raises(InvalidRequestError, match="absolute"):
        Receiver().submit(engine, ask("endless", 8, 1000, ContextWindow(32, 4, 8)))


def unshiftable(kind: str) -> FakeRunner:
    match kind:
        case "positions":
            runner = FakeRunner(max_context_tokens=64)
            runner.has_relative_positions = False
            return runner
        case "attention windows":
            return FakeRunner(max_context_tokens=64, group_windows=(0, 8))
    return FakeRunner(max_context_tokens=64, state_pages=40)


@pytest.mark.parametrize("kind", ["positions", "attention windows", "states"])
def test_a_window_that_is_not_required_ends_with_the_context_where_that_can_not_be_shifted(kind: str) -> None:
    with stopping(unshiftable(kind)) as engine:
        engine.start()
        receiver = Receiver()
        receiver.submit(engine, ask("chat", 30, 1000, ContextWindow(64, 4, 8, is_required=False)))
        assert len(receiver.tokens("chat")) == 34
        assert receiver.finish_reason("chat") == "length"


def test_a_window_that_is_not_required_shrinks_to_what_the_cache_holds() -> None:
    runner = FakeRunner(kv_pages=20, max_context_tokens=640)
    request = ask("chat", 30, 1000, ContextWindow(640, 8, 300, is_required=False))
    with stopping(runner) as engine:
        assert engine.longest_tokens == 80
        engine.start()
        receiver = Receiver()
        receiver.submit(engine, request)
        # Its two kept pages are held twice, a quarter is left to others, and a page of the newest tokens stays.
        shrunk = ContextWindow((20 - 2 - 5) * 4, 8, 10 * 4)
        assert receiver.tokens("chat") == runner.expected_tokens(replace(request, window=shrunk))
        # A longer prompt takes what there is.
        request = replace(request, request_id="long", prompt_token_ids=(*PROMPT, *PROMPT[:20]))
        receiver.submit(engine, request)
        whole = ContextWindow((20 - 2) * 4, 8, 15 * 4)
        assert receiver.tokens("long") == runner.expected_tokens(replace(request, window=whole))
        # What keeps nearly all that there is can't shift.
        receiver.submit(engine, ask("keeps", 30, 1000, ContextWindow(640, 40, 300, is_required=False)))
        assert len(receiver.tokens("keeps")) == 80 - 30


@given(st.integers(1, 400), st.integers(1, 90), st.lists(st.sampled_from([0, 1, 5, 8, 40]), min_size=1, max_size=3))
def test_the_longest_request_is_the_longest_that_is_not_refused(context: int, pages: int, windows: list[int]) -> None:
    limits = SchedulerLimits(
        step_tokens=8,
        max_sequences=1,
        max_context_tokens=context,
        page_tokens=4,
        page_count=pages,
        group_windows=tuple(windows),
    )
    longest = limits.longest_tokens
    assert longest <= context
    if longest > 0:
        limits.check(longest, 0)
        limits.check(1, longest - 1)
    if longest < context:
        with pytest.raises(RequestTooLongError):
            limits.check(longest + 1, 0)


REQUESTS = st.lists(
    st.tuples(st.integers(1, 32), st.integers(1, 90), st.booleans(), st.booleans()), min_size=1, max_size=7
)


@settings(max_examples=examples(60), deadline=None)
@given(REQUESTS, st.integers(1, 5), st.integers(12, 40), st.integers(0, 16), st.sampled_from([0, 4]))
def test_endless_requests_and_others_all_get_their_output(
    requests: list[tuple[int, int, bool, bool]], max_sequences: int, kv_pages: int, more: int, guess_tokens: int
) -> None:
    """Endless outputs are never preempted, others are; some are aborted."""
    runner = FakeRunner(
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_sequences + more,
        max_context_tokens=48,
        vocab_size=1000 if not guess_tokens else 3,
    )
    window = ContextWindow(32, 4, 8)
    made = []
    for number, (prompt_tokens, new_tokens, endless, _) in enumerate(requests):
        prompt = tuple(token % runner.vocab_size for token in PROMPT[:prompt_tokens])
        new_tokens = new_tokens if endless else min(new_tokens, 48 - prompt_tokens)
        sampling = SamplingParams(seed=number)
        made.append(
            GenerateRequest(f"{number}", prompt, new_tokens, sampling, window=window if endless else None, tenant=b"")
        )
    with stopping(runner, prompt_chunk_tokens=5, guess_tokens=guess_tokens) as engine:
        receiver = Receiver()
        for request in made:
            receiver.submit(engine, request)
        engine.start()
        for request, plan in zip(made, requests, strict=True):
            if plan[-1]:
                engine.abort(request.request_id)
        for request, plan in zip(made, requests, strict=True):
            if not plan[-1]:
                assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
