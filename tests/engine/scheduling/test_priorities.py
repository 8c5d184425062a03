"""Batches stand still while somebody waits for another sequence, and change neither its turn nor its steps."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.scheduling.limits import SchedulerLimits
from app.engine.scheduling.scheduler import Scheduler
from app.engine.scheduling.sequence import SequenceGroup, SequenceState
from tests.engine.scheduling.test_scheduler import (
    ARRIVALS,
    CHUNK_TOKENS,
    LIMITS,
    Arrival,
    check_memory,
    make_limits,
    run,
    shares,
)
from tests.sizes import examples


def of_batch(prompt_tokens: int, max_new_tokens: int) -> SequenceState:
    return SequenceState(prompt_tokens, max_new_tokens, is_batch=True)


def test_a_batch_stands_still_while_another_sequence_is_there() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(line := of_batch(4, 20))
    assert shares(run(scheduler)) == {line: 4}
    assert shares(run(scheduler)) == {line: 1}
    scheduler.add(chat := SequenceState(6, 2))
    scheduler.add(late := of_batch(4, 20))
    assert shares(run(scheduler)) == {chat: 6}
    assert shares(run(scheduler)) == {chat: 1}
    assert scheduler.running == [line]
    assert (line.length, line.computed) == (6, 5)  # it has kept what it had
    assert shares(run(scheduler)) == {line: 1, late: 4}


def test_prompts_of_batches_alone_have_a_bound_of_their_own() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.add(talker := of_batch(3, 50))
    run(scheduler)
    scheduler.add(line := of_batch(30, 5))
    assert shares(scheduler.schedule(CHUNK_TOKENS)) == {talker: 1, line: 30}  # nobody waits for the talker's tokens
    assert shares(scheduler.schedule(CHUNK_TOKENS, 20, 40)) == {talker: 1, line: 20}
    assert shares(scheduler.schedule(CHUNK_TOKENS, 20, 5)) == {talker: 1, line: 5}
    scheduler.add(chat := SequenceState(30, 5))
    assert shares(scheduler.schedule(CHUNK_TOKENS, None, 5)) == {chat: 30}


def test_a_batch_gives_its_slots_back() -> None:
    scheduler = Scheduler(make_limits(max_sequences=2))
    old, young = of_batch(4, 20), of_batch(4, 20)
    scheduler.add(old)
    scheduler.add(young)
    run(scheduler)
    scheduler.add(chat := SequenceState(6, 2))
    assert shares(run(scheduler)) == {chat: 6}
    assert scheduler.running == [chat, old]
    assert list(scheduler.waiting) == [young]
    run(scheduler)
    assert scheduler.running == [old]
    run(scheduler)
    assert scheduler.running == [old, young]
    assert scheduler.preemptions == 0  # none that an operator should know of


def test_a_search_of_a_batch_gives_its_slots_back_as_a_whole() -> None:
    scheduler = Scheduler(make_limits(max_sequences=4))
    root = of_batch(4, 20)
    root.group = SequenceGroup(3, [root])
    scheduler.add(root)
    step = scheduler.schedule(CHUNK_TOKENS)
    scheduler.complete(step)
    scheduler.fork(root.group, [(root, 5), (root, 5)])
    chats = [SequenceState(6, 2) for _ in range(4)]
    for chat in chats:
        scheduler.add(chat)
    step = scheduler.schedule(CHUNK_TOKENS)
    assert step.sequences == chats
    assert step.preempted_groups == [root.group]
    check_memory(scheduler)


def test_a_batch_gives_its_pages_back_before_a_prompt_is_cut() -> None:
    scheduler = Scheduler(make_limits(page_count=16, max_context_tokens=64), expected_output_tokens=1)
    old, young = of_batch(24, 20), of_batch(24, 20)  # six pages each
    scheduler.add(old)
    scheduler.add(young)
    while old.in_prompt or young.in_prompt:
        run(scheduler)
    scheduler.add(chat := SequenceState(28, 2))
    assert shares(run(scheduler)) == {chat: 28}
    assert scheduler.running == [chat, old]


def test_pages_of_batches_leave_the_cache_first() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.pool.release([*scheduler.pool.allocate(64)])
    chat, line = scheduler.pool.allocate(2), scheduler.pool.allocate(2)
    for page in (*chat, *line):
        scheduler.pool.cache(page, bytes([page]))
    scheduler.pool.release(chat)
    scheduler.pool.release(line, evict_first=True)
    assert scheduler.pool.allocate(64)[-4:] == [*line, *chat]


Steps = list[list[tuple[int, int]]]


def steps_of(limits: SchedulerLimits, arrivals: list[Arrival], chunk_tokens: int, batches: list[Arrival]) -> Steps:
    """For each step, which sequences of `arrivals` computed how many tokens, beside those of `batches`."""
    scheduler = Scheduler(limits, expected_output_tokens=2)
    numbers: dict[SequenceState, int] = {}
    plans: dict[SequenceState, Arrival] = {}
    steps: Steps = []
    for now in range(400):
        for number, arrival in enumerate(arrivals + batches):
            if arrival.at_step == now:
                sequence = SequenceState(arrival.prompt_tokens, arrival.max_new_tokens, caller=arrival.caller)
                sequence.is_batch = number >= len(arrivals)
                numbers[sequence], plans[sequence] = number, arrival
                scheduler.add(sequence)
        step = scheduler.schedule(chunk_tokens)
        check_memory(scheduler)
        scheduler.complete(step)
        steps.append([(numbers[each], count) for each, count in shares(step).items() if not each.is_batch])
        for sequence, sampled in zip(step.sequences, step.samples, strict=True):
            if sampled:
                sequence.length += 1
                if sequence.generated == min(plans[sequence].max_new_tokens, plans[sequence].stops_after):
                    scheduler.remove(sequence)
    return steps


@settings(max_examples=examples(100), deadline=None)
@given(LIMITS, ARRIVALS, st.integers(1, 16), ARRIVALS)
def test_batches_change_no_step_of_the_others(
    limits: SchedulerLimits, arrivals: list[Arrival], chunk_tokens: int, batches: list[Arrival]
) -> None:
    # Searches, aborts and shared pages aside: what batches have cached is a help.
    assert steps_of(limits, arrivals, chunk_tokens, batches) == steps_of(limits, arrivals, chunk_tokens, [])
