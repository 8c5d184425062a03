import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.model_runner import Batch, TokenConstraint
from app.engine.pages.page_groups import PageGroups
from app.engine.scheduling.limits import STATE_PAGES_EACH
from app.messages.failures import (
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    RequestTooLongError,
    StepFailedError,
)
from app.messages.outputs import TokenDelta
from app.messages.requests import ContextWindow, GenerateRequest, SamplingParams
from tests.fakes import FakeRunner
from tests.sizes import examples

WINDOWS = st.sampled_from([(0,), (0, 7), (5,), (0, 3, 3, 3), (0, 0, 20), (1, 9)])
"""Of page groups."""
SPARE_STATE_PAGES = st.sampled_from([None, 2, 3, 5, 40])
"""State pages beyond those of the sequences; none: the model has no states."""
TIMEOUT_S = 120
"""Only so that no test hangs: a busy machine may pause for most of a minute."""


class Receiver:
    """Collects the events of many requests, keyed by their ids."""

    def __init__(self) -> None:
        self.events: dict[object, list[Event]] = defaultdict(list)
        self.calls = 0
        self._changed = threading.Condition()

    def deliver(self, events: Sequence[tuple[object, Event]]) -> None:
        with self._changed:
            self.calls += 1
            for key, event in events:
                self.events[key].append(event)
            self._changed.notify_all()

    def submit(self, engine: Engine, request: GenerateRequest, constraint: TokenConstraint | None = None) -> None:
        engine.submit(request, self.deliver, request.request_id, constraint)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), self.events

    def ended(self, request_id: str) -> bool:
        last = self.events[request_id][-1:]
        return bool(last) and (isinstance(last[0], EngineError) or last[0].finish_reason is not None)

    def tokens(self, request_id: str) -> tuple[int, ...]:
        """The whole output of a request, which it waits for."""
        self.wait_until(lambda: self.ended(request_id))
        deltas = self.events[request_id]
        assert all(isinstance(delta, TokenDelta) for delta in deltas), deltas
        return tuple(token for delta in deltas if isinstance(delta, TokenDelta) for token in delta.token_ids)

    def error(self, request_id: str) -> EngineError:
        self.wait_until(lambda: self.ended(request_id))
        error = self.events[request_id][-1]
        assert isinstance(error, EngineError)
        return error

    def finish_reason(self, request_id: str) -> str | None:
        last = self.events[request_id][-1]
        assert isinstance(last, TokenDelta)
        return last.finish_reason


def delivered(engine: Engine) -> None:
    """Returns once a receiver has all events of the steps so far. The engine must stand still meanwhile."""
    engine._outbox._delivered.get(timeout=TIMEOUT_S)
    engine._outbox._delivered.put(None)


class Gate:
    """Stops the engine before each step until the test lets it continue."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        """Whose events are delivered when it has stopped; None: they may be on their way."""
        self._steps = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._open = False

    def __call__(self, batch: Batch) -> None:
        if not self._open:
            self._arrived.release()
            assert self._steps.acquire(timeout=TIMEOUT_S)

    def let_run(self, steps: int) -> None:
        """Lets the engine run `steps` more steps; returns when it has stopped before the next one."""
        for _ in range(steps):
            self._steps.release()
            self.wait()

    def wait(self) -> None:
        assert self._arrived.acquire(timeout=TIMEOUT_S)
        if self.engine is not None:
            delivered(self.engine)

    def open(self) -> None:
        self._open = True
        self._steps.release()


def make_request(
    name: str, prompt_tokens: int, max_new_tokens: int, *, seed: int | None = None, stops: Sequence[int] = ()
) -> GenerateRequest:
    prompt = tuple(Random(f"{name} {prompt_tokens}").choices(range(1000), k=prompt_tokens))
    sampling = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed)
    return GenerateRequest(name, prompt, max_new_tokens, sampling, frozenset(stops), tenant=b"")


def state_pages_of(max_sequences: int, spare: int | None) -> int:
    return 0 if spare is None else STATE_PAGES_EACH * max_sequences + spare


def spoil_free_states(engine: Engine) -> None:
    """Whoever reads a state page after it was given back makes another text."""
    if engine._scheduler.states is not None:
        engine._runner.state_pool = engine._scheduler.states.pool  # type: ignore[attr-defined]


def assert_no_state_is_held(engine: Engine) -> None:
    """At the end. Takes all pages, so that the cache is empty then."""
    if engine._scheduler.states is not None:
        pool = engine._scheduler.states.pool
        assert (pool.used_count, pool.repeat_count) == (0, 0)
        assert sorted(pool.allocate(pool.page_count)) == list(range(pool.page_count))
        assert pool.cached_count == 0


Start = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def start_engine(runner: FakeRunner, **options: Any) -> Engine:
        engine = Engine(runner, **options)
        engines.append(engine)
        if isinstance(runner.before_step, Gate):
            runner.before_step.engine = engine
        engine.start()
        return engine

    yield start_engine
    for engine in engines:
        if isinstance(engine._runner.before_step, Gate):  # type: ignore[attr-defined]
            engine._runner.before_step.open()  # type: ignore[attr-defined]
        engine.stop()
        used = engine.statistics()
        assert (used.running, used.waiting, used.pages_used) == (0, 0, 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "redoubt-engine"]


MIX = [
    make_request("one token", 1, 1),
    make_request("long prompt", 100, 8, seed=1),
    make_request("long output", 3, 90, seed=2),
    make_request("greedy", 17, 40),
    make_request("page border", 16, 17, seed=3),
    make_request("other", 5, 30, seed=4),
]


@pytest.mark.parametrize(
    "shape",
    [
        {"max_sequences": 1},
        {"max_sequences": 8, "kv_pages": 256},
        {"max_sequences": 8, "max_step_tokens": 8, "kv_pages": 256},
        {"max_sequences": 6, "max_step_tokens": 7, "kv_pages": 27},
        {"max_sequences": 8, "max_step_tokens": 64, "page_tokens": 1, "kv_pages": 150},
    ],
    ids=["alone", "batched", "chunked", "preempted", "pages of one"],
)
def test_the_same_tokens_alone_batched_chunked_and_preempted(
    shape: dict[str, Any], start: Start, request: pytest.FixtureRequest
) -> None:
    gate = Gate()
    runner = FakeRunner(**shape, before_step=gate)
    engine = start(runner, prompt_chunk_tokens=5, expected_output_tokens=1)
    receiver = Receiver()
    for generate in MIX:
        receiver.submit(engine, generate)
    gate.open()  # all of them are there by the second step, however slowly this thread ran
    for generate in MIX:
        assert receiver.tokens(generate.request_id) == runner.expected_tokens(generate)
        assert receiver.finish_reason(generate.request_id) == "length"
    engine.stop()
    statistics = engine.statistics()
    assert statistics.generated_tokens == sum(generate.max_new_tokens for generate in MIX)
    assert (statistics.preemptions > 0) == (shape.get("kv_pages", 0) in (27, 150))
    once = sum(len(generate.prompt_token_ids) + generate.max_new_tokens - 1 for generate in MIX)
    assert (statistics.computed_tokens > once) == (statistics.preemptions > 0)


@pytest.mark.parametrize("kv_pages", [29, 256])
def test_layers_with_windows_keep_only_their_windows(kv_pages: int, start: Start) -> None:
    runner = FakeRunner(group_windows=(9, 9, 2), kv_pages=kv_pages, max_context_tokens=400, max_step_tokens=16)
    engine = start(runner, expected_output_tokens=1)
    receiver = Receiver()
    used: list[int] = []
    runner.before_step = lambda batch: used.append(engine.statistics().pages_used)
    requests = [make_request("long", 200, 190, seed=1), make_request("longer", 5, 390, seed=2)]
    for generate in requests:
        receiver.submit(engine, generate)
    for generate in requests:
        assert receiver.tokens(generate.request_id) == runner.expected_tokens(generate)
    # Each has 3 + 3 + 2 pages of its windows at most, once its prompt is computed.
    assert max(used[40:]) <= 2 * 8
    assert engine.statistics().preemptions == 0


def test_a_context_whose_pages_are_given_back_is_not_shifted(start: Start) -> None:
    engine = start(FakeRunner(group_windows=(0, 8)))
    window = ContextWindow(tokens=64, keep_tokens=4, discard_tokens=8)
    request = GenerateRequest("endless", (1, 2, 3), 500, SamplingParams(), tenant=b"", window=window)
    with pytest.raises(InvalidRequestError, match="attention has windows"):
        engine.submit(request, lambda events: None, "endless")


def test_a_request_that_needs_too_many_pages_of_all_groups_is_refused(start: Start) -> None:
    engine = start(FakeRunner(group_windows=(0, 8), kv_pages=28, max_context_tokens=400))
    receiver = Receiver()
    receiver.submit(engine, make_request("fits", 80, 21))  # 25 pages and 3
    assert len(receiver.tokens("fits")) == 21
    with pytest.raises(RequestTooLongError, match="29 pages, but the KV cache has 28"):
        receiver.submit(engine, make_request("long", 80, 22))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 9), st.integers(0, 40)),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 6),
    st.integers(0, 20),
    st.integers(1, 6),
    st.integers(0, 20),
    WINDOWS,
    SPARE_STATE_PAGES,
)
def test_the_same_tokens_whatever_the_shape_and_whichever_are_aborted(
    plans: list[tuple[int, int, int, int]],
    max_sequences: int,
    more: int,
    page_tokens: int,
    pages: int,
    windows: tuple[int, ...],
    spare: int | None,
) -> None:
    runner = FakeRunner(
        max_sequences=max_sequences,
        max_step_tokens=max_sequences + more,
        page_tokens=page_tokens,
        kv_pages=PageGroups(windows, page_tokens).pages(-(-90 // page_tokens)) + pages,
        max_context_tokens=91,
        group_windows=windows,
        state_pages=state_pages_of(max_sequences, spare),
    )
    engine = Engine(runner, prompt_chunk_tokens=1 + more // 2, expected_output_tokens=2)
    spoil_free_states(engine)
    receiver = Receiver()
    leaving = {f"{number}": at_step for number, (_, _, seed, at_step) in enumerate(plans) if seed % 3 == 0}

    def leave(batch: Batch) -> None:
        for name, at_step in leaving.items():
            if at_step == runner.steps:
                engine.abort(name)

    runner.before_step = leave
    requests = [make_request(f"{number}", p, n, seed=s) for number, (p, n, s, _) in enumerate(plans)]
    for generate in requests:
        receiver.submit(engine, generate)
    engine.start()
    for generate in requests:
        if generate.request_id not in leaving:
            assert receiver.tokens(generate.request_id) == runner.expected_tokens(generate)
    engine.stop()
    for name in leaving:
        expected = runner.expected_tokens(requests[int(name)])
        got = [delta.token_ids for delta in receiver.events[name] if isinstance(delta, TokenDelta)]
        assert sum(got, ()) == expected[: len(got)]
    assert engine.statistics().pages_used == 0
    assert_no_state_is_held(engine)


def test_a_stop_token_ends_the_output_and_is_not_in_it(start: Start) -> None:
    runner = FakeRunner()
    text = runner.expected_tokens(make_request("a", 5, 20))
    engine = start(runner)
    receiver = Receiver()
    receiver.submit(engine, make_request("a", 5, 20, stops=[text[7]]))
    assert receiver.tokens("a") == text[: text.index(text[7])]
    assert receiver.finish_reason("a") == "stop"
    last = GenerateRequest("b", make_request("a", 5, 20).prompt_token_ids, 8, SamplingParams(temperature=0), tenant=b"")
    receiver.submit(engine, last)
    assert receiver.tokens("b") == text[:8]
    assert receiver.finish_reason("b") == "length"


def test_a_stop_token_first_gives_an_empty_output(start: Start) -> None:
    runner = FakeRunner()
    text = runner.expected_tokens(make_request("a", 5, 1))
    receiver = Receiver()
    receiver.submit(start(runner), make_request("a", 5, 20, stops=text))
    assert receiver.tokens("a") == ()
    assert receiver.events["a"] == [TokenDelta((), "stop")]


def test_without_a_seed_outputs_differ(start: Start) -> None:
    engine, receiver = start(FakeRunner()), Receiver()
    for name in ("a", "b"):
        engine.submit(GenerateRequest(name, (1, 2, 3), 20, tenant=b""), receiver.deliver, name)
    assert receiver.tokens("a") != receiver.tokens("b")


def test_a_receiver_is_called_once_per_step_for_all_of_its_requests(start: Start) -> None:
    gate = Gate()
    engine, receiver = start(FakeRunner(before_step=gate)), Receiver()
    for number in range(6):
        receiver.submit(engine, make_request(f"{number}", 2, 10))
    gate.wait()
    gate.let_run(5)
    assert receiver.calls == 5
    assert sum(len(events) for events in receiver.events.values()) >= 25


@pytest.mark.parametrize("when", ["queued", "prefill", "decode"])
def test_an_abort_frees_slot_and_pages_within_a_step(when: str, start: Start) -> None:
    gate = Gate()
    runner = FakeRunner(max_sequences=2, max_step_tokens=8, before_step=gate)
    engine, receiver = start(runner, prompt_chunk_tokens=4), Receiver()
    receiver.submit(engine, make_request("stays", 3, 60))
    gate.wait()  # before its first step
    if when == "queued":
        receiver.submit(engine, make_request("other", 2, 60))
    receiver.submit(engine, make_request("leaves", {"queued": 3, "prefill": 20, "decode": 2}[when], 60))
    gate.let_run(3)
    before = engine.statistics()
    assert (before.running, before.waiting) == (2, 1 if when == "queued" else 0)
    said = len(receiver.events["leaves"])
    assert (said > 0) == (when == "decode")
    engine.abort("leaves")
    engine.abort("leaves")
    engine.abort("never heard of")
    gate.let_run(1)  # the step that was already made
    after = engine.statistics()
    gate.let_run(1)
    after = engine.statistics()
    assert (after.running, after.waiting) == (2 if when == "queued" else 1, 0)
    if when != "queued":
        assert after.pages_used == -(-(3 + 4) // 4)
    assert len(receiver.events["leaves"]) == said, "no event after an abort"
    receiver.submit(engine, make_request("leaves", 4, 2))  # the id is free again
    gate.open()
    if when == "queued":
        engine.abort("other")
    assert receiver.tokens("stays") == runner.expected_tokens(make_request("stays", 3, 60))
    assert len(receiver.tokens("leaves")) == said + 2


@pytest.mark.parametrize(
    ("generate", "error", "message"),
    [
        (GenerateRequest("a", (), 1, tenant=b""), InvalidRequestError, "no tokens"),
        (GenerateRequest("a", (1,), -1, tenant=b""), InvalidRequestError, "max_new_tokens must be at least 0, not -1"),
        (
            GenerateRequest("a", (1, 1000, 2), 1, tenant=b""),
            InvalidRequestError,
            "prompt token 1000 is outside .* of 1000",
        ),
        (GenerateRequest("a", (1, -1), 1, tenant=b""), InvalidRequestError, "prompt token -1"),
        (GenerateRequest("a", (1,), 1, SamplingParams(temperature=-1), tenant=b""), InvalidRequestError, "temperature"),
        (
            GenerateRequest("a", (1,) * 100, 29, tenant=b""),
            RequestTooLongError,
            "129 together, but the context holds 128",
        ),
        (GenerateRequest("running", (1,), 1, tenant=b""), InvalidRequestError, "'running' is in use"),
    ],
)
def test_bad_requests_are_refused_by_name(
    generate: GenerateRequest, error: type[EngineError], message: str, start: Start
) -> None:
    gate = Gate()
    engine, receiver = start(FakeRunner(before_step=gate)), Receiver()
    receiver.submit(engine, make_request("running", 3, 3))
    with pytest.raises(error, match=message):
        receiver.submit(engine, generate)
    gate.open()
    assert len(receiver.tokens("running")) == 3


def test_stop_ends_all_requests_with_an_error_and_leaves_no_thread() -> None:
    gate = Gate()
    engine, receiver = Engine(FakeRunner(max_sequences=1, before_step=gate)), Receiver()
    engine.start()
    assert engine.healthy
    receiver.submit(engine, make_request("running", 3, 60))
    gate.wait()
    receiver.submit(engine, make_request("waiting", 3, 60))
    stopper = threading.Thread(target=engine.stop)
    stopper.start()
    while engine.healthy:
        pass
    with pytest.raises(EngineStoppedError, match="shutting down"):
        receiver.submit(engine, make_request("late", 1, 1))
    gate.open()
    stopper.join(TIMEOUT_S)
    assert not stopper.is_alive()
    for name in ("running", "waiting"):
        assert isinstance(receiver.error(name), EngineStoppedError)
    assert not engine.healthy
    assert not engine.statistics().healthy
    assert engine.statistics().pages_used == 0
    engine.stop()


def test_an_engine_that_never_started_can_be_stopped() -> None:
    engine, receiver = Engine(FakeRunner()), Receiver()
    receiver.submit(engine, make_request("a", 3, 3))
    engine.stop()
    assert isinstance(receiver.error("a"), EngineStoppedError)


def test_a_failed_step_ends_its_requests_and_the_engine_continues(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([None, ValueError("the array is bad")])

    def fail(batch: Batch) -> None:
        if error := next(failures, None):
            raise error

    engine, receiver = start(FakeRunner(before_step=fail)), Receiver()
    receiver.submit(engine, make_request("a", 3, 60))
    error = receiver.error("a")
    assert isinstance(error, StepFailedError)
    assert "the array is bad" in str(error)
    assert len(receiver.events["a"]) == 2
    receiver.submit(engine, make_request("b", 3, 5))
    assert len(receiver.tokens("b")) == 5
    assert engine.healthy
    assert "an engine step of the requests a has failed" in caplog.text


def test_an_engine_whose_every_step_fails_stops(start: Start) -> None:
    def fail(batch: Batch) -> None:
        raise RuntimeError("no memory")

    engine, receiver = start(FakeRunner(max_sequences=1, before_step=fail)), Receiver()
    for name in "abc":
        receiver.submit(engine, make_request(name, 3, 5))
    assert [type(receiver.error(name)) for name in "abc"] == [StepFailedError] * 3
    engine.stop()
    assert not engine.healthy
    with pytest.raises(EngineStoppedError, match="3 engine steps failed one after another: no memory"):
        receiver.submit(engine, make_request("d", 3, 5))


def test_a_receiver_that_fails_loses_its_requests_only(start: Start) -> None:
    engine, receiver = start(FakeRunner()), Receiver()

    def broken(events: Sequence[tuple[object, Event]]) -> None:
        raise RuntimeError("the receiver has failed")

    engine.submit(make_request("lost", 3, 100), broken, "lost")
    receiver.submit(engine, make_request("kept", 3, 20))
    assert len(receiver.tokens("kept")) == 20
    receiver.submit(engine, make_request("lost", 3, 5))  # the id is free: it was aborted
    assert len(receiver.tokens("lost")) == 5


def test_many_threads_may_submit_and_abort(start: Start) -> None:
    runner = FakeRunner()
    engine, receiver = start(runner), Receiver()

    def use(thread: int) -> None:
        for number in range(20):
            name = f"{thread} {number}"
            receiver.submit(engine, make_request(name, 1 + number, 10, seed=number))
            if number % 4 == 0:
                engine.abort(name)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread_number in range(4):
        for number in range(20):
            if number % 4:
                generate = make_request(f"{thread_number} {number}", 1 + number, 10, seed=number)
                assert receiver.tokens(generate.request_id) == runner.expected_tokens(generate)
