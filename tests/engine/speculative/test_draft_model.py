from collections.abc import Sequence
from dataclasses import replace
from random import Random
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.generation import Generation
from app.engine.model_runner import TokenSampler
from app.engine.scheduling.sequence import SequenceState, Step
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.probe_budget import ProbeBudget
from app.engine.speculative.speculation import Speculation
from app.messages.requests import ContextWindow, GenerateRequest, SamplingParams
from tests.app.memory.pages import grant_for
from tests.engine.memory.stores import DictStore
from tests.engine.test_engine import SPARE_STATE_PAGES, WINDOWS, Receiver, spoil_free_states, state_pages_of
from tests.fakes import FakeDraftSampler, FakeRunner, FakeSampler
from tests.sizes import examples

pytestmark = pytest.mark.usefixtures("drafts_seem_cheap")


class FakeDraftRunner(FakeRunner):
    """Draws as the target does, but for a share of the tokens, which is sure of every token."""

    def __init__(self, *, right: float, **options: Any) -> None:
        super().__init__(**options)
        self.right, self.random = right, Random(7)

    def _sample(self, slot: int, context: int, length: int, sampler: TokenSampler, state: int) -> int:
        token = super()._sample(slot, context, length, sampler, state)
        assert isinstance(sampler, FakeDraftSampler)
        sampler.probability = 0.9
        return token if self.random.random() < self.right else (token + 1) % self.vocab_size


def drafting(draft: FakeRunner, most_tokens: int = 5) -> DraftModel:
    return DraftModel(draft, target_vocab_size=draft.vocab_size, most_tokens=most_tokens, cost_share=0.02)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40), st.sampled_from([None, 1, 2]), st.integers(0, 60)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.sampled_from([0, 4]),
    st.integers(1, 6),
    st.integers(0, 30),
    st.integers(1, 60),
    WINDOWS,
    SPARE_STATE_PAGES,
)
def test_outputs_are_the_same_with_a_draft_model(
    plans: list[tuple[int, int, int | None, int]],
    right: float,
    guess_tokens: int,
    max_sequences: int,
    more_pages: int,
    draft_pages: int,
    windows: tuple[int, ...],
    spare: int | None,
) -> None:
    """Whatever it drafts, with few pages for either model, preemptions, and prompts that begin alike."""
    runner = FakeRunner(
        kv_pages=len(windows) * 28 + more_pages,
        max_sequences=max_sequences,
        group_windows=windows,
        state_pages=state_pages_of(max_sequences, spare),
        vocab_size=400,
    )
    draft = FakeDraftRunner(right=right, kv_pages=draft_pages, max_context_tokens=100, vocab_size=390)
    engine = Engine(runner, expected_output_tokens=1, guess_tokens=guess_tokens, drafts=drafting(draft))
    spoil_free_states(engine)
    text = Random(1).choices(range(400), k=100)
    requests = [
        GenerateRequest(
            f"{number}",
            tuple(text[:shared] + Random(number).choices(range(400), k=length))[:60],
            new_tokens,
            SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed),
            frozenset({7}),
            tenant=b"",
        )
        for number, (length, new_tokens, seed, shared) in enumerate(plans)
    ]
    receiver = Receiver()
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    released = engine.release_memory()
    assert released.result()
    engine.stop()
    counts = engine.statistics()
    assert counts.pages_used == 0
    assert all(0 <= accepted <= drafted for drafted, accepted in counts.drafts.values())


@pytest.mark.parametrize(("right", "seed"), [(1.0, None), (1.0, 3), (0.8, None)])
def test_right_drafts_save_steps(right: float, seed: int | None) -> None:
    runner, draft = FakeRunner(), FakeDraftRunner(right=right)
    engine, receiver = Engine(runner, drafts=drafting(draft)), Receiver()
    sampling = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed)
    request = GenerateRequest("one", tuple(range(40)), 80, sampling, tenant=b"")
    receiver.submit(engine, request)
    engine.start()
    assert receiver.tokens("one") == runner.expected_tokens(request)
    engine.stop()
    drafted, accepted = engine.statistics().drafts["model"]
    assert runner.steps == 2 + 80 - 1 - accepted  # the prompt takes two
    if right == 1:
        assert accepted == drafted
        assert runner.steps < 80 / 4
    else:
        assert runner.steps < 60


def test_drafts_that_are_wrong_are_not_made() -> None:
    runner, draft = FakeRunner(max_context_tokens=400, kv_pages=100), FakeDraftRunner(right=0.0, max_context_tokens=400)
    engine, receiver = Engine(runner, drafts=drafting(draft)), Receiver()
    request = GenerateRequest("one", tuple(range(10)), 300, SamplingParams(temperature=0.0), tenant=b"")
    receiver.submit(engine, request)
    engine.start()
    assert receiver.tokens("one") == runner.expected_tokens(request)
    engine.stop()
    assert engine.statistics().drafted_tokens < 100


class StrictDraftRunner(FakeDraftRunner):
    """Refuses what is not in its vocabulary, as a native one does."""

    def make_draft_sampler(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, seed: int
    ) -> FakeDraftSampler:
        if max((*prompt_token_ids, *sampling.logit_bias)) >= self.vocab_size:
            raise ValueError("a token is not in the vocabulary")
        return super().make_draft_sampler(prompt_token_ids, sampling, seed)


def generations_of(names: Sequence[str]) -> list[Generation]:
    """Of the same prompt of 30 tokens."""
    sampling, made = SamplingParams(temperature=0.0), []
    for name in names:
        request = GenerateRequest(name, tuple(range(30)), 10, sampling, tenant=b"")
        sampler = FakeSampler(100, (), sampling, 0)
        made.append(Generation.of(request, sampler, lambda _: None, name, page_tokens=4, salt=None))
    return made


def texts_with(drafts: DraftModel | None, requests: Sequence[GenerateRequest]) -> tuple[list[Any], int]:
    """The texts, and how many tokens were drafted. The engine still runs then."""
    engine, receiver = Engine(FakeRunner(vocab_size=400), drafts=drafts), Receiver()
    engine.start()
    texts = []
    for request in requests:
        receiver.submit(engine, request)
        texts.append(receiver.tokens(request.request_id))
    assert engine.healthy
    engine.stop()
    return texts, engine.statistics().drafted_tokens


def test_a_context_that_is_shifted_has_no_more_drafts() -> None:
    window = ContextWindow(tokens=32, keep_tokens=4, discard_tokens=8)
    sampling = SamplingParams(temperature=0.0)
    request = GenerateRequest("one", tuple(range(10)), 100, sampling, tenant=b"", window=window)
    alone, _ = texts_with(None, [request])
    drafted, count = texts_with(drafting(FakeDraftRunner(right=1.0, vocab_size=400)), [request])
    assert drafted == alone
    assert 10 < count < 32


def test_what_the_draft_model_does_not_know_is_not_drafted_for() -> None:
    strange = GenerateRequest(
        "biased", (1, 2, 3), 30, SamplingParams(temperature=0.0, logit_bias={395: -1.0}), tenant=b""
    )
    requests = [strange, GenerateRequest("prompt", (1, 395, 3), 30, SamplingParams(temperature=0.0), tenant=b"")]
    alone, _ = texts_with(None, requests)
    source = DraftModel(
        StrictDraftRunner(right=1.0, vocab_size=390), target_vocab_size=400, most_tokens=5, cost_share=0.02
    )
    assert texts_with(source, requests) == (alone, 0)


@pytest.mark.parametrize("method", ["draft", "lag", "follow", "forget"])
def test_a_source_that_fails_is_not_asked_again(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fail(*_: Any) -> None:
        asked.append(1)
        raise ValueError("it can not draft")

    source = drafting(FakeDraftRunner(right=1.0, vocab_size=400))
    monkeypatch.setattr(source, method, fail)
    requests = [
        GenerateRequest(f"{number}", tuple(range(number + 25)), 20, SamplingParams(temperature=0.0), tenant=b"")
        for number in range(2)
    ]
    alone, _ = texts_with(None, requests)
    texts, drafted = texts_with(source, requests)
    assert texts == alone
    assert (drafted > 0) == (method == "forget")
    assert asked == [1]


def test_a_failure_while_sequences_are_preempted_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(_: SequenceState) -> None:
        raise ValueError("it can not forget")

    runner = FakeRunner(max_sequences=4, kv_pages=20)
    source = drafting(FakeDraftRunner(right=1.0))
    monkeypatch.setattr(source, "forget", fail)
    engine = Engine(runner, expected_output_tokens=1, drafts=source, prefix_cache=False)
    requests = [
        GenerateRequest(f"{number}", tuple(range(20)), 40, SamplingParams(temperature=1.0, seed=number), tenant=b"")
        for number in range(3)
    ]
    receiver = Receiver()
    for request in requests:
        receiver.submit(engine, request)
    engine.start()
    for request in requests:
        assert receiver.tokens(request.request_id) == runner.expected_tokens(request)
    assert engine.healthy
    engine.stop()
    counts = engine.statistics()
    assert counts.preemptions > 0
    assert counts.drafts_failed


def test_a_probe_that_is_preempted_gets_nothing_of_the_draft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may never run again, and then nobody would give it back."""
    monkeypatch.setattr("app.engine.speculative.model_drafts._FREE_PROBES", 0)
    monkeypatch.setattr(ProbeBudget, "allows_reading", lambda *_: True)
    source = drafting(FakeDraftRunner(right=1.0))
    source.cost_share = 2.0  # drafts seem to cost more than they save: only probes are made
    speculation = Speculation(0, None, source, lambda _: 1)
    probed, other = generations_of(["probed", "other"])
    probed.may_draft = True
    probed.sequence.slot, probed.sequence.computed = 0, len(probed.tokens) - 1
    generations = {each.sequence: each for each in (probed, other)}
    speculation.draft([probed.sequence], generations, 100)
    assert source._texts.keys() == {probed.sequence}
    speculation.forget(probed.sequence)
    probed.sequence.slot = -1
    step = Step([other.sequence], [1], 0, [True])
    assert speculation.fills(step, generations), "the probe is planned"
    speculation.fill(step)
    assert not speculation.has_failed
    assert source._texts == {}
    assert len(source._free_slots) == 8


def test_a_prompt_that_begins_alike_is_read_once() -> None:
    runner, draft = FakeRunner(), FakeDraftRunner(right=1.0)
    engine, receiver = Engine(runner, drafts=drafting(draft)), Receiver()
    engine.start()
    for number in range(2):
        receiver.submit(engine, GenerateRequest(f"{number}", tuple(range(60)), 8, SamplingParams(seed=1), tenant=b""))
        receiver.tokens(f"{number}")
    engine.stop()
    assert sum(draft.step_tokens) < 60 + 2 * 8 + 4


def test_a_draft_model_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="neither page groups nor recurrent states"):
        drafting(FakeRunner(group_windows=(0, 5)))
    with pytest.raises(ValueError, match="at least 1 token, not 0"):
        drafting(FakeRunner(), most_tokens=0)


def pages_of(draft: FakeRunner) -> int:
    """How many pages have tokens of a prompt 0, 1, 2 .. 39."""
    return sum(row[0] + 1 == row[1] < 40 for row in draft._pages.tolist())


@pytest.mark.parametrize("clears", ["after it", "while it runs"])
def test_nothing_is_left_of_a_user_who_has_left(clears: str) -> None:
    """Texts of users whose pages are saved are cached too, until their pages are removed from memory."""
    released = Event()
    runner, draft = FakeRunner(), FakeDraftRunner(right=1.0)
    if clears == "while it runs":
        runner.before_step = lambda _: None if runner.steps < 5 else (released.wait(60), None)[1]
    source, store = drafting(draft), DictStore(runner.gathered_page_bytes)
    engine, receiver = Engine(runner, drafts=source, page_store=store), Receiver()
    engine.start()
    request = GenerateRequest("1", tuple(range(40)), 20, SamplingParams(seed=1), tenant=b"", memory=grant_for("ada"))
    other = replace(request, request_id="2", prompt_token_ids=tuple(range(60, 90)), memory=grant_for("bob"))
    memory = engine.memory
    assert memory is not None
    receiver.submit(engine, other)
    if clears == "while it runs":
        receiver.submit(engine, request)
        cleared = memory.clear(grant_for("ada").owner)
        released.set()
        cleared.result(60)
        receiver.tokens("1")
    else:
        for name in ("1", "again"):
            receiver.submit(engine, replace(request, request_id=name))
            receiver.tokens(name)
        assert sum(draft.step_tokens) < 30 + 60 + 3 * 20 + 10, "its prompt is read once"
        assert pages_of(draft) > 8
        memory.clear(grant_for("ada").owner).result(60)
    receiver.tokens("2")
    engine.stop()
    store.close()
    assert engine.statistics().drafted_tokens > 0
    assert source._pool.used_count == 0
    assert (60, 61, 62, 63) in set(map(tuple, draft._pages.tolist())), "another user's"
    assert pages_of(draft) == 0


def test_a_sequence_that_has_ended_holds_nothing() -> None:
    """Without another step."""
    runner, draft = FakeRunner(), FakeDraftRunner(right=1.0)
    source = drafting(draft)
    engine, receiver = Engine(runner, drafts=source, prefix_cache=False), Receiver()
    engine.start()
    receiver.submit(engine, GenerateRequest("1", tuple(range(40)), 20, SamplingParams(seed=1), tenant=b""))
    receiver.tokens("1")
    engine.stop()
    assert engine.statistics().drafted_tokens > 0
    assert (source._pool.used_count, source._pool.cached_count, source._texts) == (0, 0, {})
    assert len(source._free_slots) == draft.max_sequences


def test_a_sequence_that_stands_still_leaves_its_place_to_another() -> None:
    draft = drafting(FakeDraftRunner(right=1.0, max_sequences=1))
    still, other = generations_of(["still", "other"])
    assert draft.lag(still)
    draft.follow(still, 29)
    assert draft.lag(other) is None
    draft.pause(still.sequence)
    assert draft.lag(other)
