"""A budget from the request to the answer, with the real engine: what follows a written end is the model's own.

The embedded model, with a template like Qwen 3's that opens the thought. Its marks are text, or single tokens.
"""

import functools
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from app.engine.engine import Engine
from app.engine.native_runner import NativeRunner
from app.engine.stream import AsyncEngine
from app.interface.text.chat_model import ChatModel
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.thoughts import ThoughtBudget
from app.workers.constraints import Constraints
from tests.app.interface.thinking.families import OPENING, SWITCHED
from tests.app.service import http_app, http_client

SENTENCE = "Considering the limited time by the user, I have to give the solution based on the thinking directly now."
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Which is the larger one, 9.11 or 9.9? Think first."}],
    "temperature": 0,
    "max_tokens": 90,
}
SCHEMA = {
    "type": "object",
    "properties": {"larger": {"type": "string", "maxLength": 6}},
    "required": ["larger"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "answer", "parameters": SCHEMA}}


@functools.cache
def parts_of(folder: Path, template: str) -> tuple[ChatModel, Constraints]:
    """What takes seconds to make, and knows no requests."""
    names = ("tokenizer.json", "config.json", "tokenizer_config.json")
    tokenizer, config, tokenizer_config = (json.loads((folder / name).read_text()) for name in names)
    model = ChatModel(
        tokenizer=tokenizer,
        config=config | {"model_type": "qwen3"},
        tokenizer_config=tokenizer_config,
        template=template,
        max_context_tokens=1024,
    )
    return model, Constraints(folder, config["vocab_size"])


class Service:
    """The whole ingress over one engine; it records what the engine was asked and what it sent."""

    def __init__(self, folder: Path, template: str) -> None:
        self.model, self.constraints = parts_of(folder, template)
        runner = NativeRunner(
            str(folder), threads=1, kv_pages=128, max_sequences=4, max_step_tokens=128, max_context_tokens=1024
        )
        self.engine = Engine(runner, guess_tokens=4)
        self.engine.start()
        self._streams = AsyncEngine(self.engine)
        self.requests: list[GenerateRequest] = []
        self.outputs: dict[str, list[int]] = {}
        self.app = http_app(self.generate, model=self.model)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        self.requests.append(request)
        output = self.outputs[request.request_id] = []
        constraint = None if request.grammar is None else await self.constraints.make(request.grammar)
        async with aclosing(self._streams.stream(request, constraint, reader=request.request_id)) as bundles:
            async for (part,) in bundles:
                output += part.delta.token_ids
                yield part.delta

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        async with http_client(self.app) as client:
            response = await client.post(path, json=body, timeout=120)
        assert response.status_code == 200, response.text
        return response.json()

    async def chat(self, **fields: Any) -> Any:
        return await self.post("/v1/chat/completions", CHAT | fields)

    def close(self) -> None:
        self.engine.stop()
        assert self.engine.statistics().pages_used == 0
        del self.engine, self._streams  # the application is kept for longer, and the model is large

    async def raw(self, prompt: Sequence[int], max_tokens: int) -> str:
        """What the model writes after these tokens."""
        body = {"model": "tiny", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return cast(str, (await self.post("/v1/completions", body))["choices"][0]["text"])


def shown(text: str) -> str:
    """Without the names of special tokens, which an answer leaves out."""
    return re.sub(r"<\|\w+\|>", "", text).strip()


def with_marks(folder: Path, target: Path) -> Path:
    """The model's folder, with two tokens that it does not use as the marks of thoughts."""
    target.mkdir()
    for file in folder.iterdir():
        if file.name != "tokenizer.json":
            (target / file.name).symlink_to(file.absolute())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for old, new in (("<jupyter_start>", "<think>"), ("<jupyter_script>", "</think>")):
        (entry,) = (entry for entry in tokenizer["added_tokens"] if entry["content"] == old)
        entry |= {"content": new, "special": False}
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary[new] = vocabulary.pop(old)
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    return target


@pytest.fixture(scope="module")
def folders(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"text": embedded_model, "tokens": with_marks(embedded_model, tmp_path_factory.mktemp("marks") / "model")}


@pytest.fixture(params=["text", "tokens"])
async def service(request: pytest.FixtureRequest, folders: dict[str, Path]) -> AsyncIterator[Service]:
    made = Service(folders[request.param], OPENING)
    yield made
    made.close()


async def test_an_answer_after_a_written_end_is_the_models_own(service: Service) -> None:
    free = await service.chat(ignore_eos=True)
    (choice,) = free["choices"]
    assert choice["message"]["reasoning_cut"] == "length", "the embedded model never ends a thought"
    prompt, (free_ids,) = service.requests[0].prompt_token_ids, service.outputs.values()
    for tokens in (1, 20, 33):
        answer = await service.chat(thinking_budget=tokens, ignore_eos=True)
        (choice,) = answer["choices"]
        end = cast(ThoughtBudget, service.requests[-1].thought).end
        assert service.model.tokenizer.text(end) == f"\n\n{SENTENCE}\n</think>"
        begun = (*free_ids[:tokens], *end)
        assert tuple(service.outputs[service.requests[-1].request_id][: len(begun)]) == begun
        thought = service.model.tokenizer.text(free_ids[:tokens])
        assert choice["message"]["reasoning_content"] == shown(f"{thought}\n\n{SENTENCE}")
        assert choice["message"]["reasoning_cut"] == "budget"
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(begun)
        assert choice["message"]["content"] == (await service.raw((*prompt, *begun), 90 - len(begun))).lstrip()


async def test_choices_stops_and_scores_beside_each_other(service: Service) -> None:
    fields = {"n": 3, "temperature": 1, "seed": 7, "thinking_budget": 15, "logprobs": True, "max_tokens": 60}
    fields |= {"ignore_eos": True}
    answer = await service.chat(**fields)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    for choice in answer["choices"]:
        assert choice["message"]["reasoning_cut"] == "budget"
        assert SENTENCE in choice["message"]["reasoning_content"]
        scored = "".join(entry["token"] for entry in choice["logprobs"]["content"])
        assert shown(scored) == shown(choice["message"]["content"])
        assert all(entry["logprob"] < 0 for entry in choice["logprobs"]["content"]), "nothing that was written"
    assert [choice["message"]["content"] for choice in (await service.chat(**fields))["choices"]] == texts
    stop = texts[0].strip()[3:9]
    (first, *_) = (await service.chat(**fields | {"stop": [stop]}))["choices"]
    assert first["message"]["content"].strip() == texts[0].strip().partition(stop)[0].strip()
    assert SENTENCE in first["message"]["reasoning_content"]


@pytest.mark.parametrize("tokens", [1, 12])
async def test_a_schema_and_a_forced_call_begin_behind_it(service: Service, tokens: int) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    (choice,) = (await service.chat(thinking_budget=tokens, response_format=form))["choices"]
    assert set(json.loads(choice["message"]["content"])) == {"larger"}
    assert (choice["message"]["reasoning_cut"], choice["finish_reason"]) == ("budget", "stop")
    named = {"type": "function", "function": {"name": "answer"}}
    (choice,) = (await service.chat(thinking_budget=tokens, tools=[TOOL], tool_choice=named))["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"larger"}
    assert SENTENCE in choice["message"]["reasoning_content"]


async def test_no_budget_at_all_is_no_thought(service: Service) -> None:
    (choice,) = (await service.chat(thinking_budget=0, ignore_eos=True))["choices"]
    assert "reasoning_content" not in choice["message"]
    assert service.model.tokenizer.text(service.requests[-1].prompt_token_ids).endswith("<think>\n\n</think>\n\n")
    assert choice["message"]["content"].strip()


async def test_a_model_that_does_not_begin_to_think_is_left_alone(embedded_model: Path) -> None:
    service = Service(embedded_model, SWITCHED)
    try:
        (free,) = (await service.chat())["choices"]
        (choice,) = (await service.chat(thinking_budget=1))["choices"]
        assert choice == free
    finally:
        service.close()
