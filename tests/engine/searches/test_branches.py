"""Searches in the engine: the same answers whatever else runs, and no page is lost, whichever requests are aborted."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.messages.failures import InvalidRequestError, RequestTooLongError, StepFailedError
from app.messages.outputs import TokenDelta
from app.messages.requests import BeamParams, ContextWindow, ContrastiveParams, GenerateRequest, SamplingParams
from tests.engine.test_engine import (
    SPARE_STATE_PAGES,
    WINDOWS,
    Gate,
    Receiver,
    assert_no_state_is_held,
    make_request,
    spoil_free_states,
    state_pages_of,
)
from tests.fakes import FakeRunner
from tests.sizes import examples

SEARCHES: list[BeamParams | ContrastiveParams] = [
    BeamParams(4),
    BeamParams(4, answers=3, early_stopping=True, length_penalty=0.5),
    BeamParams(6, answers=6, groups=3, diversity_penalty=1.5),
    BeamParams(1),
    ContrastiveParams(4, 0.6),
    ContrastiveParams(1, 0.5),
]


def search_request(
    name: str,
    prompt_tokens: int,
    max_new_tokens: int,
    search: BeamParams | ContrastiveParams,
    stops: Sequence[int] = (),
    tenant: bytes = b"",
) -> GenerateRequest:
    plain = make_request(name, prompt_tokens, max_new_tokens)
    return GenerateRequest(
        name, plain.prompt_token_ids, max_new_tokens, search=search, stop_token_ids=frozenset(stops), tenant=tenant
    )


def answers(receiver: Receiver, name: str) -> list[tuple[tuple[int, ...], str | None]]:
    """All answers of a request, which it waits for."""
    best = receiver.tokens(name)
    last = receiver.events[name][-1]
    assert isinstance(last, TokenDelta)
    return [(best, last.finish_reason), *((more.token_ids, more.finish_reason) for more in last.more)]


@pytest.mark.parametrize("shape", ["roomy", "tight", "chunked", "windows"])
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_answers_are_the_methods_whatever_else_runs(search: BeamParams | ContrastiveParams, shape: str) -> None:
    runner = FakeRunner(
        max_sequences=16,
        max_step_tokens=17 if shape == "chunked" else 64,
        kv_pages=64 if shape == "tight" else 256,
        group_windows=(0, 6, 13) if shape == "windows" else (0,),
    )
    runner.search_alphabet = 40
    requests = [search_request(f"search {n}", n, 14, search, stops=range(3)) for n in (1, 4, 7, 16, 21)]
    plain = [make_request(f"plain {n}", n, 30, seed=n) for n in (2, 9, 30)]
    engine, receiver = Engine(runner, prompt_chunk_tokens=5, expected_output_tokens=1), Receiver()
    for request in [*requests, *plain]:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        assert answers(receiver, request.request_id) == runner.expected_answers(request)
    for request in plain:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    engine.stop()
    assert engine.statistics().pages_used == 0


@pytest.mark.parametrize("search", [BeamParams(3, answers=3), ContrastiveParams(3, 0.6)], ids=str)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_preempted_search_continues_where_it_was(prefix_cache: bool, search: BeamParams | ContrastiveParams) -> None:
    runner = FakeRunner(max_sequences=6, max_step_tokens=64, kv_pages=32)
    old, young = make_request("old", 45, 75, seed=1), search_request("young", 20, 30, search)
    engine, receiver = Engine(runner, expected_output_tokens=1, prefix_cache=prefix_cache), Receiver()
    receiver.submit(engine, old)
    receiver.submit(engine, young)
    engine.start()
    assert answers(receiver, "young") == runner.expected_answers(young)
    assert receiver.tokens("old") == runner.expected_tokens(old)
    engine.stop()
    assert engine.statistics().preemptions > 0
    assert engine.statistics().pages_used == 0


def test_contrastive_search_streams_and_beams_answer_at_the_end() -> None:
    gate = Gate()
    gate.engine = engine = Engine(FakeRunner(before_step=gate))
    receiver = Receiver()
    receiver.submit(engine, search_request("c", 5, 10, ContrastiveParams(3, 0.5)))
    receiver.submit(engine, search_request("b", 5, 10, BeamParams(3)))
    engine.start()
    gate.wait()
    gate.let_run(5)
    assert sum(len(delta.token_ids) for delta in receiver.events["c"] if isinstance(delta, TokenDelta)) == 4
    assert receiver.events["b"] == []
    gate.open()
    assert len(receiver.tokens("c")) == 10
    assert len(receiver.events["b"]) == 0 or receiver.ended("b")
    assert len(receiver.tokens("b")) == 10
    engine.stop()


def test_branches_share_what_they_have_in_common() -> None:
    gate = Gate()
    runner = FakeRunner(before_step=gate, kv_pages=64, max_step_tokens=64)
    engine, receiver = Engine(runner), Receiver()
    receiver.submit(engine, search_request("b", 50, 10, BeamParams(4)))
    engine.start()
    gate.wait()
    gate.let_run(3)
    assert engine.statistics().pages_used <= 12 + 4 * 1
    assert sum(runner.step_tokens) == 50 + 4 + 4
    gate.open()
    receiver.tokens("b")
    engine.stop()


def test_a_second_search_finds_the_pages_of_the_first() -> None:
    runner = FakeRunner()
    engine, receiver = Engine(runner), Receiver()
    engine.start()
    first, again = (search_request(name, 50, 4, BeamParams(2)) for name in ("first", "again"))
    again = GenerateRequest("again", first.prompt_token_ids, 4, search=first.search, tenant=b"")
    receiver.submit(engine, first)
    assert answers(receiver, "first") == runner.expected_answers(first)
    receiver.submit(engine, again)
    assert answers(receiver, "again") == runner.expected_answers(first)
    engine.stop()
    found = receiver.events["again"][0]
    assert isinstance(found, TokenDelta)
    assert found.cached_tokens == 48
    assert engine.statistics().cached_tokens == 48


@pytest.mark.parametrize("search", [BeamParams(4), ContrastiveParams(4, 0.6)], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_abort_frees_every_branch_within_a_step(search: BeamParams | ContrastiveParams, steps: int) -> None:
    gate = Gate()
    runner = FakeRunner(before_step=gate, max_step_tokens=8)  # the prompt takes two steps
    engine, receiver = Engine(runner, prefix_cache=False), Receiver()
    receiver.submit(engine, search_request("leaves", 10, 40, search))
    engine.start()
    gate.wait()
    gate.let_run(steps)
    assert engine.statistics().pages_used > 0
    engine.abort("leaves")
    receiver.submit(engine, make_request("stays", 3, 20))
    gate.let_run(1)  # the step that was already made
    gate.let_run(1)
    counts = engine.statistics()
    assert (counts.running, counts.waiting, counts.pages_used) == (1, 0, 1)
    gate.open()
    assert receiver.tokens("stays") == runner.expected_tokens(make_request("stays", 3, 20))
    engine.stop()


def test_a_failed_step_ends_a_search_once() -> None:
    failures = iter([None, None, ValueError("broken")])

    def fail(batch: object) -> None:
        if error := next(failures, None):
            raise error

    engine, receiver = Engine(FakeRunner(before_step=fail)), Receiver()
    receiver.submit(engine, search_request("b", 5, 10, BeamParams(3)))
    engine.start()
    assert isinstance(receiver.error("b"), StepFailedError)
    assert len(receiver.events["b"]) == 1
    receiver.submit(engine, make_request("plain", 3, 5))
    assert len(receiver.tokens("plain")) == 5
    engine.stop()
    assert engine.statistics().pages_used == 0


@pytest.mark.parametrize(
    ("search", "changes", "message"),
    [
        (BeamParams(9), {}, "num_beams must be 1 to 8, not 9"),
        (BeamParams(0), {}, "num_beams"),
        (BeamParams(-(2**40)), {}, "num_beams"),
        (BeamParams(4, answers=5), {}, "5 answers of 4 beams"),
        (BeamParams(4, groups=3), {}, "num_beam_groups: 3 does not divide 4"),
        (BeamParams(4, groups=2, diversity_penalty=float("nan")), {}, "diversity_penalty"),
        (BeamParams(4, length_penalty=float("inf")), {}, "length_penalty"),
        (ContrastiveParams(0, 0.5), {}, "top_k"),
        (ContrastiveParams(10**9, 0.5), {}, "top_k"),
        (ContrastiveParams(4, 1.5), {}, "penalty_alpha"),
        (BeamParams(4), {"max_new_tokens": 0}, "max_new_tokens"),
        (BeamParams(4), {"window": ContextWindow(64, 4, 4)}, "neither window"),
        (BeamParams(4), {"grammar": "x"}, "grammar"),
        (BeamParams(4), {"sampling": SamplingParams(logprobs=1)}, "scores"),
    ],
)
def test_impossible_searches_are_refused_by_name(
    search: BeamParams | ContrastiveParams, changes: dict[str, object], message: str
) -> None:
    engine, receiver = Engine(FakeRunner(max_sequences=8)), Receiver()
    fields = {
        "request_id": "a",
        "prompt_token_ids": (1, 2),
        "max_new_tokens": 5,
        "tenant": b"",
        "search": search,
    } | changes
    with pytest.raises(InvalidRequestError, match=message):
        receiver.submit(engine, GenerateRequest(**fields))  # type: ignore[arg-type]
    engine.stop()


def test_a_search_that_could_never_fit_is_refused_with_the_numbers() -> None:
    engine, receiver = Engine(FakeRunner(kv_pages=32)), Receiver()
    with pytest.raises(RequestTooLongError, match="for each of 8 branches: 100 together, but the KV cache holds 128"):
        receiver.submit(engine, search_request("b", 50, 50, BeamParams(8)))
    engine.stop()


PLANS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.integers(1, 14),
        st.sampled_from([None, *SEARCHES]),
        st.integers(0, 40),
        st.sampled_from([b"a", b"b"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    PLANS,
    st.integers(6, 12),
    st.integers(0, 24),
    st.integers(1, 6),
    st.integers(0, 40),
    st.booleans(),
    WINDOWS,
    SPARE_STATE_PAGES,
)
def test_no_page_is_lost_and_no_answer_changes_when_requests_are_aborted(
    plans: list[tuple[int, int, BeamParams | ContrastiveParams | None, int, bytes]],
    max_sequences: int,
    more: int,
    page_tokens: int,
    pages: int,
    prefix_cache: bool,
    windows: tuple[int, ...],
    spare: int | None,
) -> None:
    """About a third of the requests are aborted, each at a step of its own."""
    needed = 40 // page_tokens + 6 * (-(-54 // page_tokens) - 40 // page_tokens + 1)
    runner = FakeRunner(
        max_sequences=max_sequences,
        max_step_tokens=max_sequences + more,
        page_tokens=page_tokens,
        kv_pages=len(windows) * max(needed, 6 * -(-15 // page_tokens) + 1) + pages,
        max_context_tokens=60,
        group_windows=windows,
        state_pages=state_pages_of(max_sequences, spare),
    )
    runner.search_alphabet = 50
    engine = Engine(
        runner, prompt_chunk_tokens=1 + more // 2, expected_output_tokens=2, prefix_cache=prefix_cache, guess_tokens=2
    )
    spoil_free_states(engine)
    receiver = Receiver()
    leaving: dict[str, int] = {}

    def leave(batch: object) -> None:
        for name, at_step in leaving.items():
            if at_step == runner.steps:
                engine.abort(name)

    runner.before_step = leave
    requests = []
    for number, (prompt, new, search, at_step, tenant) in enumerate(plans):
        name = str(number)
        if at_step % 3 == 0:
            leaving[name] = at_step
        if search is None:
            requests.append(make_request(name, prompt, new, seed=number))
        else:
            requests.append(search_request(name, prompt, new, search, stops=range(2), tenant=tenant))
        receiver.submit(engine, requests[-1])
    engine.start()
    for request in requests:
        if request.request_id in leaving:
            continue
        if request.search is None:
            assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
        else:
            assert answers(receiver, request.request_id) == runner.expected_answers(request)
    engine.stop()
    counts = engine.statistics()
    assert (counts.pages_used, counts.pages_free) == (0, runner.kv_pages)
    pool = engine._scheduler.pool
    assert pool.repeat_count == 0
    assert sorted(pool.allocate(runner.kv_pages)) == list(range(runner.kv_pages))
    assert sorted(engine._scheduler._free_slots) == list(range(max_sequences))
    assert_no_state_is_held(engine)
