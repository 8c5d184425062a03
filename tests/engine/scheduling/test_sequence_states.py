from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.pages.page_groups import NONE
from app.engine.pages.page_names import PageChain
from app.engine.scheduling.limits import STATE_PAGES_EACH, SchedulerLimits
from app.engine.scheduling.sequence import SequenceState, Step
from app.engine.scheduling.sequence_states import SequenceStates
from tests.sizes import examples


def make_states(*, sequences: int = 2, spare: int = 20, page_tokens: int = 4) -> SequenceStates:
    return SequenceStates(
        SchedulerLimits(64, sequences, 1 << 20, page_tokens, 64, state_pages=STATE_PAGES_EACH * sequences + spare)
    )


def advance(states: SequenceStates, sequence: SequenceState, count: int, right: int | None = None) -> Step:
    """One step of so many tokens; of those beyond its length, `right` are right guesses."""
    step = Step()
    states.begin_step([sequence], step)
    count = states.fitting(sequence, count)
    guesses = max(sequence.computed + count - sequence.length, 0)
    states.claim(sequence, count, step)
    states.claim_cached(sequence, count, step)
    sequence.computed += count - guesses + min(guesses, right or 0)
    states.settle(sequence)
    sequence.length = max(sequence.length, sequence.computed + (right is not None))
    return step


def test_pages_inside_a_step_are_none_and_those_to_cache_are_there() -> None:
    states, text = make_states(), list(range(300))
    sequence = SequenceState(300, 5, PageChain(text, 4, b""))
    sequence.slot = 1
    step = advance(states, sequence, 202)
    table = {index: page for slot, index, page in step.new_state_pages if slot == 1}
    assert sorted(index for index, page in table.items() if page != NONE) == [15, 31, 47, 49, 50]
    assert set(table) == set(range(51))
    assert sorted(sequence.states) == [49, 50]
    assert (states.pool.used_count, states.pool.cached_count) == (2, 3)
    step = advance(states, sequence, 98)
    assert sorted(sequence.states) == [74]
    assert states.pool.cached_count == 5, "page 63, and page 73: an equal prompt must compute one token"
    sequence.length += 3
    for _ in range(3):
        advance(states, sequence, 1)
    states.release(sequence)
    assert states.pool.cached_count == 6, "the last full page"
    assert states.pool.has(PageChain(text, 4, b"").digest(74))


def test_what_is_cached_already_takes_no_page() -> None:
    states, text = make_states(spare=4), list(range(300))
    taken = []
    for _ in range(2):
        sequence = SequenceState(300, 5, PageChain(text, 4, b""))
        step = advance(states, sequence, 300)
        taken.append([index for _, index, page in step.new_state_pages if page != NONE])
        states.release(sequence)
    # The last ones, as there are only so many spare pages; the second time what was left out.
    assert taken == [[74, 73, 63, 47, 31], [74, 15]]
    assert states.pool.cached_count == 6


def test_without_spare_pages_a_step_ends_where_a_page_does() -> None:
    states = make_states(spare=2, sequences=4)
    step, greedy, other, aligned = Step(), SequenceState(100, 1), SequenceState(100, 1), SequenceState(100, 1)
    for sequence, computed in ((greedy, 6), (other, 6), (aligned, 8)):
        advance(states, sequence, computed)
    states.begin_step([greedy, other, aligned], step)
    for sequence, wanted, fitting in ((greedy, 41, 41), (other, 41, 2), (aligned, 41, 40)):
        assert states.fitting(sequence, wanted) == fitting
        states.claim(sequence, fitting, step)
    assert states.pool.free_count == 10 - 4 - 2 - 2


def test_branches_copy_what_they_write() -> None:
    states, step = make_states(sequences=3), Step()
    parent = SequenceState(6, 9)
    advance(states, parent, 6)
    children = [SequenceState(6, 9), SequenceState(6, 9)]
    for child in children:
        states.share(child, parent)
        child.computed, child.length = 6, 7
    parent.length = 7
    assert (states.pool.used_count, states.pool.repeat_count) == (2, 4)
    before = dict(parent.states)
    states.begin_step([parent, *children], step)
    assert [(index, page) for _, index, page in step.new_state_pages] == list(before.items()) * 2
    for sequence in (parent, *children):
        states.claim(sequence, 1, step)
    assert [source for source, _ in step.copied_state_pages] == [before[1]] * 2, "the last one keeps it"
    assert len({sequence.states[1] for sequence in (parent, *children)}) == 3
    assert {sequence.states[0] for sequence in (parent, *children)} == {before[0]}, "nobody writes to a full page"


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 1 << 20), st.integers(1, 6), st.integers(2, 9), st.booleans())
def test_a_sequence_holds_two_pages_between_steps_and_in_a_step_what_it_needs(
    seed: int, page_tokens: int, spare: int, cached: bool
) -> None:
    random, states = Random(seed), make_states(spare=spare, page_tokens=page_tokens)
    text = random.choices(range(9), k=600)
    sequence = SequenceState(random.randint(1, 150), 400, PageChain(text, page_tokens, b"") if cached else None)
    table: dict[int, int] = {}
    while sequence.length < 500:
        begin = sequence.computed
        if sequence.left > 1:
            step = advance(states, sequence, random.randint(1, sequence.left), None if sequence.left > 1 else 0)
            sequence.length += sequence.computed == sequence.length
        else:
            guesses = random.randint(0, 40)
            step = advance(states, sequence, 1 + guesses, random.randint(0, guesses))
        assert sequence.computed > begin
        table.update({index: page for _, index, page in step.new_state_pages})
        states.begin_step([sequence], Step())
        assert len(sequence.states) <= STATE_PAGES_EACH
        assert all(table[index] == page for index, page in sequence.states.items())
        filled = sequence.computed % page_tokens > 0
        last = sequence.computed // page_tokens
        assert set(sequence.states) == ({last - 1} if last else set()) | ({last} if filled else set())
        assert states.pool.used_count == len(sequence.states)
    states.release(sequence)
    assert states.pool.used_count == 0
    if cached:
        assert states.pool.has(PageChain(text, page_tokens, b"").digest(sequence.computed // page_tokens - 1))
