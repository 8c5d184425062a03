from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.pages.page_groups import NONE, PageGroups
from app.engine.pages.page_names import PageChain
from app.engine.scheduling.fair_queue import AGEING
from app.engine.scheduling.limits import STATE_PAGES_EACH, SchedulerLimits
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceGroup, SequenceState, Step
from app.messages.failures import RequestTooLongError
from app.messages.requests import ContextWindow
from tests.sizes import examples


def make_limits(**changes: Any) -> SchedulerLimits:
    limits: dict[str, Any] = {
        "step_tokens": 32,
        "max_sequences": 4,
        "max_context_tokens": 256,
        "page_tokens": 4,
        "page_count": 64,
    }
    return SchedulerLimits(**(limits | changes))


CHUNK_TOKENS = 8


def run(scheduler: Scheduler) -> Step:
    """One step in which every sampled token is appended and full outputs end."""
    step = scheduler.schedule(CHUNK_TOKENS)
    scheduler.complete(step)
    for sequence, sampled in zip(step.sequences, step.samples, strict=True):
        if sampled:
            sequence.length += 1
            if sequence.generated == sequence.max_new_tokens:
                scheduler.remove(sequence)
    return step


def shares(step: Step) -> dict[SequenceState, int]:
    return dict(zip(step.sequences, step.query_lengths, strict=True))


def test_decoding_comes_first_and_prompts_get_a_bounded_chunk() -> None:
    scheduler = Scheduler(make_limits())
    talker = SequenceState(3, 50)
    scheduler.add(talker)
    run(scheduler)
    reader = SequenceState(40, 5)
    scheduler.add(reader)
    assert shares(run(scheduler)) == {talker: 1, reader: 8}
    scheduler.remove(talker)
    assert shares(run(scheduler)) == {reader: 32}  # no sequence decodes: the whole budget
    assert reader.generated == 1


def test_a_step_in_which_nothing_decodes_has_its_own_bound() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(reader := SequenceState(40, 5))
    assert shares(scheduler.schedule(CHUNK_TOKENS, alone_tokens=20)) == {reader: 20}
    assert shares(scheduler.schedule(CHUNK_TOKENS, alone_tokens=100)) == {reader: 32}


def test_guesses_are_trimmed_for_a_new_sequence_that_decodes() -> None:
    scheduler = Scheduler(make_limits(step_tokens=8))
    talker = SequenceState(3, 50)
    scheduler.add(talker)
    run(scheduler)
    talker.drafts = 7  # the whole step, before the other sequence came
    scheduler.add(SequenceState(1, 5))
    step = scheduler.schedule(CHUNK_TOKENS)
    assert step.query_lengths == [7, 1]


def test_a_short_prompt_overtakes_a_long_one_which_still_advances() -> None:
    scheduler = Scheduler(make_limits())
    long, short = SequenceState(200, 5), SequenceState(10, 5)
    scheduler.add(long)
    scheduler.add(short)
    assert shares(run(scheduler)) == {long: 22, short: 10}
    assert short.generated == 1
    assert shares(run(scheduler)) == {long: 8, short: 1}


def test_equal_prompts_are_served_in_order() -> None:
    scheduler = Scheduler(make_limits())
    first, second = SequenceState(40, 5), SequenceState(40, 5)
    scheduler.add(first)
    scheduler.add(second)
    assert shares(run(scheduler)) == {first: 32}
    assert shares(run(scheduler)) == {first: 8, second: 24}


def test_admission_expects_outputs_as_long_as_recent_ones() -> None:
    limits = make_limits(page_count=16, max_context_tokens=64)  # 64 tokens
    scheduler = Scheduler(limits, expected_output_tokens=40)
    for _ in range(3):
        scheduler.add(SequenceState(4, 60))
    scheduler.schedule(CHUNK_TOKENS)
    assert len(scheduler.running) == 1  # two would need 88 tokens, if outputs have 40
    scheduler = Scheduler(limits, expected_output_tokens=10)
    for _ in range(3):
        scheduler.add(SequenceState(4, 60))
    scheduler.schedule(CHUNK_TOKENS)
    assert len(scheduler.running) == 3  # though the worst case is three times the memory


def test_sequences_with_prompt_tokens_come_last() -> None:
    scheduler = Scheduler(make_limits())
    talkers = [SequenceState(3, 50), SequenceState(1, 50)]
    long = SequenceState(40, 5)
    scheduler.add(talkers[0])
    step = run(scheduler)
    assert (step.sequences, step.prompts) == ([talkers[0]], 1)
    scheduler.add(long)
    run(scheduler)
    scheduler.add(talkers[1])
    step = run(scheduler)
    assert (step.sequences, step.prompts) == ([talkers[0], long, talkers[1]], 2)  # a prompt of one token is one, too
    step = run(scheduler)
    assert (step.sequences, step.prompts) == ([*talkers, long], 1)
    assert step.samples == [True, True, False]


def test_the_youngest_is_preempted_and_runs_again_when_another_has_ended() -> None:
    scheduler = Scheduler(make_limits(page_count=6, max_context_tokens=24), expected_output_tokens=1)
    old, young = SequenceState(8, 16), SequenceState(8, 16)
    scheduler.add(old)
    scheduler.add(young)
    while scheduler.preemptions == 0:
        run(scheduler)
    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [young]
    assert (young.computed, young.pages, young.slot) == (0, [], -1)
    assert young.generated > 0  # its output is kept
    generated = young.generated
    while old.generated < old.max_new_tokens:
        assert scheduler.running == [old]
        run(scheduler)
    step = run(scheduler)
    assert (shares(step), step.prompts) == ({young: 8}, 1)  # first the prompt again,
    step = run(scheduler)
    assert (shares(step), step.prompts) == ({young: generated}, 0)  # then the output, which may be computed otherwise
    assert young.generated == generated + 1


def test_the_youngest_skips_a_step_when_no_page_is_free() -> None:
    scheduler = Scheduler(make_limits(page_count=4, max_context_tokens=16), expected_output_tokens=1)
    old, young = SequenceState(3, 13), SequenceState(4, 12)
    scheduler.add(old)
    scheduler.add(young)
    run(scheduler)
    while shares(run(scheduler)) == {old: 1, young: 1}:
        pass
    assert scheduler.running == [old, young]
    assert (young.computed, len(young.pages), scheduler.preemptions) == (8, 2, 0)
    assert shares(run(scheduler)) == {old: 1}
    assert scheduler.preemptions == 1  # now the older one needed a page
    assert list(scheduler.waiting) == [young]


def test_a_question_does_not_wait_for_documents() -> None:
    """Neither for their prompts, nor for slots and pages that they would hold while others are computed."""
    scheduler = Scheduler(make_limits(max_context_tokens=1024, page_count=600))
    for _ in range(12):
        scheduler.add(SequenceState(1000, 5))
    for _ in range(3):
        run(scheduler)
    assert len(scheduler.running) == 1
    question = SequenceState(10, 5)
    scheduler.add(question)
    run(scheduler)
    assert question.generated == 1


def test_a_document_whose_pages_are_cached_does_not_wait_for_another() -> None:
    limits = make_limits(max_context_tokens=1024, page_count=600)
    scheduler = Scheduler(limits)
    text = [1] * 1000
    scheduler.add(SequenceState(1000, 1, PageChain(text, limits.page_tokens, b"")))
    while scheduler.running or scheduler.waiting:
        run(scheduler)
    scheduler.add(SequenceState(900, 5))
    run(scheduler)
    again = SequenceState(1000, 5, PageChain(text, limits.page_tokens, b""))
    scheduler.add(again)
    run(scheduler)
    assert again.generated == 1


def test_a_question_that_fits_begins_before_a_preempted_document() -> None:
    scheduler = Scheduler(make_limits(page_count=14, max_context_tokens=56), expected_output_tokens=1)
    old, young = SequenceState(24, 20), SequenceState(24, 20)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preemptions:
        run(scheduler)
    question, other = SequenceState(2, 1), SequenceState(30, 1)
    scheduler.add(other)
    run(scheduler)
    assert scheduler.running == [old]  # `other` ranks behind the preempted one
    scheduler.add(question)
    run(scheduler)
    assert (question.generated, scheduler.running) == (1, [old])
    assert list(scheduler.waiting) == [young, other]


def test_callers_get_equal_shares() -> None:
    """Whoever sends more has no more of the engine, and a third caller who comes late has no claim on the past."""
    scheduler = Scheduler(make_limits(max_sequences=2, max_context_tokens=64))
    served = dict.fromkeys((b"few", b"many", b"late"), 0)
    sent = {b"few": 1, b"many": 20, b"late": 3}
    steps = 600

    def begin(caller: bytes) -> None:
        scheduler.add(SequenceState(20, 10, caller=caller))

    def run_and_count() -> None:
        step = scheduler.schedule(CHUNK_TOKENS)
        scheduler.complete(step)
        for sequence, count, sampled in zip(step.sequences, step.query_lengths, step.samples, strict=True):
            served[sequence.caller] += count
            if sampled:
                sequence.length += 1
                if sequence.generated == sequence.max_new_tokens:
                    scheduler.remove(sequence)
                    begin(sequence.caller)  # a closed loop

    for caller in (b"few", b"many"):
        for _ in range(sent[caller]):
            begin(caller)
    for _ in range(steps):
        run_and_count()
    assert served[b"few"] == pytest.approx(served[b"many"], rel=0.1)
    before = dict(served)
    for _ in range(sent[b"late"]):
        begin(b"late")
    for _ in range(steps):
        run_and_count()
    third = sum(served.values()) - sum(before.values())
    assert all(served[name] - before[name] == pytest.approx(third / 3, rel=0.15) for name in served)


def test_who_comes_back_does_not_wait_behind_all_who_are_new() -> None:
    scheduler = Scheduler(make_limits(max_sequences=2, max_context_tokens=64))
    for _ in range(30):
        scheduler.add(SequenceState(30, 30, caller=b"regular"))
    newcomers = 0

    def add_new() -> None:
        nonlocal newcomers
        scheduler.add(SequenceState(10, 10, caller=b"new %d" % newcomers))
        newcomers += 1

    for _ in range(300):
        run(scheduler)
    add_new()
    while any(sequence.caller == b"regular" for sequence in (*scheduler.running, *scheduler.waiting)):
        if len(scheduler.waiting) < 3:
            add_new()
        run(scheduler)
    scheduler.add(question := SequenceState(10, 10, caller=b"regular"))
    for _ in range(1000):
        while len(scheduler.waiting) < 4:
            add_new()
        run(scheduler)
    assert question.generated == 10


def windowed(limits: SchedulerLimits, **fields: Any) -> SequenceState:
    window = limits.window(10, 1 << 20, ContextWindow(32, 4, 8))
    return SequenceState(10, 1 << 20, window=window, **fields)


@pytest.mark.parametrize("page_count", [20, 200])
def test_endless_outputs_leave_slots_and_the_queue_to_others(page_count: int) -> None:
    limits = make_limits(max_sequences=8, page_count=page_count, max_context_tokens=64)
    scheduler = Scheduler(limits, expected_output_tokens=4)
    for _ in range(12):
        scheduler.add(windowed(limits, caller=b"endless"))
    for _ in range(20):
        run(scheduler)
    question = SequenceState(10, 5, caller=b"other")
    scheduler.add(question)
    for _ in range(20):
        run(scheduler)
    assert question.generated == 5
    assert 0 < len(scheduler.running) <= 6


def test_a_question_does_not_wait_for_a_document_or_a_search_before_it() -> None:
    scheduler = Scheduler(make_limits(max_sequences=8, max_context_tokens=2048, page_count=1600))
    scheduler.add(SequenceState(900, 5, caller=b"old"))
    run(scheduler)
    for _ in range(5):
        scheduler.add(SequenceState(10, 200, caller=b"old"))
        run(scheduler)
    group = SequenceGroup(4)
    search = SequenceState(40, 5, group=group, caller=b"searches")
    group.members.append(search)
    scheduler.add(search)
    scheduler.add(SequenceState(1000, 5, caller=b"reads"))
    scheduler.add(question := SequenceState(10, 5, caller=b"old"))
    for _ in range(20):
        run(scheduler)
    assert question.generated == 5
    assert search.slot < 0


def test_no_caller_has_all_slots() -> None:
    scheduler = Scheduler(make_limits(max_sequences=4, page_count=600), most_of_caller=3)
    for _ in range(6):
        scheduler.add(SequenceState(4, 200, caller=b"many"))
    for _ in range(4):
        run(scheduler)
    assert len(scheduler.running) == 3
    scheduler.add(question := SequenceState(4, 2, caller=b"other"))
    run(scheduler)
    assert question.generated == 1


def test_a_document_is_not_overtaken_for_ever() -> None:
    scheduler = Scheduler(make_limits(max_sequences=1))
    document = SequenceState(100, 1)
    scheduler.add(SequenceState(8, 2))
    run(scheduler)
    scheduler.add(document)
    computed = 0
    while not document.computed:
        scheduler.add(SequenceState(8, 1))
        computed += sum(run(scheduler).query_lengths)
    assert 50 * 100 < computed <= AGEING * 100 + 100


@pytest.mark.parametrize(
    ("prompt_tokens", "max_new_tokens", "page_count", "message"),
    [
        (200, 57, 64, "200 tokens and at most 57 .* 257 together, but the context holds 256"),
        (60, 38, 24, "60 tokens and at most 38 .* 98 together, but the KV cache holds 96"),
    ],
)
def test_a_request_that_can_never_end_is_refused(
    prompt_tokens: int, max_new_tokens: int, page_count: int, message: str
) -> None:
    limits = make_limits(page_count=page_count)
    with pytest.raises(RequestTooLongError, match=message):
        limits.check(prompt_tokens, max_new_tokens)
    limits.check(prompt_tokens, max_new_tokens - 1)


@pytest.mark.parametrize(("windows", "running"), [((0,), 2), ((9,), 8), ((0, 9), 1), ((9, 9), 5)])
def test_as_many_begin_as_their_windows_have_room_for(windows: tuple[int, ...], running: int) -> None:
    """Each will have 100 tokens, in 25 pages, and windows of 3 pages; a step's 8 pages are beside them."""
    limits = make_limits(max_sequences=8, page_count=50, max_context_tokens=200, group_windows=windows)
    scheduler = Scheduler(limits, expected_output_tokens=80)
    for _ in range(8):
        scheduler.add(SequenceState(20, 81))
    most = 0
    while scheduler.running or scheduler.waiting:
        run(scheduler)
        most = max(most, len(scheduler.running))
    assert most == running
    assert scheduler.preemptions == 0


def test_limits_must_let_every_sequence_advance() -> None:
    with pytest.raises(ValueError, match=r"step_tokens \(3\) must be at least max_sequences \(4\)"):
        make_limits(step_tokens=3)
    with pytest.raises(ValueError, match="page_tokens must be at least 1, not 0"):
        make_limits(page_tokens=0)


@dataclass(frozen=True)
class Arrival:
    at_step: int
    prompt_tokens: int
    max_new_tokens: int
    stops_after: int
    aborted_after_steps: int | None
    caller: bytes
    is_batch: bool
    text: int | None
    """Which of some texts the prompt is the beginning of; none: its pages are not shared."""


WINDOWS = st.sampled_from([(0,), (0, 7), (5,), (0, 3, 3, 3), (0, 0, 20), (1, 9)])

ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at_step=st.integers(0, 30),
        prompt_tokens=st.integers(1, 40),
        max_new_tokens=st.integers(1, 24),
        stops_after=st.integers(1, 30),
        aborted_after_steps=st.one_of(st.none(), st.integers(0, 40)),
        caller=st.sampled_from([b"", b"a", b"b"]),
        is_batch=st.booleans(),
        text=st.one_of(st.none(), st.integers(0, 1)),
    ),
    max_size=12,
)
LIMITS = st.builds(
    lambda max_sequences, more, page_tokens, pages, windows, spare: make_limits(
        step_tokens=max_sequences + more,
        max_sequences=max_sequences,
        page_tokens=page_tokens,
        page_count=PageGroups(windows, page_tokens).pages(-(-63 // page_tokens)) + pages,
        max_context_tokens=64,
        group_windows=windows,
        state_pages=0 if spare is None else STATE_PAGES_EACH * max_sequences + spare,
    ),
    max_sequences=st.integers(1, 6),
    more=st.integers(0, 30),
    page_tokens=st.integers(1, 9),
    pages=st.integers(0, 30),
    windows=WINDOWS,
    spare=st.sampled_from([None, 2, 3, 20]),
)


def check_step(scheduler: Scheduler, step: Step, chunk_tokens: int) -> None:
    limits = scheduler.limits
    given = shares(step)
    decoding = {sequence for sequence in scheduler.active if sequence.length - sequence.computed == 1}
    assert len({sequence.is_batch for sequence in (*given, *scheduler.active)}) <= 1, "batches alone, or not at all"
    assert sum(given.values()) <= limits.step_tokens
    prompts = sum(count for sequence, count in given.items() if sequence not in decoding)
    are_batches = any(sequence.is_batch for sequence in given)
    assert prompts <= (chunk_tokens if decoding and not are_batches else limits.step_tokens)
    if scheduler.running:
        assert scheduler.running[0] in given, "the oldest always advances"
    for sequence, count in given.items():
        assert 0 < count <= sequence.length - sequence.computed
        pages = limits.pages_for(sequence.computed + count)
        groups = limits.groups
        assert pages * groups.count == len(sequence.pages)
        for group, window in enumerate(groups.windows):
            first = max(sequence.computed + 1 - window, 0) // limits.page_tokens if window else 0
            of_group = sequence.pages[group :: groups.count]
            assert NONE not in of_group[first:], "what the step sees is there"
            kept = pages - of_group.count(NONE)
            assert not window or kept <= groups.most_of(window) + limits.pages_for(count), "and little else"
        if limits.state_pages:
            check_states(limits, sequence, count)
    assert decoding <= set(given) or scheduler.pool.free_count < limits.groups.count, "only a lack of pages stops it"


def check_states(limits: SchedulerLimits, sequence: SequenceState, count: int) -> None:
    """What the step reads and writes is there."""
    (first, filled), end = divmod(sequence.computed, limits.page_tokens), sequence.computed + count
    last = (end - 1) // limits.page_tokens
    needed = {last, first - 1, first if filled else last, last if end % limits.page_tokens == 0 else last - 1} - {-1}
    assert needed <= sequence.states.keys()


def check_memory(scheduler: Scheduler) -> None:
    if scheduler.states is not None:
        pages = [page for sequence in scheduler.running for page in sequence.states.values()]
        pool = scheduler.states.pool
        assert (len(set(pages)), len(pages)) == (pool.used_count, pool.used_count + pool.repeat_count)
    assert all(not sequence.states for sequence in scheduler.waiting)
    held = [page for sequence in scheduler.running for page in sequence.pages if page != NONE]
    alone = [
        page for sequence in scheduler.running if sequence.chain is None for page in sequence.pages if page != NONE
    ]
    assert len(alone) == len(set(alone))
    assert len(set(held)) == scheduler.pool.used_count
    assert len(held) - len(set(held)) == scheduler.pool.repeat_count
    assert all(scheduler.pool.holders(page) == held.count(page) for page in held)
    slots = [sequence.slot for sequence in scheduler.running]
    assert len(slots) == len(set(slots)) <= scheduler.limits.max_sequences
    assert all(sequence.slot == -1 and not sequence.pages for sequence in scheduler.waiting)


@settings(max_examples=examples(300), deadline=None)
@given(LIMITS, ARRIVALS, st.integers(1, 16))
def test_every_sequence_ends_and_no_page_leaks(
    limits: SchedulerLimits, arrivals: list[Arrival], chunk_tokens: int
) -> None:
    scheduler = Scheduler(limits, expected_output_tokens=2)
    plans: dict[SequenceState, Arrival] = {}
    tokens: dict[SequenceState, list[int]] = {}
    coming = sorted(arrivals, key=lambda arrival: arrival.at_step)
    # Each output token, and each prompt token, takes at most a step of its own; a preemption repeats at most all of it.
    most_steps = 31 + sum(arrival.prompt_tokens + arrival.max_new_tokens for arrival in arrivals) * (len(arrivals) + 1)
    for now in range(most_steps):
        while coming and coming[0].at_step == now:
            arrival = coming.pop(0)
            text = [arrival.text or 0] * arrival.prompt_tokens
            chain = PageChain(text, limits.page_tokens, b"") if arrival.text is not None else None
            sequence = SequenceState(
                arrival.prompt_tokens,
                arrival.max_new_tokens,
                chain,
                caller=arrival.caller,
                is_batch=arrival.is_batch,
            )
            tokens[sequence] = text
            plans[sequence] = arrival
            scheduler.add(sequence)
        for sequence, plan in list(plans.items()):
            if plan.aborted_after_steps is not None and now == plan.at_step + plan.aborted_after_steps:
                scheduler.remove(sequence)
                del plans[sequence]
        check_memory(scheduler)
        step = scheduler.schedule(chunk_tokens)
        check_step(scheduler, step, chunk_tokens)
        check_memory(scheduler)
        queue = [*scheduler.running, *scheduler.waiting]
        assert len(queue) == len(plans) == len(scheduler.running) + len(scheduler.waiting)
        assert set(queue) == set(plans)
        scheduler.complete(step)
        for sequence, sampled in zip(step.sequences, step.samples, strict=True):
            assert sampled == (sequence.computed == sequence.length)
            if sampled:
                tokens[sequence].append(7)
                sequence.length += 1
                if sequence.generated == min(plans[sequence].max_new_tokens, plans[sequence].stops_after):
                    scheduler.remove(sequence)
                    del plans[sequence]
        if not plans and not coming:
            break
    assert not plans
    assert scheduler.pool.used_count == 0
    assert not scheduler.running
    assert not scheduler.waiting
    assert all(scheduler.pool.holders(page) == 0 for page in range(limits.page_count))
    assert scheduler.states is None or scheduler.states.pool.used_count == 0
