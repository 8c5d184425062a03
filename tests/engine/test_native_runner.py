"""The engine on the native model: whatever else is in its steps, a request gets the tokens it would get alone."""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.engine import Engine
from app.engine.generation import Event
from app.engine.model_runner import Batch, ModelRunner, TokenConstraint
from app.engine.native_runner import NativeRunner, kv_pages_within
from app.messages.failures import ConstraintError
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest, SamplingParams
from kernels import _native
from tests.kernels.tiny_model import LLAMA, write_random_model

VOCAB_SIZE: int = LLAMA["vocab_size"]
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_random_model(tmp_path_factory.mktemp("tiny") / "model", LLAMA, "sym_int4"))


def make_runner(
    folder: str, *, kv_pages: int = 32, threads: int = 1, step_tokens: int = 64, kv_type: str = "bf16"
) -> NativeRunner:
    return NativeRunner(
        folder,
        threads=threads,
        kv_type=kv_type,
        kv_pages=kv_pages,
        max_sequences=4,
        max_step_tokens=step_tokens,
        max_context_tokens=256,
    )


def requests() -> list[GenerateRequest]:
    random = Random(0)
    made = []
    for number, (prompt_tokens, new_tokens) in enumerate([(5, 110), (20, 100), (33, 90), (90, 30), (1, 120)]):
        prompt = tuple(random.choices(range(VOCAB_SIZE), k=prompt_tokens))
        sampling = SamplingParams(temperature=0.0 if number % 2 else 1.0, top_p=0.9, seed=number)
        made.append(GenerateRequest(str(number), prompt, new_tokens, sampling, tenant=b""))
    return made


def generate(
    runner: ModelRunner,
    wanted: Sequence[GenerateRequest],
    *,
    constraints: Mapping[str, TokenConstraint] = MappingProxyType({}),
    deltas: list[tuple[object, TokenDelta]] | None = None,
) -> tuple[dict[object, list[int]], int]:
    """Each request's tokens, all running at once, and how often one was preempted."""
    events: queue.Queue[tuple[object, Event]] = queue.Queue()

    def deliver(new: Sequence[tuple[object, Event]]) -> None:
        for event in new:
            events.put(event)

    engine = Engine(runner, prompt_chunk_tokens=32, expected_output_tokens=1)  # admits too many
    try:
        for request in wanted:
            engine.submit(request, deliver, request.request_id, constraints.get(request.request_id))
        engine.start()  # only now: otherwise a busy machine would run them one after the other
        tokens: dict[object, list[int]] = {request.request_id: [] for request in wanted}
        ended = 0
        while ended < len(wanted):
            name, event = events.get(timeout=TIMEOUT_S)
            assert isinstance(event, TokenDelta), event
            tokens[name] += event.token_ids
            if deltas is not None:
                deltas.append((name, event))
            ended += event.finish_reason is not None
        return tokens, engine.statistics().preemptions
    finally:
        engine.stop()


@pytest.mark.parametrize("kv_type", ["int16", "bf16", "int8"])
def test_outputs_together_preempted_and_on_two_threads_are_those_alone(folder: str, kv_type: str) -> None:
    alone = {}
    for request in requests():
        alone.update(generate(make_runner(folder, kv_type=kv_type), [request])[0])
    assert all(len(alone[r.request_id]) == r.max_new_tokens for r in requests())

    together, _ = generate(make_runner(folder, threads=2, kv_type=kv_type), requests())
    assert together == alone
    crowded, preemptions = generate(make_runner(folder, kv_pages=9, step_tokens=40, kv_type=kv_type), requests())
    assert preemptions > 0
    assert crowded == alone


def test_every_sampling_option_reaches_the_sampler(folder: str) -> None:
    runner = make_runner(folder)
    logits = np.zeros(VOCAB_SIZE, np.float32)
    bias = SamplingParams(temperature=0.0, logit_bias={7: 5.0})
    first = runner.make_sampler([1, 2], bias, seed=0)
    assert isinstance(first, _native.Sampler)
    assert first.sample(logits) == 7
    penalty = runner.make_sampler([1], SamplingParams(temperature=0.0, frequency_penalty=1.0), seed=0)
    assert isinstance(penalty, _native.Sampler)
    assert [penalty.sample(logits) for _ in range(3)] == [0, 1, 2]
    for bad, option in [
        (SamplingParams(temperature=-1), "temperature"),
        (SamplingParams(top_k=-1), "top_k"),
        (SamplingParams(top_p=-1), "top_p"),
        (SamplingParams(min_p=-1), "min_p"),
        (SamplingParams(repetition_penalty=-1), "repetition_penalty"),
    ]:
        with pytest.raises(ValueError, match=option):
            runner.make_sampler([1], bad, seed=0)


def test_samplers_of_another_runner_are_refused(folder: str) -> None:
    class Other:
        def remember(self, tokens: Any) -> None:
            return None

        def take_scores(self) -> Any:
            return None

    runner = make_runner(folder)
    one = np.zeros(1, np.int32)
    with pytest.raises(TypeError, match="Other"):
        runner.step(Batch(one, one, one, one + 1, one, [Other()]))


def test_pages_within_a_budget(folder: str) -> None:
    page_bytes = _native.Model.kv_page_bytes(folder, "bf16")
    assert kv_pages_within(folder, "bf16", 10 * page_bytes + 1) == 10
    with pytest.raises(ValueError, match="memory_bytes"):
        kv_pages_within(folder, "bf16", page_bytes - 1)


def test_int8_pages_are_nearly_twice_as_many(folder: str) -> None:
    """Scales take 2 bytes per token and head beside head_dim bytes: here 16, in real models 64 or 128."""
    budget = 1000 * _native.Model.kv_page_bytes(folder, "bf16")
    assert kv_pages_within(folder, "int8", budget) == 1000 * 32 // 18


def test_int8_pages_hold_more_requests_in_the_same_memory(folder: str) -> None:
    """With bf16 pages requests are preempted; the same bytes of int8 pages hold them all."""
    budget = 12 * _native.Model.kv_page_bytes(folder, "bf16")
    preemptions = {}
    for kv_type in ("bf16", "int8"):
        pages = kv_pages_within(folder, kv_type, budget)
        _, preemptions[kv_type] = generate(make_runner(folder, kv_pages=pages, kv_type=kv_type), requests())
    assert preemptions["bf16"] > 0
    assert preemptions["int8"] == 0


class OnlyMultiples:
    """Allows multiples of a number, and fails after some tokens."""

    def __init__(self, factor: int, fail_after: int = 1000) -> None:
        self.factor = factor
        self.left = fail_after
        self.error: str | None = None

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        mask[:] = 0
        for token in range(0, VOCAB_SIZE, self.factor):
            mask[token // 32] |= np.uint32(1 << token % 32)

    def follows(self, tokens: Sequence[int]) -> int:
        return next((place for place, token in enumerate(tokens) if token % self.factor), len(tokens))

    def forced(self) -> Sequence[int]:
        return ()

    def copy(self) -> "OnlyMultiples":
        return OnlyMultiples(self.factor, self.left)

    def accept(self, token: int) -> None:
        assert token % self.factor == 0
        self.left -= 1
        if self.left < 0:
            self.error = "too complex"


def test_constraints_hold_through_preemption_and_affect_no_other_request(folder: str) -> None:
    alone = generate(make_runner(folder), [requests()[1]])[0]
    crowded, preemptions = generate(
        make_runner(folder, kv_pages=9, step_tokens=40),
        requests(),
        constraints={"0": OnlyMultiples(7), "3": OnlyMultiples(5)},
    )
    assert preemptions > 0
    assert all(token % 7 == 0 for token in crowded["0"])
    assert len(crowded["0"]) == 110
    assert all(token % 5 == 0 for token in crowded["3"])
    assert crowded["1"] == alone["1"]


def test_a_constraint_that_fails_ends_its_request_only(folder: str) -> None:
    events: queue.Queue[tuple[object, Event]] = queue.Queue()
    engine = Engine(make_runner(folder), prompt_chunk_tokens=32)

    def deliver(new: Sequence[tuple[object, Event]]) -> None:
        for event in new:
            events.put(event)

    for request in requests()[:2]:
        failing = OnlyMultiples(3, fail_after=4) if request.request_id == "0" else None
        engine.submit(request, deliver, request.request_id, failing)
    engine.start()
    try:
        last: dict[object, Event] = {}
        while len(last) < 2:
            name, event = events.get(timeout=TIMEOUT_S)
            if isinstance(event, Exception) or event.finish_reason:
                last[name] = event
        assert isinstance(last["0"], ConstraintError)
        assert isinstance(last["1"], TokenDelta)
    finally:
        engine.stop()


class HalfMasked(OnlyMultiples):
    """Fails when its mask is made after so many tokens."""

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        super().fill_mask(mask)
        if not self.left:
            self.error = "no mask"

    def accept(self, token: int) -> None:
        self.left -= 1

    def copy(self) -> "HalfMasked":
        return HalfMasked(self.factor, self.left)


@pytest.mark.parametrize(
    ("sampled", "left", "error"),
    [([3, 6, 9, 12], [3, 6, 9, -1], "no mask"), ([3, 9, -1, -1], [3, 9, -1, -1], None)],
)
def test_no_token_comes_after_one_drawn_with_a_mask_that_failed(
    folder: str, sampled: list[int], left: list[int], error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts 3, 6 and 9, and the mask after 6 can't be made: that matters only if both are right."""
    runner, constraint = make_runner(folder), HalfMasked(3, fail_after=2)
    monkeypatch.setattr(runner, "_step_native", lambda *_: np.array(sampled, np.int32))
    batch = SimpleNamespace(
        samplers=[runner.constrained(runner.make_sampler((1,), SamplingParams(), 0), constraint)],
        token_ids=np.array([1, 3, 6, 9], np.int32),
        query_lengths=np.array([4], np.int32),
        draft_lengths=np.array([3], np.int32),
    )
    found = runner.step(cast("Batch", batch))
    assert found is not None
    assert found.tolist() == left
    assert constraint.error == error


def test_scores_and_prompt_results_are_those_of_the_request_alone(folder: str) -> None:
    def wanted() -> list[GenerateRequest]:
        first, second, third, fourth, fifth = requests()
        scored = replace(first.sampling, logprobs=2)
        return [
            replace(first, sampling=scored, prompt_logprobs=3),
            replace(second, max_new_tokens=0, prompt_logprobs=0),
            third,
            replace(fourth, max_new_tokens=0, pooling="mean"),
            replace(fifth, sampling=replace(fifth.sampling, logprobs=0)),
        ]

    def results(runner: NativeRunner, each: Sequence[GenerateRequest]) -> dict[object, list[NDArray[np.generic]]]:
        deltas: list[tuple[object, TokenDelta]] = []
        generate(runner, each, deltas=deltas)
        found: dict[object, list[NDArray[np.generic]]] = {}
        for name, delta in deltas:
            arrays = found.setdefault(name, [])
            if delta.scores is not None:
                assert len(delta.scores.logprobs) == len(delta.token_ids)
                arrays.extend([delta.scores.logprobs, delta.scores.top_token_ids, delta.scores.top_logprobs])
            if delta.prompt is not None and delta.prompt.scores is not None:
                arrays.extend([delta.prompt.scores.logprobs, delta.prompt.scores.top_token_ids])
            if delta.prompt is not None and delta.prompt.embedding is not None:
                arrays.append(delta.prompt.embedding)
        return found

    alone = {}
    for request in wanted():
        alone.update(results(make_runner(folder), [request]))
    crowded = results(make_runner(folder, kv_pages=9, step_tokens=40, threads=2), wanted())
    assert [len(alone[name]) for name in "01234"] == [3 * 110 + 2, 2, 0, 1, 3 * 120]
    for name in "01234":
        assert len(crowded[name]) == len(alone[name])
        assert all(np.array_equal(a, b) for a, b in zip(crowded[name], alone[name], strict=True))
    assert np.linalg.norm(alone["3"][0].astype(np.float64)) == pytest.approx(1)
    assert alone["1"][0].shape == (19,)
