"""A native model drafts for itself: texts and their log-probabilities are the same to the last bit."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer

from app.engine.engine import Engine
from app.engine.generation import Generation
from app.engine.model_runner import TokenConstraint
from app.engine.native_runner import NativeRunner
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftToken
from app.messages.requests import GenerateRequest, SamplingParams
from app.workers.constraints import Constraints
from tests.engine.native_runs import Answer, answer_of, differences
from tests.engine.test_engine import Receiver
from tests.engine.test_resumed import SCHEMA

pytestmark = pytest.mark.usefixtures("drafts_seem_cheap")

TEXT = Path(__file__).parents[2] / "data" / "alice.txt"
Outputs = dict[str, Answer]


class SpoiltDrafts(DraftModel):
    """Some of the drafts are wrong."""

    random = Random(3)

    def draft(self, generations: Sequence[Generation]) -> list[DraftToken | None]:
        drafts = super().draft(generations)
        return [
            DraftToken((draft.token + 1) % 1000, draft.probability)
            if draft is not None and self.random.random() < 0.2
            else draft
            for draft in drafts
        ]


def make_runner(model: Path, **options: Any) -> NativeRunner:
    chosen: dict[str, Any] = {"kv_pages": 96, "max_sequences": 16, "max_step_tokens": 256}
    types = {"compute_type": "auto", "prompt_compute_type": "auto", "kv_type": "auto"}  # a service's defaults
    return NativeRunner(str(model), threads=2, max_context_tokens=256, **(types | chosen | options))


@pytest.fixture(scope="module")
def requests(engine_model: Path) -> list[GenerateRequest]:
    tokenizer = Tokenizer.from_file(str(engine_model / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids
    made = []
    for number, length in enumerate((31, 64, 33, 1, 97, 60) * 2):
        drawn = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, seed=number, frequency_penalty=0.2)
        sampling = (
            SamplingParams(temperature=0.0, logprobs=20 if number else None),
            drawn,
            SamplingParams(
                temperature=1.0,
                seed=number,
                logprobs=0,
                min_new_tokens=20,
                end_token_ids=frozenset({0, 2}),
                presence_penalty=0.5,
                repetition_penalty=1.2,
                logit_bias={ids[0]: 4.0, ids[1]: -100.0, ids[2]: 2.0},
            ),
        )[number % 3]
        prompt = tuple(ids[5 * (number // 2) : 5 * (number // 2) + length])
        made.append(GenerateRequest(f"{number}", prompt, 30 + number, sampling, frozenset({0, 2}), tenant=b""))
    return made


def run(
    requests: Sequence[GenerateRequest],
    runner: NativeRunner,
    drafts: DraftModel | None,
    *,
    guess_tokens: int = 0,
    constraint: Callable[[], TokenConstraint | None] = lambda: None,
) -> tuple[Outputs, Engine]:
    engine = Engine(runner, expected_output_tokens=1, drafts=drafts, guess_tokens=guess_tokens)
    receiver = Receiver()
    for request in requests:
        receiver.submit(engine, request, constraint())
    engine.start()
    found: Outputs = {}
    for request in requests:
        found[request.request_id] = answer_of(receiver, request.request_id)
    engine.stop()
    assert engine.statistics().pages_used == 0
    return found, engine


@pytest.mark.parametrize(
    ("options", "streams"),
    [({}, 12), ({"kv_pages": 12, "max_sequences": 8}, 8), ({}, 1)],
    ids=["many", "preempted", "alone"],
)
def test_texts_and_scores_are_the_same(
    engine_model: Path, requests: list[GenerateRequest], options: dict[str, Any], streams: int
) -> None:
    asked = requests[:streams]
    without, _ = run(asked, make_runner(engine_model, **options), None)
    draft = make_runner(engine_model)
    source = SpoiltDrafts(draft, target_vocab_size=draft.vocab_size, most_tokens=5, cost_share=0.05)
    with_drafts, engine = run(asked, make_runner(engine_model, **options), source)
    assert differences(with_drafts, without) == []
    drafted, accepted = engine.statistics().drafts["model"]
    assert 0.4 * drafted < accepted < drafted, "four in five are right, until one is wrong"
    if "kv_pages" in options:
        assert engine.statistics().preemptions > 0


def test_texts_in_a_grammar_are_the_same(
    engine_model: Path, engine_constraints: Constraints, requests: list[GenerateRequest]
) -> None:
    """The draft model obeys it too, and the text's own tokens are drafted as far as it lets them."""
    asked = [replace(request, max_new_tokens=60) for request in requests[:6]]
    draft = make_runner(engine_model)

    def constraint() -> TokenConstraint:
        return engine_constraints.compile(SCHEMA)

    without, _ = run(asked, make_runner(engine_model), None, constraint=constraint)
    source = SpoiltDrafts(draft, target_vocab_size=draft.vocab_size, most_tokens=5, cost_share=0.05)
    with_drafts, engine = run(asked, make_runner(engine_model), source, guess_tokens=4, constraint=constraint)
    assert differences(with_drafts, without) == []
    drafted, accepted = engine.statistics().drafts["model"]
    assert 0.4 * drafted < accepted < drafted


def test_what_a_grammar_forces_takes_fewer_steps(
    engine_model: Path, engine_constraints: Constraints, requests: list[GenerateRequest]
) -> None:
    """Without a draft model: a key is one draft."""
    keys = [f"{number} of the names that are needed" for number in range(4)]
    schema = {"properties": {key: {"type": "boolean"} for key in keys}, "required": keys, "additionalProperties": False}
    asked = [replace(requests[1], max_new_tokens=100)]
    found = [
        run(
            asked, make_runner(engine_model), None, guess_tokens=guess_tokens,
            constraint=lambda: engine_constraints.compile(json.dumps({"type": "object", **schema})),
        )
        for guess_tokens in (0, 8)
    ]  # fmt: skip
    assert differences(*(answers for answers, _ in found)) == []
    steps = [engine.statistics().steps for _, engine in found]
    assert steps[1] < 0.6 * steps[0]


def test_its_own_drafts_are_right_when_drawn_too(engine_model: Path, requests: list[GenerateRequest]) -> None:
    """Target and draft draw with the same random numbers."""
    drawn = [request for request in requests if request.sampling.temperature > 0][:3]
    draft = make_runner(engine_model)
    source = DraftModel(draft, target_vocab_size=draft.vocab_size, most_tokens=4, cost_share=0.05)
    _, engine = run(drawn, make_runner(engine_model), source)
    drafted, accepted = engine.statistics().drafts["model"]
    assert drafted >= 30
    assert accepted == drafted


def test_an_output_goes_on_with_another_engine(engine_model: Path, requests: list[GenerateRequest]) -> None:
    """One that has a draft model, and one that has none."""
    request = requests[1]
    draft = make_runner(engine_model)
    source = DraftModel(draft, target_vocab_size=draft.vocab_size, most_tokens=4, cost_share=0.05)
    whole, _ = run([request], make_runner(engine_model), source)
    tokens = whole[request.request_id].tokens
    resumed = replace(request, resumed_token_ids=tokens[:13])
    for drafts in (None, DraftModel(draft, target_vocab_size=draft.vocab_size, most_tokens=4, cost_share=0.05)):
        found, _ = run([resumed], make_runner(engine_model), drafts)
        assert found[request.request_id].tokens == tokens[13:]
