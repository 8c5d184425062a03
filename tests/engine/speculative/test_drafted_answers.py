"""Answers over HTTP are the same with and without drafts: a real engine behind the ingress, in one process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.controller.unfinished import UnfinishedOutput
from app.engine.engine import Engine
from app.engine.stream import AsyncEngine
from app.interface.text.chat_model import ChatModel
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import GenerateRequest
from app.workers.constraints import Constraints
from tests.app.interface.routes.test_metrics import Series, series
from tests.app.service import http_app, http_client
from tests.engine.speculative.test_draft_model_native import SpoiltDrafts, make_runner

pytestmark = pytest.mark.usefixtures("drafts_seem_cheap")

Body = tuple[str, dict[str, Any]]
"""The path of a request, and the request."""
Answers = tuple[list[Any], dict[Any, float]]
"""What all requests get; the metrics of sequences and tokens."""
LOST_AFTER = 7
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me of a fox."}]}
DRAWN = CHAT | {"max_tokens": 48, "temperature": 1, "seed": 5, "logprobs": True, "top_logprobs": 2}
YES_OR_NO = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
NAMED = {"type": "object", "properties": {"name": {"type": "string"}, "yes": {"type": "boolean"}}, "required": ["name"]}
FUNCTION = {"name": "answer_with_yes_or_no", "parameters": YES_OR_NO}


class EngineWorkers:
    """Engines in this process as a model's workers; each output loses its worker `losses` times and goes on."""

    def __init__(self, engines: Sequence[Engine], constraints: Constraints, losses: int) -> None:
        self._engines = engines
        self._constraints = constraints
        self._losses = losses
        self.most_tokens = 0
        """Of a delta."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        output, attempt = UnfinishedOutput(request), 0
        while not output.is_finished:
            seen = output.tokens
            async with aclosing(self._attempt(output.rest(), self._engines[attempt % len(self._engines)])) as deltas:
                async for delta in deltas:
                    self.most_tokens = max(self.most_tokens, len(delta.token_ids))
                    yield output.add(delta)
                    if attempt < self._losses and output.tokens >= seen + LOST_AFTER and not output.is_finished:
                        break
            if not output.is_finished:
                attempt += 1
                output.lost(Loss.LOST)

    async def _attempt(self, request: GenerateRequest, engine: Engine) -> AsyncGenerator[TokenDelta, None]:
        constraint = None if request.grammar is None else await self._constraints.make(request.grammar)
        streams = AsyncEngine(engine)  # with no other stream, whose messages would have tokens of this one
        async with aclosing(streams.stream(request, constraint, reader="here")) as bundles:
            async for (part,) in bundles:
                yield part.delta


@contextmanager
def running(engine_model: Path, *, drafts: bool, guess_tokens: int = 0) -> Iterator[Engine]:
    """Without a prefix cache: what it has depends on what runs at the same time."""
    source = None
    if drafts:
        draft = make_runner(engine_model)
        source = SpoiltDrafts(draft, target_vocab_size=draft.vocab_size, most_tokens=5, cost_share=0.05)
    engine = Engine(
        make_runner(engine_model),
        expected_output_tokens=1,
        prefix_cache=False,
        drafts=source,
        guess_tokens=guess_tokens,
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
    assert engine.statistics().pages_used == 0


async def answers(chat: ChatModel, workers: EngineWorkers, bodies: Sequence[Body]) -> Answers:
    """All at once."""
    async with http_client(http_app(workers.generate, model=chat)) as client:

        async def one(path: str, body: Mapping[str, Any]) -> Any:
            answer = await client.post(path, json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            return collected(path, answer.text)

        found = await asyncio.gather(*(one(path, body) for path, body in bodies))
        return found, counted(series((await client.get("/metrics")).text))


def counted(found: Series) -> dict[Any, float]:
    names = ("redoubt_generated_tokens_total", "redoubt_sequences_total", "redoubt_prompt_tokens_total")
    return {key: number for key, number in found.items() if key[0] in names}


def collected(path: str, text: str) -> Any:
    """An answer without ids and times; that of a stream is put together."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] or [json.loads(text)]
    assert not any("error" in event and event["error"] for event in events), events[-1]
    if path in (CHATS, COMPLETIONS):
        return choices_of(events)
    last = events[-1].get("response", events[-1])
    if path == RESPONSES:
        said = [item.get("content") or (item["name"], item["arguments"]) for item in last["output"]]
        return said, last["status"], last["incomplete_details"], last["usage"]
    return last["content"], last["stop_reason"], last["stop_sequence"], last["usage"]


def choices_of(events: Sequence[dict[str, Any]]) -> Any:
    texts: dict[int, str] = {}
    calls: dict[int, str] = {}
    logprobs: dict[tuple[int, str], list[Any]] = {}
    reasons: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            index, part = choice["index"], choice.get("delta", choice.get("message", choice))
            texts[index] = texts.get(index, "") + (part.get("content") or part.get("text") or "")
            for call in part.get("tool_calls") or ():
                said = call["function"]
                calls[index] = calls.get(index, "") + (said.get("name") or "") + (said.get("arguments") or "")
            for name, entries in (choice.get("logprobs") or {}).items():
                logprobs.setdefault((index, name), []).extend(entries or ())
            if choice["finish_reason"] is not None:
                reasons[index] = choice["finish_reason"]
    usage = [event["usage"] for event in events if event.get("usage")]
    return texts, calls, {place: entries for place, entries in logprobs.items() if entries}, reasons, usage[-1]


def stop_of(pieces: Sequence[str]) -> str:
    """A text that begins in one token and ends in the next, for the first time from token 10 on."""
    text = "".join(pieces)
    for place in range(10, len(pieces) - 6):
        stop = pieces[place][-2:] + pieces[place + 1][:2]
        begin = len("".join(pieces[:place])) + len(pieces[place][:-2])
        if pieces[place] and pieces[place + 1] and "\ufffd" not in stop and text.find(stop) == begin:
            return stop
    raise AssertionError(pieces)


def asked(stop: str) -> list[Body]:
    both: list[Body] = [
        (COMPLETIONS, {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 40, "n": 2, "seed": 3,
                       "temperature": 1, "logprobs": 3, "frequency_penalty": 0.4, "logit_bias": {"0": -9, "2": -9}}),
        (CHATS, DRAWN | {"stop": ["never said", stop]}),
        (CHATS, CHAT | {"max_tokens": 40, "temperature": 1, "seed": 6, "response_format": {
            "type": "json_schema", "json_schema": {"name": "named", "schema": NAMED}}}),
        (CHATS, CHAT | {"max_tokens": 40, "temperature": 1, "seed": 7, "tool_choice": "required",
                        "parallel_tool_calls": False, "tools": [{"type": "function", "function": FUNCTION}]}),
        (RESPONSES, {"model": "tiny", "input": "Is it so?", "max_output_tokens": 40, "temperature": 0,
                     "tool_choice": "required", "tools": [{"type": "function", **FUNCTION}]}),
    ]  # fmt: skip
    streamed = [
        (path, body | {"stream": True} | ({} if path == RESPONSES else {"stream_options": {"include_usage": True}}))
        for path, body in both
    ]
    message = CHAT | {"max_tokens": 40, "temperature": 0, "stop_sequences": [stop, "e"]}
    return [*both, *streamed, (MESSAGES, message)]


@pytest.fixture(scope="module")
def chat(engine_model: Path) -> ChatModel:
    return ChatModel.load(engine_model, max_context_tokens=256)


@pytest.fixture(scope="module")
def clean(engine_model: Path, chat: ChatModel, engine_constraints: Constraints) -> tuple[list[Body], Answers]:
    """The requests, and their answers without drafts."""
    with running(engine_model, drafts=False) as engine:
        workers = EngineWorkers([engine], engine_constraints, 0)
        entries = asyncio.run(answers(chat, workers, [(CHATS, DRAWN)]))[0][0][2][0, "content"]
        bodies = asked(stop_of([bytes(entry["bytes"]).decode(errors="replace") for entry in entries]))
        found = asyncio.run(answers(chat, workers, bodies))
    whole, streamed = found[0][:5], found[0][5:10]
    assert whole == streamed
    assert (whole[1][3], whole[3][3]) == ({0: "stop"}, {0: "tool_calls"})
    return bodies, found


@pytest.mark.parametrize(
    ("guess_tokens", "losses"), [(0, 0), (4, 0), (4, 2)], ids=["model", "model and lookups", "lost on the way"]
)
def test_answers_are_those_without_drafts(
    engine_model: Path,
    chat: ChatModel,
    engine_constraints: Constraints,
    clean: tuple[list[Body], Answers],
    guess_tokens: int,
    losses: int,
) -> None:
    """Text, log-probabilities, usage, finish reasons, calls, and what is counted. Lost: by workers of both kinds."""
    bodies, expected = clean
    with ExitStack() as engines:
        drafting = engines.enter_context(running(engine_model, drafts=True, guess_tokens=guess_tokens))
        others = [engines.enter_context(running(engine_model, drafts=False)) for _ in range(min(losses, 1))]
        workers = EngineWorkers([drafting, *others], engine_constraints, losses)
        assert asyncio.run(answers(chat, workers, bodies)) == expected
        drafted, accepted = drafting.statistics().drafts["model"]
    assert workers.most_tokens > 1
    assert 0 < accepted < drafted
