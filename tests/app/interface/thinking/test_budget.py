"""The budget of a thought: who asks for it and how, what the engine is told, and what an answer says of its end."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from app.interface.text.chat_model import ChatModel
from app.interface.thinking.requested import ThinkingDefault
from app.messages.model_card import ThinkingMode
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.thoughts import ThoughtBudget, ThoughtWatch
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.thinking.families import (
    BODY,
    CHAT,
    EFFORT,
    EITHER,
    OFF,
    OPENING,
    SWITCHED,
    Asked,
    encoded,
    thinking_tokenizer,
)
from tests.app.interface.thinking.harmony import NAMES
from tests.app.interface.thinking.harmony import TEMPLATE as HARMONY
from tests.app.service import http_app, http_client
from tests.app.tiny_model import EOS_ID, TEMPLATE, tokenizer_json

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SENTENCE = "Considering the limited time by the user, I have to give the solution based on the thinking directly now."
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


def harmony_tokenizer() -> dict[str, Any]:
    tokenizer = tokenizer_json()
    entry = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] += [{"id": first + place, "content": name, **entry} for place, name in enumerate(NAMES)]
    return tokenizer


def model_of(
    template: str = SWITCHED,
    *,
    tokenizer: Mapping[str, Any] | None = None,
    model_type: str = "llama",
    default: ThinkingMode | None = None,
    short_tokens: int = 5,
) -> ChatModel:
    tokenizer = tokenizer or tokenizer_json()
    sizes = {"vocab_size": 400, "max_position_embeddings": 2048, "hidden_size": 8}
    return ChatModel(
        tokenizer=tokenizer,
        config={**sizes, "eos_token_id": EOS_ID, "model_type": model_type},
        tokenizer_config={"eos_token": "<|im_end|>"},
        template=template,
        thinking=ThinkingDefault(default, short_tokens),
    )


class Service(Asked):
    """A service whose worker ends thoughts as an engine does."""

    def __init__(
        self, model: ChatModel, text: str = "x", answer: str = "Yes", *, each: int = 1, limit: int | None = None
    ) -> None:
        """text: what the model writes if nobody ends its thought. answer: what it writes after a written end."""
        self.model, self.text, self.answer, self.each, self.limit = model, text, answer, each, limit
        self.worker = FakeWorker(self._script)
        self.app = http_app(self.worker.generate, model=model)

    def _script(self, request: GenerateRequest) -> Sequence[TokenDelta]:
        output: list[int] = []
        watch = None if request.thought is None else ThoughtWatch(request.thought)
        for token in self.ids(self.text):
            output.append(token)
            if watch is not None and (end := watch.add(token)):
                output += [*end, *self.ids(self.answer)]
                break
        if self.limit is not None and len(output) >= self.limit:
            return deltas(output[: self.limit], each=self.each, finish_reason="length")
        return deltas(output, each=self.each)

    def ids(self, text: str) -> list[int]:
        return self.model.raw_prompt(text, starts_text=False)

    async def request(self, **fields: Any) -> GenerateRequest:
        await self.chat(**fields)
        return self.worker.requests[-1]

    def prompt(self, request: GenerateRequest) -> str:
        return self.model.tokenizer.text(request.prompt_token_ids)

    def end(self, budget: ThoughtBudget | None, *, again: bool = False) -> str:
        assert budget is not None
        return self.model.tokenizer.text(budget.end_again if again else budget.end)


# --- who asks, and for what


@pytest.mark.parametrize(
    ("template", "fields", "end", "tokens"),
    [
        (SWITCHED, {}, "assistant\n", None),
        (SWITCHED, {"thinking_budget": 7}, "assistant\n", 7),
        (SWITCHED, {"reasoning": {"max_tokens": 7}}, "assistant\n", 7),
        (SWITCHED, {"reasoning": {"max_tokens": 7, "effort": "high"}}, "assistant\n", 7),
        (SWITCHED, {"reasoning": {"max_tokens": 7}, "thinking_budget": 7}, "assistant\n", 7),
        (SWITCHED, {"enable_thinking": True, "thinking_budget": 7}, "assistant\n", 7),
        (SWITCHED, {"enable_thinking": False, "thinking_budget": 7}, "<think>\n\n</think>\n\n", 7),
        (SWITCHED, {"reasoning": {"effort": "none"}}, "<think>\n\n</think>\n\n", None),
        (SWITCHED, {"reasoning": {"enabled": False}}, "<think>\n\n</think>\n\n", None),
        (SWITCHED, {"thinking_budget": 0}, "<think>\n\n</think>\n\n", 0),
        (SWITCHED, {"thinking_budget": -1}, "assistant\n", None),
        (OFF, {"thinking_budget": 7}, "<think>", 7),
        (OFF, {"thinking_budget": -1}, "</think>", None),
        (OFF, {"thinking_budget": 7, "enable_thinking": False}, "</think>", 7),
        (OPENING, {"thinking_budget": 7}, "<think>", 7),
        (OPENING, {"thinking_budget": 0}, "<think>\n\n</think>\n\n", 0),
        (OPENING, {"enable_thinking": False}, "<think>", None),
        (TEMPLATE, {"thinking_budget": 7}, "assistant\n", 7),  # without effect: it does not think
        (TEMPLATE, {"thinking_budget": 0}, "assistant\n", 0),
    ],
)
async def test_a_requests_fields(template: str, fields: dict[str, Any], end: str, tokens: int | None) -> None:
    service = Service(model_of(template))
    request = await service.request(**fields)
    assert service.prompt(request).endswith(end)
    assert (request.thought.tokens if request.thought is not None else None) == tokens
    if request.thought is not None:
        assert request.thought.is_open == (end == "<think>")
    if "reasoning" not in fields or fields["reasoning"].keys() <= {"max_tokens", "effort"}:
        await service.post("/v1/responses", BODY | fields)
        assert service.worker.requests[-1].thought == request.thought
        assert service.worker.requests[-1].prompt_token_ids == request.prompt_token_ids


@pytest.mark.parametrize(
    ("default", "fields", "end", "tokens"),
    [
        ("off", {}, "<think>\n\n</think>\n\n", 0),
        ("short", {}, "assistant\n", 5),
        ("full", {}, "assistant\n", None),
        ("off", {"thinking_budget": 9}, "assistant\n", 9),
        ("off", {"enable_thinking": True}, "assistant\n", None),
        ("off", {"reasoning_effort": "low"}, "assistant\n", None),
        ("off", {"chat_template_kwargs": {"enable_thinking": True}}, "assistant\n", None),
        ("off", {"chat_template_kwargs": {"other": 1}}, "<think>\n\n</think>\n\n", 0),
        ("short", {"thinking_budget": -1}, "assistant\n", None),
        ("short", {"enable_thinking": False}, "<think>\n\n</think>\n\n", None),
        ("short", {"reasoning": {"max_tokens": 3}}, "assistant\n", 3),
    ],
)
async def test_the_operators_default_and_what_wins_over_it(
    default: ThinkingMode, fields: dict[str, Any], end: str, tokens: int | None
) -> None:
    service = Service(model_of(default=default))
    request = await service.request(**fields)
    assert service.prompt(request).endswith(end)
    assert (request.thought.tokens if request.thought is not None else None) == tokens


async def test_the_default_off_ends_the_thought_of_a_model_that_has_no_switch() -> None:
    service = Service(model_of(OPENING, default="off"))
    assert service.prompt(await service.request()).endswith("<think>\n\n</think>\n\n")
    async with http_client(service.app) as client:
        body = {"model": "tiny", "messages": CHAT["messages"]}
        tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
    assert tuple(tokens) == service.worker.requests[-1].prompt_token_ids


async def test_the_default_short_lets_a_model_think_that_is_off_by_its_template() -> None:
    service = Service(model_of(OFF, default="short"))
    request = await service.request()
    assert service.prompt(request).endswith("<think>")
    assert request.thought is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_budget": 7, "reasoning": {"max_tokens": 8}}, "reasoning.max_tokens"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"enable_thinking": True, "reasoning": {"enabled": False}}, "reasoning.enabled"),
        ({"thinking_budget": -2}, "thinking_budget"),
        ({"thinking_budget": 1.5}, "thinking_budget"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"other": 1}}, "reasoning.other"),
        ({"thinking_budget": 7, "num_beams": 2}, "thinking_budget"),
        ({"reasoning": {"max_tokens": 7}, "penalty_alpha": 0.5, "top_k": 4}, "reasoning.max_tokens"),
    ],
)
async def test_what_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    service = Service(model_of())
    answer = await service.post("/v1/chat/completions", CHAT | fields, 400)
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


async def test_a_contradiction_in_a_response_is_refused_by_its_own_names() -> None:
    body = BODY | {"thinking_budget": 7, "reasoning": {"max_tokens": 8}}
    answer = await Service(model_of()).post("/v1/responses", body, 400)
    assert answer.json()["error"]["param"] == "reasoning.max_tokens"


async def test_a_search_goes_without_the_default() -> None:
    service = Service(model_of(default="short"))
    assert (await service.request(num_beams=2)).thought is None


async def test_a_response_repeats_the_budget() -> None:
    service = Service(model_of())
    body = BODY | {"reasoning": {"max_tokens": 7, "effort": "low"}}
    answer = (await service.post("/v1/responses", body)).json()
    assert answer["reasoning"] == {"effort": "low", "summary": None, "max_tokens": 7}
    assert (await service.post("/v1/responses", BODY)).json()["reasoning"] == {"effort": None, "summary": None}


async def test_every_choice_has_the_budget_and_a_schema_leaves_room_for_it() -> None:
    service = Service(model_of(OPENING), '{"b"}</think>{"a": 1}')
    await service.chat(n=3, thinking_budget=50, response_format=FORM)
    budgets = [request.thought for request in service.worker.requests]
    assert [budget.tokens for budget in budgets if budget is not None] == [50, 50, 50]
    assert "start: thought output" in (service.worker.requests[0].grammar or "")
    without = Service(model_of(TEMPLATE), '{"a": 1}')
    assert (await without.request(thinking_budget=50, response_format=FORM)).thought is None


# --- how it ends


@pytest.mark.parametrize(
    ("model_type", "end"),
    [("llama", "\n</think>"), ("qwen3", f"\n\n{SENTENCE}\n</think>"), ("qwen3_moe", f"\n\n{SENTENCE}\n</think>")],
)
@pytest.mark.parametrize("is_special", [None, False, True])
async def test_the_end_is_the_familys(model_type: str, end: str, is_special: bool | None) -> None:
    tokenizer = None if is_special is None else thinking_tokenizer(is_special=is_special)
    service = Service(model_of(OPENING, tokenizer=tokenizer, model_type=model_type))
    budget = (await service.request(thinking_budget=7)).thought
    assert service.end(budget) == end
    assert budget is not None
    assert budget.end_again == ()
    if is_special is not None:
        assert budget.spelled[budget.end[-1]] == b"</think>"


@pytest.mark.parametrize(
    ("fields", "end", "again"),
    [
        ({}, "<|channel|>final<|message|>", "<|channel|>final<|message|>"),
        ({"tools": [TOOL]}, "", "<|channel|>final<|message|>"),
        ({"tools": [TOOL], "tool_choice": "required"}, "", "<|channel|>commentary to=functions."),
        ({"response_format": FORM}, "<|channel|>final<|message|>", "<|channel|>final<|message|>"),
    ],
)
async def test_in_channels_the_answer_follows_or_the_model_may_call(
    fields: dict[str, Any], end: str, again: str
) -> None:
    service = Service(model_of(HARMONY, tokenizer=harmony_tokenizer()))
    budget = (await service.request(thinking_budget=7, **fields)).thought
    assert service.end(budget) == f"<|end|><|start|>assistant{end}"
    assert service.end(budget, again=True) == f"<|end|><|start|>assistant{again}"
    assert budget is not None
    assert len(budget.end) == 2 + len(encoded("assistant", has_tokens=False)) + bool(end) * (
        2 + len(encoded("final", has_tokens=False))
    )


# --- what an answer says


@pytest.mark.parametrize("each", [1, 3, 1000])
@pytest.mark.parametrize("tokens", [1, 6])
async def test_a_thought_that_its_budget_cuts(each: int, tokens: int) -> None:
    long = "Hm, this is a long thought, 日本 and more of it, without an end"
    service = Service(model_of(OPENING), long, each=each)
    fields = {"thinking_budget": tokens}
    answer = await service.chat(**fields)
    (choice,) = answer["choices"]
    begun = service.model.tokenizer.text(encoded(long, has_tokens=False)[:tokens]).strip()
    assert choice["message"] == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": begun,
        "reasoning_cut": "budget",
        "refusal": None,
    }
    assert choice["finish_reason"] == "stop"
    end = len(cast(ThoughtBudget, service.worker.requests[-1].thought).end)
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == tokens + end
    chunks = [chunk["choices"][0]["delta"] for chunk in await service.chunks(**fields)]
    order = [name for delta in chunks for name in delta if delta.get(name)]
    assert order.count("reasoning_cut") == 1
    assert order.index("reasoning_cut") > max(i for i, name in enumerate(order) if name == "reasoning_content")
    assert order.index("reasoning_cut") < min(i for i, name in enumerate(order) if name == "content")
    response = (await service.post("/v1/responses", BODY | fields)).json()
    thought, message = response["output"]
    assert (thought["status"], thought["cut"], message["status"]) == ("completed", "budget", "completed")
    assert response["status"] == "completed"


@pytest.mark.parametrize("each", [1, 1000])
async def test_a_thought_in_a_channel_that_its_budget_cuts(each: int) -> None:
    model = model_of(HARMONY, tokenizer=harmony_tokenizer())
    begun = "<|channel|>analysis<|message|>"
    service = Service(model, f"{begun}Hm, this is a long thought", "Yes", each=each)
    answer = await service.chat(thinking_budget=3)
    (choice,) = answer["choices"]
    thought = model.tokenizer.text(service.ids("Hm, this is a long thought")[:3])
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == (thought, "Yes")
    assert choice["message"]["reasoning_cut"] == "budget"
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
    service = Service(model, f"{begun}Hm, this is a long thought", call, each=each)
    (choice,) = (await service.chat(thinking_budget=3, tools=[TOOL]))["choices"]
    assert [one["function"]["arguments"] for one in choice["message"]["tool_calls"]] == ['{"a": 1}']
    assert (choice["message"]["reasoning_content"], choice["message"]["reasoning_cut"]) == (thought, "budget")
    cut = Service(model, f"{begun}Hm, this is a long thought", each=each, limit=7)
    (choice,) = (await cut.chat())["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_cut"]) == ("length", "length")


@pytest.mark.parametrize("each", [1, 1000])
@pytest.mark.parametrize("fields", [{}, {"thinking_budget": 8}])
async def test_a_thought_that_the_output_limit_cuts_says_so(each: int, fields: dict[str, Any]) -> None:
    """Also in the middle of a written end."""
    service = Service(model_of(OPENING), "Hm, this is a long thought, without an end", each=each, limit=9)
    answer = await service.chat(max_tokens=9, **fields)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["reasoning_cut"]) == ("length", "length")
    assert choice["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9
    cuts = [chunk["choices"][0]["delta"].get("reasoning_cut") for chunk in await service.chunks(**fields)]
    assert [cut for cut in cuts if cut] == ["length"]
    response = (await service.post("/v1/responses", BODY | fields)).json()
    (thought,) = response["output"]
    assert (thought["status"], thought["cut"]) == ("incomplete", "max_output_tokens")
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 9
    said = [{"role": "user", "content": "Is it?"}, thought, {"role": "user", "content": "Well?"}]
    await service.post("/v1/responses", BODY | {"input": said})


async def test_an_answer_that_ends_by_itself_says_nothing() -> None:
    service = Service(model_of(OPENING), "Hm</think>Yes")
    assert "reasoning_cut" not in (await service.chat(thinking_budget=50))["choices"][0]["message"]
    assert not any(
        "reasoning_cut" in chunk["choices"][0]["delta"] for chunk in await service.chunks(thinking_budget=50)
    )
    cut = Service(model_of(OPENING), "Hm</think>Yes, and", limit=10)
    (choice,) = (await cut.chat())["choices"]
    assert choice["finish_reason"] == "length"
    assert "reasoning_cut" not in choice["message"]


# --- what clients learn


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: model_of(), (True, 5, "full")),
        (lambda: model_of(OFF), (True, 5, "off")),
        (lambda: model_of(OPENING), (False, 5, "full")),
        (lambda: model_of(HARMONY, tokenizer=harmony_tokenizer()), (False, 5, "full")),
        (lambda: model_of(EFFORT), (False, 5, "full")),
        (lambda: model_of(EITHER), (True, 5, "off")),
        (lambda: model_of(TEMPLATE), None),
        (lambda: model_of(default="short", short_tokens=99), (True, 99, "short")),
        (lambda: model_of(OPENING, default="off"), (False, 5, "off")),
    ],
)
async def test_the_list_of_models(model: Any, expected: tuple[bool, int, str] | None) -> None:
    async with http_client(Service(model()).app) as client:
        (listed,) = (await client.get("/v1/models")).json()["data"]
    fields = None if expected is None else dict(zip(("switch", "short_tokens", "default"), expected, strict=True))
    assert listed["thinking"] == fields
