"""What drafts may cost, on a machine whose clock is the test's."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from app.engine.generation import Generation
from app.engine.model_runner import Batch
from app.engine.scheduling.sequence import SequenceState, Step
from app.engine.speculative.draft_source import DraftToken
from app.engine.speculative.model_drafts import DraftCost
from app.engine.speculative.probe_budget import ProbeBudget
from app.engine.speculative.speculation import Speculation
from app.messages.requests import GenerateRequest, SamplingParams
from tests.fakes import FakeSampler

STEP_S, ROW_S, DRAFT_S, FOLLOWED_S = 0.1, 0.002, 0.008, 0.001
RIGHT, WRONG = 1, 2


@dataclass
class Machine:
    """One target with its source, which drafts wrong tokens unless told else, and one answer."""

    expected_tokens: int = 1000
    is_right: bool = False
    slowness: float = 1.0
    behind: int = 0
    kind: str = "model"
    most_tokens: int = 8
    cost_share: float = 0.1
    row_s: float = ROW_S
    prompt_token_s: float = STEP_S / 8
    now_s: float = 0.0
    drafted: int = 0
    rows: int = 0
    """Of the last step."""
    filled: bool = False
    """Whether something was computed before it."""
    followed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.speculation = Speculation(0, None, self, lambda _: self.expected_tokens, lambda: self.now_s)
        sampling = SamplingParams(temperature=0.0)
        request = GenerateRequest("one", (1, 2, 3), 1 << 20, sampling, tenant=b"")
        sampler = FakeSampler(10, (), sampling, 0)
        self.generation = Generation.of(request, sampler, lambda _: None, "one", page_tokens=4, salt=None)
        self.generation.may_draft = True
        self.generation.sequence.slot = 0
        self.generation.sequence.computed = 2

    def lag(self, generation: Generation) -> int:
        return self.behind

    def follow(self, generation: Generation, tokens: int) -> None:
        self.followed.append(tokens)
        self.behind -= tokens
        self.now_s += FOLLOWED_S * tokens * self.slowness

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        self.drafted += 1
        self.now_s += DRAFT_S * self.slowness
        return [DraftToken(RIGHT if self.is_right else WRONG, 0.7)]

    def forget(self, sequence: SequenceState) -> None:
        raise AssertionError

    clear = release_memory = cast("Any", forget)

    def pause(self, sequence: SequenceState) -> None:
        raise AssertionError

    def step(self, prompt: int = 0, *, is_interrupted: bool = False) -> float:
        """Returns the seconds that it took beyond a step without drafts.

        prompt: its tokens, of another one. is_interrupted: if something was drafted, in which case all was for nothing.
        """
        sequence, generations = self.generation.sequence, {self.generation.sequence: self.generation}
        began_s = self.now_s
        step = Step([sequence], [1], 0, [True])
        if prompt:
            sequence.computed = sequence.length - prompt
            step.query_lengths, step.prompts = [prompt], 1
        self.speculation.draft([sequence], generations, 100)
        step.query_lengths[0] += sequence.drafts
        self.filled = self.speculation.fills(step, generations)
        if self.filled:
            self.speculation.fill(step)
        rows = self.rows = sum(step.query_lengths)
        if is_interrupted and rows > 1:
            return self.now_s - began_s
        plain_s = (prompt * self.prompt_token_s or STEP_S) * self.slowness
        seconds = plain_s + (0 if prompt else self.row_s * (rows - 1) * self.slowness)
        self.now_s += seconds
        lengths = np.array([0 if prompt else rows - 1], np.int32)
        batch = SimpleNamespace(token_ids=np.zeros(rows, np.int32), draft_lengths=lengths)
        self.speculation.record(step, cast("Batch", batch), seconds)
        drafts = self.generation.draft_tokens[: 0 if prompt else rows - 1]
        right = len(drafts) if self.is_right else 0
        tokens = [RIGHT] * (right + 1) + [-1] * (len(drafts) - right)
        taken = self.speculation.accept(step, tokens)
        sequence.length += len(taken[0][1])
        sequence.computed = sequence.length - 1
        return self.now_s - began_s - plain_s


def warm(machine: Machine) -> Machine:
    """Returns it with all times measured."""
    for number in range(300):
        if number == 100 and machine.is_right:
            machine.behind = 64
        machine.step()
    return machine


def no_change(number: int) -> float:
    return 1.0


def slows_down(number: int) -> float:
    """And again up to its old speed."""
    return 1.0 if number // 90 % 2 else 1.3


@pytest.mark.parametrize(("slowness", "most"), [(no_change, 0.01), (slows_down, 0.015)])
def test_wrong_drafts_take_one_per_cent_of_the_time(slowness: Callable[[int], float], most: float) -> None:
    """Of the time of any 100 steps, after the first ones; and somewhat more only while the speed changes."""
    machine, lost, plain = warm(Machine()), [], []
    for number in range(700):
        machine.slowness = slowness(number)
        lost.append(machine.step())
        plain.append(STEP_S * machine.slowness)
    for begin in range(len(lost) - 99):
        assert sum(lost[begin : begin + 100]) <= most * sum(plain[begin : begin + 100]) + 1e-9
    assert sum(lost) > 0.002 * sum(plain), "they are still tried"


def test_drafts_that_become_right_are_found_and_made() -> None:
    machine = warm(Machine())
    machine.is_right = True
    for _ in range(600):
        machine.step()
    assert machine.step() > 0
    assert len(machine.generation.draft_tokens) >= 4


def test_a_long_time_without_drafts_saves_nothing_for_later() -> None:
    machine = warm(Machine())
    machine.generation.may_draft = False
    for _ in range(500):
        machine.step()
    machine.generation.may_draft = True
    assert sum(machine.step() for _ in range(100)) <= 0.01 * 100 * STEP_S + 1e-9


def test_a_text_is_followed_in_a_share_of_the_steps_time() -> None:
    machine = warm(Machine(is_right=True))
    machine.followed.clear()
    machine.behind = 1000
    steps = 0
    while machine.behind:
        assert machine.step() <= 1.02 * FOLLOWED_S * 32 + 0.1 * STEP_S
        steps += 1
    assert steps < 1000 * FOLLOWED_S / (0.09 * STEP_S)
    assert min(machine.followed[:-1]) >= 32


@pytest.mark.parametrize(("expected_tokens", "is_right"), [(16, True), (1000, False)])
def test_a_text_is_not_followed_for_a_short_answer_or_wrong_drafts(expected_tokens: int, is_right: bool) -> None:
    machine = warm(Machine(is_right=is_right))
    machine.expected_tokens, machine.behind = expected_tokens, 1000
    machine.followed.clear()
    for _ in range(100):
        machine.step()
    assert sum(machine.followed) == 0


@pytest.mark.parametrize(("expected_tokens", "follows"), [(1000, True), (2, False)])
def test_a_prompt_is_followed_beside_its_own_steps(expected_tokens: int, follows: bool) -> None:
    """In a share of their time, and before the first token of its answer."""
    machine = warm(Machine(is_right=True))
    machine.step(prompt=64)  # how long prompts take is measured
    machine.expected_tokens, machine.behind = expected_tokens, 256
    machine.followed.clear()
    for _ in range(4):
        assert machine.step(prompt=64) <= 0.1 * 64 / 8 * STEP_S * 1.02
    assert machine.behind == (0 if follows else 256)


def test_following_takes_a_tenth_of_steps_whose_prompt_tokens_take_different_times() -> None:
    """As where a step of few of them has many answers beside."""
    machine = warm(Machine(is_right=True))
    machine.step(prompt=64)
    lost = plain = 0.0
    for number in range(40):
        tokens, machine.prompt_token_s = ((4, 0.1), (512, 0.002))[number % 2]
        machine.behind = 2000
        lost += machine.step(prompt=tokens)
        plain += tokens * machine.prompt_token_s
    assert 0.05 * plain < lost <= 0.1 * (plain + 64 / 8 * STEP_S) + 1e-9


def test_a_prompt_step_without_anything_to_follow_computes_nothing_before() -> None:
    machine = warm(Machine(is_right=True))
    machine.step(prompt=64)
    machine.step(prompt=64)
    assert not machine.filled


def test_what_long_prompts_need_is_saved_up_until_one_is_read() -> None:
    """Where drafts were wrong and each answer begins with a text that a draft model must read first."""
    machine = warm(Machine())
    machine.is_right, machine.behind = True, 2000
    machine.followed.clear()
    drafted, steps, lost = machine.drafted, 0, 0.0
    while machine.drafted == drafted:
        more_s = machine.step()
        assert more_s <= STEP_S + FOLLOWED_S * 32, "no long pause"
        lost += more_s
        steps += 1
        assert steps < 6000
    assert sum(machine.followed) == 2000
    assert lost <= 0.01 * steps * STEP_S
    for _ in range(600):
        machine.step()
    assert len(machine.generation.draft_tokens) >= 4, "it has seen that they are right"


def test_one_text_uses_up_what_was_saved_for_reading() -> None:
    budget = ProbeBudget()
    for _ in range(3):
        assert not budget.allows_reading(2.0)
        for _ in range(260):
            budget.stepped(1.0)
        assert budget.allows_reading(2.0)
        budget.spend_reading(1.0, is_done=False)
        assert budget.allows_reading(1.0), "it can be read to its end"
        budget.spend_reading(0.5, is_done=True)
        assert not budget.allows_reading(0.1)


def test_drafts_end_when_steps_of_many_rows_get_dearer_while_they_are_made() -> None:
    """Though no other steps are made, so that all steps might have got slower."""
    machine = warm(Machine(is_right=True))
    machine.row_s = 1.5 * STEP_S
    rows = []
    for _ in range(400):
        machine.step()
        rows.append(machine.rows)
    assert rows.count(1) > 50


def test_an_interrupted_probe_counts_as_spent() -> None:
    machine = warm(Machine())
    for _ in range(100):
        machine.step()
    began_s, drafted = machine.now_s, machine.drafted
    for _ in range(1000):
        machine.step(is_interrupted=True)
    assert 0 < (machine.drafted - drafted) * DRAFT_S <= 0.011 * (machine.now_s - began_s)


def test_a_probe_that_is_only_planned_is_made_later() -> None:

    def rows_of_probes(planned: int) -> list[int]:
        machine, rows = Machine(), []
        generation = machine.generation
        for _ in range(planned):
            machine.speculation.draft([generation.sequence], {generation.sequence: generation}, 100)
        for _ in range(6):
            machine.step()
            rows.append(machine.rows)
        return rows

    assert min(rows_of_probes(0)) > 1
    assert rows_of_probes(10) == rows_of_probes(0)


def test_what_random_texts_taught_is_forgotten() -> None:
    machine = warm(Machine())
    drafted = machine.drafted
    machine.speculation.forget_chances()
    assert machine.speculation._model is not None
    machine.speculation._model.forget(machine.generation.sequence)
    machine.step()
    assert machine.drafted > drafted
    assert machine.rows > 2


def test_a_source_that_fails_is_still_asked_to_give_its_memory_back() -> None:
    machine, released = Machine(), []
    machine.release_memory = lambda: released.append(True)
    for _ in range(2):
        machine.speculation.forget(machine.generation.sequence)
    assert machine.speculation.has_failed
    machine.speculation.release_memory()
    assert released


def test_a_failure_leaves_no_drafts_of_a_sequence_that_the_step_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It found no page, or was preempted; otherwise it would have rows for drafts that nobody makes."""

    def fail(_: Sequence[Generation]) -> None:
        raise ValueError("it can not draft")

    machine, other = Machine(), Machine()
    monkeypatch.setattr(machine, "draft", fail)
    generations = {one.generation.sequence: one.generation for one in (machine, other)}
    computed, left_out = generations
    machine.speculation.draft([computed, left_out], generations, 100)
    assert left_out.drafts > 0
    step = Step([computed], [1 + computed.drafts], 0, [True])
    assert machine.speculation.fills(step, generations)
    machine.speculation.fill(step)
    assert machine.speculation.has_failed
    assert step.query_lengths == [1]
    assert (computed.drafts, left_out.drafts) == (0, 0)


def test_sequences_that_stand_still_are_paused_once() -> None:
    paused: list[SequenceState] = []
    machine = Machine()
    machine.pause = paused.append  # type: ignore[method-assign,assignment]
    still = [machine.generation.sequence]
    for sequences in ([], still, still, [], still):
        machine.speculation.pause(sequences)
    assert paused == 2 * still


def test_rows_that_took_long_for_a_while_are_soon_tried_again() -> None:
    machine = warm(Machine(is_right=True))
    for _ in range(40):
        for rows, seconds in ((1, 1.0), (2, 1.0), (1, 1.0), (3, 1.7)):
            machine.speculation._cost.record(rows, seconds * STEP_S)
    counts = Counter[int]()
    for _ in range(150):
        machine.step()
        counts[machine.rows] += 1
    assert counts[3] > 100
    assert counts[4] > 0


def test_the_fastest_of_the_first_drafts_counts_also_where_they_take_longer_than_a_step() -> None:
    cost = DraftCost()
    for share in (9.0, 9.0, 1.5, 1.4, 1.6):
        cost.record(1, share)
    assert cost.share(1, 0.1) == pytest.approx(1.4)
