"""What drafts may cost, on a machine whose clock is the test's."""

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
    now_s: float = 0.0
    drafted: int = 0
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

    def step(self, prompt: int = 0) -> float:
        """Returns the seconds that it took beyond a step without drafts. prompt: its tokens, of another one."""
        sequence, generations = self.generation.sequence, {self.generation.sequence: self.generation}
        began_s = self.now_s
        step = Step([sequence], [1], 0, [True])
        if prompt:
            sequence.computed = sequence.length - prompt
            step.query_lengths, step.prompts = [prompt], 1
        self.speculation.draft([sequence], generations, 100)
        step.query_lengths[0] += sequence.drafts
        if self.speculation.fills(step):
            self.speculation.fill(step, generations)
        rows = sum(step.query_lengths)
        plain_s = STEP_S * (prompt / 8 or 1) * self.slowness
        seconds = plain_s + (0 if prompt else ROW_S * (rows - 1) * self.slowness)
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
