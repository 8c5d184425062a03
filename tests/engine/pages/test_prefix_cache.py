"""Pages computed once: which requests find them, which never do, and that no output depends on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.pages.page_groups import PageGroups
from app.engine.pages.page_names import PageChain, tenant_salt
from app.engine.statistics import EngineStatistics
from app.messages.failures import StepFailedError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest, SamplingParams
from tests.engine.test_engine import (
    SPARE_STATE_PAGES,
    WINDOWS,
    Gate,
    Receiver,
    assert_no_state_is_held,
    spoil_free_states,
    state_pages_of,
)
from tests.fakes import FakeRunner
from tests.sizes import examples

PROMPT = tuple(Random(0).choices(range(1000), k=50))  # 12 pages of 4, and 2 tokens


def ask(
    name: str, prompt: tuple[int, ...], new_tokens: int = 8, *, tenant: bytes = b"", seed: int = 1
) -> GenerateRequest:
    return GenerateRequest(name, prompt, new_tokens, SamplingParams(seed=seed), tenant=tenant)


@contextmanager
def running(runner: FakeRunner, *, prefix_cache: bool = True, **options: Any) -> Iterator[Engine]:
    engine = Engine(runner, prefix_cache=prefix_cache, **options)
    engine.start()
    yield engine
    engine.stop()
    assert engine.statistics().pages_used == 0


class Counter:
    """Counts what each of several requests costs, one after the other."""

    def __init__(self, engine: Engine, runner: FakeRunner) -> None:
        self.engine, self.runner, self.receiver = engine, runner, Receiver()

    def run(self, request: GenerateRequest) -> int:
        """Tokens that the model computed for it; checks its output."""
        before = sum(self.runner.step_tokens)
        self.receiver.submit(self.engine, request)
        assert self.receiver.tokens(request.request_id) == self.runner.expected_tokens(request)
        return sum(self.runner.step_tokens) - before

    def cached(self, name: str) -> list[int]:
        deltas = self.receiver.events[name]
        return [delta.cached_tokens for delta in deltas if isinstance(delta, TokenDelta)]


def test_the_same_prompt_again_computes_only_its_last_partial_page() -> None:
    runner = FakeRunner()
    with running(runner) as engine:
        counter = Counter(engine, runner)
        assert counter.run(ask("first", PROMPT)) == 50 + 7
        assert counter.run(ask("again", PROMPT, seed=2)) == 2 + 7
        assert counter.run(ask("no more than its pages", PROMPT[:48], seed=2)) == 4 + 7  # one token must be computed
        assert counter.cached("first") == [0] * 8
        assert counter.cached("again") == [48] + [0] * 7


@pytest.mark.parametrize("length", range(36, 51))
def test_with_windows_a_prompt_finds_what_its_next_token_sees(length: int) -> None:
    runner = FakeRunner(group_windows=(0, 10, 5))
    with running(runner) as engine:
        counter = Counter(engine, runner)
        counter.run(ask("first", PROMPT[:length], 7))
        text = (*PROMPT[:length], *runner.expected_tokens(ask("first", PROMPT[:length], 7)), 3)
        assert counter.run(ask("second turn", text, 1)) == len(text) - (length + 6) // 4 * 4
        # The beginning is there too, though its window was given back long ago: nothing else needed the pages.
        assert counter.run(ask("another text", (*PROMPT[:20], 1, 2, 3), 1)) == 3


@pytest.mark.parametrize(
    ("other", "prompt", "computed"),
    [
        (44, 50, 2),  # only the window's first two pages are gone
        (44, 25, 1),
        (44, 11, 11),  # it would need those
        (60, 50, 50),  # the window's last page is gone too, and before it those that shorter texts see
    ],
)
def test_with_windows_a_text_goes_on_where_its_window_still_is(other: int, prompt: int, computed: int) -> None:
    runner = FakeRunner(group_windows=(0, 10), kv_pages=44, max_context_tokens=80)
    with running(runner) as engine:
        counter = Counter(engine, runner)
        assert counter.run(ask("short", PROMPT[:25], 1)) == 25
        assert counter.run(ask("long", PROMPT, 1)) == 26
        text = tuple(Random(1).choices(range(1000), k=other))
        assert counter.run(ask("other", text, 1)) == other
        assert counter.run(ask("again", PROMPT[:prompt], 1)) == computed


def test_a_second_turn_computes_only_its_new_tokens() -> None:
    runner = FakeRunner()
    with running(runner) as engine:
        counter = Counter(engine, runner)
        first = ask("first turn", PROMPT, 23)
        counter.run(first)
        # 72 tokens were computed: the last of 73 never is. So 18 pages are there.
        said = (*PROMPT, *runner.expected_tokens(first), 5, 6, 7, 8, 9)
        assert counter.run(ask("second turn", said, 1)) == len(said) - 72


def test_another_tenant_computes_everything() -> None:
    runner = FakeRunner()
    with running(runner) as engine:
        counter = Counter(engine, runner)
        cost = [counter.run(ask(f"{tenant!r}", PROMPT, tenant=tenant)) for tenant in (b"a", b"b", b"", b"a\0")]
        steps = runner.steps
        assert cost == [57] * 4
        assert counter.run(ask("a again", PROMPT, tenant=b"a")) == 9
        assert runner.steps - steps < steps / 4


def test_without_a_prefix_cache_nothing_is_found() -> None:
    runner = FakeRunner()
    with running(runner, prefix_cache=False) as engine:
        counter = Counter(engine, runner)
        assert [counter.run(ask(name, PROMPT)) for name in ("first", "again")] == [57, 57]
        counts = engine.statistics()
        assert (counts.pages_cached, counts.cached_tokens) == (0, 0)


def test_a_request_without_the_cache_finds_and_leaves_nothing() -> None:
    runner = FakeRunner()
    with running(runner) as engine:
        counter = Counter(engine, runner)
        without = [replace(ask(name, PROMPT), uses_cache=False) for name in ("first", "third")]
        assert [counter.run(one) for one in (without[0], ask("second", PROMPT), without[1])] == [57] * 3
        assert counter.run(ask("fourth", PROMPT)) == 9


def test_statistics_count_cached_pages_and_cached_tokens() -> None:
    runner = FakeRunner()
    with running(runner) as engine:
        counter = Counter(engine, runner)
        counter.run(ask("first", PROMPT))
        counter.run(ask("again", PROMPT))

        def counts() -> EngineStatistics:
            return engine.statistics()

        while counts().running:  # counted when the last step has ended
            pass
        assert (counts().cached_tokens, counts().computed_tokens) == (48, 57 + 9)
        assert (counts().pages_cached, counts().pages_used, counts().pages_free) == (14, 0, 64)


@pytest.mark.parametrize("choices", [2, 7])
def test_choices_of_one_prompt_compute_its_pages_once(choices: int) -> None:
    gate = Gate()
    runner = FakeRunner(kv_pages=128, before_step=gate)
    with running(runner) as engine:
        receiver = Receiver()
        requests = [ask(f"choice {number}", PROMPT, 1, seed=number) for number in range(choices)]
        receiver.submit(engine, ask("holds the engine", (1,), 60))
        gate.wait()
        for request in requests:
            receiver.submit(engine, request)
        gate.open()
        for request in requests:
            assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
        assert sum(runner.step_tokens) - runner.steps <= 48 + 2 * choices  # a token of each step is the first request's


def test_a_prompt_that_begins_like_one_in_progress_waits_for_its_pages() -> None:
    gate = Gate()
    runner = FakeRunner(max_step_tokens=10, max_sequences=4, before_step=gate)
    with running(runner) as engine:
        receiver = Receiver()
        long, short = ask("long", PROMPT, 1), ask("short", PROMPT[:30], 1)
        receiver.submit(engine, long)
        gate.wait()
        receiver.submit(engine, short)
        gate.open()
        for request in (long, short):
            assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
        assert sum(runner.step_tokens) == 50 + 2


def test_a_preempted_request_finds_its_own_pages() -> None:
    runner = FakeRunner(kv_pages=32, max_sequences=2, max_context_tokens=128)
    old, young = ask("old", PROMPT[:20], 100), ask("young", PROMPT[20:], 60)
    engine, receiver = Engine(runner, expected_output_tokens=1), Receiver()
    receiver.submit(engine, old)
    receiver.submit(engine, young)
    engine.start()
    for request in (old, young):
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    engine.stop()
    counts = engine.statistics()
    assert counts.preemptions == 1
    assert counts.cached_tokens == 0  # its own pages are not reported as cached
    # The old one took most of the young one's pages, ends before beginnings; the young one found the others.
    assert sum(runner.step_tokens) == 119 + 89 + 15 * 4


def test_pages_of_a_failed_step_are_not_cached() -> None:
    failures = iter([None, None, ValueError("broken")])

    def fail(batch: object) -> None:
        if error := next(failures, None):
            raise error

    runner = FakeRunner(max_step_tokens=8, before_step=fail)
    with running(runner) as engine:
        counter = Counter(engine, runner)
        counter.receiver.submit(engine, ask("fails", PROMPT))
        assert isinstance(counter.receiver.error("fails"), StepFailedError)
        assert counter.run(ask("again", PROMPT)) == 57 - 16  # of the two steps that had succeeded


def test_requests_evict_cached_pages_and_ends_go_before_beginnings() -> None:
    runner = FakeRunner(kv_pages=20, max_context_tokens=80)
    with running(runner) as engine:
        counter = Counter(engine, runner)
        counter.run(ask("first", PROMPT, 1))
        other = tuple(Random(1).choices(range(1000), k=40))
        assert counter.run(ask("other", other, 1)) == 40  # 10 pages, of which 8 were free
        assert counter.run(ask("again", PROMPT, 1)) == 50 - 10 * 4
        assert counter.run(ask("full", tuple(range(80 - 1)), 1)) == 79  # the whole cache
        assert counter.run(ask("at last", PROMPT, 1)) == 50


def names_of_forgotten_pages(secret: bytes | None) -> list[bytes]:
    """Fills a small cache with one tenant's pages, then evicts all of them."""
    forgotten: list[bytes] = []
    runner = FakeRunner(kv_pages=20, max_context_tokens=80)
    engine = Engine(runner, cache_secret=secret, on_page_evicted=lambda page, digest: forgotten.append(digest))
    engine.start()
    counter = Counter(engine, runner)
    counter.run(ask("first", PROMPT, 1, tenant=b"a"))
    assert forgotten == []
    counter.run(ask("full", tuple(range(80 - 1)), 1, tenant=b"b"))
    engine.stop()
    return forgotten


def test_pages_are_named_by_the_secret_that_was_handed_in() -> None:
    secret = bytes(range(32))
    chain = PageChain(list(PROMPT), 4, tenant_salt(secret, b"a"))
    expected = {chain.digest(index) for index in range(12)}
    assert set(names_of_forgotten_pages(secret)) == expected
    assert set(names_of_forgotten_pages(secret)) == expected, "another engine gives the same names"
    assert not expected & set(names_of_forgotten_pages(bytes(32)))
    assert set(names_of_forgotten_pages(None)).isdisjoint(names_of_forgotten_pages(None)), "drawn anew"


def test_a_short_cache_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_secret must have at least 32 bytes, not 31"):
        Engine(FakeRunner(), cache_secret=bytes(31))


def test_digests_depend_on_all_tokens_before_and_on_the_salt() -> None:
    def digest(tokens: list[int], salt: bytes = b"salt") -> bytes:
        return PageChain(tokens, 2, salt).digest(len(tokens) // 2 - 1)

    base = digest([1, 2, 3, 4])
    assert base == digest([1, 2, 3, 4, 9])
    assert len({base, digest([1, 2]), digest([0, 2, 3, 4]), digest([3, 4]), digest([1, 2, 3, 4], b"pepper")}) == 5
    assert tenant_salt(b"secret", b"a") != tenant_salt(b"secret", b"b") != tenant_salt(b"other", b"b")


TURNS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(1, 12), st.sampled_from([b"a", b"b"]), st.booleans()),
    min_size=1,
    max_size=10,
)


@settings(max_examples=examples(80), deadline=None)
@given(TURNS, st.integers(1, 8), st.integers(0, 42), st.integers(0, 24), WINDOWS, SPARE_STATE_PAGES)
def test_outputs_never_depend_on_the_cache(
    turns: list[tuple[int, int, int, bytes, bool]],
    max_sequences: int,
    spare_pages: int,
    more: int,
    windows: tuple[int, ...],
    spare: int | None,
) -> None:
    """Prompts are beginnings of three texts, for two tenants; some are aborted."""
    kv_pages = PageGroups(windows, 4).pages(18) + spare_pages
    runner = FakeRunner(
        kv_pages=kv_pages,
        max_sequences=max_sequences,
        max_step_tokens=max_sequences + more,
        max_context_tokens=72,
        group_windows=windows,
        state_pages=state_pages_of(max_sequences, spare),
    )
    texts = [PROMPT * 2, PROMPT[:20] * 4, PROMPT[:30] + PROMPT[:40]]
    requests = [
        ask(f"{number}", texts[text][:length], new_tokens, tenant=tenant, seed=number)
        for number, (text, length, new_tokens, tenant, _) in enumerate(turns)
    ]
    engine, receiver = Engine(runner, prompt_chunk_tokens=5, expected_output_tokens=1), Receiver()
    spoil_free_states(engine)
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request, turn in zip(requests, turns, strict=True):
        if turn[-1]:
            engine.abort(request.request_id)
    for request, turn in zip(requests, turns, strict=True):
        if not turn[-1]:
            assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    engine.stop()
    counts = engine.statistics()
    assert (counts.pages_used, counts.pages_free) == (0, kv_pages)
    pool = engine._scheduler.pool
    assert pool.repeat_count == 0
    assert sorted(pool.allocate(kv_pages)) == list(range(kv_pages))
    assert pool.cached_count == 0
    assert_no_state_is_held(engine)
