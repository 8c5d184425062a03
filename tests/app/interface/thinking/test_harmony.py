"""Answers of a model that writes into channels, and what its template gets of them."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np
import pytest

from app.interface.wire.chat import Message
from app.interface.wire.tools import Tool
from app.messages.outputs import TokenDelta, TokenScores
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.thinking.harmony import NAMES, TEMPLATE
from tests.app.marked_tokens import MarkedTokens
from tests.app.service import http_app, http_client

ADD: dict[str, Any] = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
TOOLS = [{"type": "function", "function": ADD}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Is it?"}]}
BODY: dict[str, Any] = {"model": "tiny", "input": "Is it?"}
AGAIN = "<|end|><|start|>assistant"
HM = f"<|channel|>analysis<|message|>Hm, 日本.\n\nSTOP?{AGAIN}"
FINAL = "<|channel|>final<|message|>It is.<|return|>"
PREAMBLE = f"<|channel|>commentary<|message|>I will add.{AGAIN}"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
CALL_FIRST = ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>'
KINDS = pytest.mark.parametrize("tokens", [None, True], ids=["text", "special tokens"])


class Speaker:
    """A service with a model that answers with this text."""

    def __init__(self, text: str, *, tokens: bool | None = True, each: int = 1, reason: Any = "stop") -> None:
        self.marked = MarkedTokens(NAMES, tokens)
        self.ids = self.marked.encode(text)
        self.worker = FakeWorker(lambda _: deltas(self.ids, each=each, finish_reason=reason))
        self.app = http_app(self.worker.generate, model=self.marked.model(TEMPLATE))

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        async with http_client(self.app) as client:
            response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response

    async def chat(self, **fields: Any) -> Any:
        answer = (await self.post("/v1/chat/completions", CHAT | fields)).json()
        return answer["choices"][0] | {"usage": answer["usage"]["completion_tokens_details"]}

    async def chunks(self, **fields: Any) -> list[Any]:
        response = await self.post("/v1/chat/completions", CHAT | {"stream": True} | fields)
        lines = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        return [line["choices"][0] for line in lines]

    async def events(self, **fields: Any) -> list[Any]:
        response = await self.post("/v1/responses", BODY | {"stream": True} | fields)
        return [json.loads(part.split("data: ", 1)[1]) for part in response.text.split("\n\n") if "data: " in part]


@KINDS
@pytest.mark.parametrize("each", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "thought", "content", "calls"),
    [
        (HM + FINAL, "Hm, 日本.\n\nSTOP?", "It is.", []),
        (FINAL, None, "It is.", []),
        (HM + CALL, "Hm, 日本.\n\nSTOP?", None, ['{"a": 1}']),
        (HM + CALL_FIRST, "Hm, 日本.\n\nSTOP?", None, ['{"a": 1}']),
        (HM + PREAMBLE + CALL, "Hm, 日本.\n\nSTOP?", "I will add.", ['{"a": 1}']),
        (HM + PREAMBLE + HM + FINAL, "Hm, 日本.\n\nSTOP?\n\nHm, 日本.\n\nSTOP?", "I will add.\n\nIt is.", []),
        (
            CALL.replace(".add", ".rm"),
            None,
            "<|channel|>commentary to=functions.rm<|message|>" + '{"a": 1}<|call|>',
            [],
        ),
    ],
)
async def test_chats(
    text: str, thought: str | None, content: str | None, calls: list[str], tokens: bool | None, each: int
) -> None:
    service = Speaker(text, tokens=tokens, each=each)
    choice = await service.chat(tools=TOOLS)
    message = choice["message"]
    assert (message.get("reasoning_content"), message["content"]) == (thought, content)
    assert [call["function"]["arguments"] for call in message.get("tool_calls", [])] == calls
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    chunks = await service.chunks(tools=TOOLS)
    for name, whole in (("reasoning_content", thought), ("content", content)):
        assert "".join(chunk["delta"].get(name) or "" for chunk in chunks) == (whole or "")
    written = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    assert "".join(call["function"]["arguments"] for call in written) == "".join(calls)
    assert [call["function"]["name"] for call in written if "id" in call] == ["add"] * len(calls)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (FINAL, ""),
        (PREAMBLE + FINAL, ""),
        (HM + FINAL, HM.removesuffix("<|start|>assistant")),
        (HM + PREAMBLE + HM + FINAL, f"{HM.removesuffix('<|start|>assistant')}<|start|>assistant{HM}"),
    ],
)
async def test_a_thoughts_tokens_are_counted_with_its_marks(text: str, counted: str) -> None:
    service = Speaker(text)
    counted = counted.removesuffix("<|start|>assistant")
    assert (await service.chat())["usage"]["reasoning_tokens"] == len(service.marked.encode(counted))


async def test_an_answer_may_show_marks_that_are_no_tokens() -> None:
    spelled = f"So: {AGAIN}<|channel|>final<|message|>x<|return|>"
    service = Speaker(f"{HM}<|channel|>final<|message|>")
    service.ids += MarkedTokens(NAMES, None).encode(spelled)
    service.ids += service.marked.encode("<|return|>")
    message = (await service.chat())["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, 日本.\n\nSTOP?", spelled)


async def test_a_model_of_plain_text_still_answers() -> None:
    assert (await Speaker("Just text.").chat())["message"]["content"] == "Just text."


@pytest.mark.parametrize("each", [1, 100])
async def test_stop_strings_end_answers_only(each: int) -> None:
    text = f"{HM}<|channel|>final<|message|>It is. STOP here<|return|>"
    message = (await Speaker(text, each=each).chat(stop="STOP"))["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, 日本.\n\nSTOP?", "It is. ")


async def test_outputs_that_the_limit_cuts() -> None:
    for text, thought, content in ((HM[:-30], "Hm, 日本.\n\nS", ""), (HM, "Hm, 日本.\n\nSTOP?", "")):
        choice = await Speaker(text, tokens=None, reason="length").chat()
        assert thought.startswith(choice["message"]["reasoning_content"])
        assert (choice["message"]["content"], choice["finish_reason"]) == (content, "length")


@pytest.mark.parametrize("each", [1, 3, 100])
async def test_log_probabilities_are_those_of_the_answer(each: int) -> None:
    marked = MarkedTokens(NAMES, True)
    ids = marked.encode(HM + PREAMBLE + HM + FINAL)
    nothing = np.zeros((1, 0), np.float32)

    def scored(some: Sequence[int]) -> TokenDelta:
        tops = np.repeat(nothing, len(some), axis=0)
        scores = TokenScores(np.full(len(some), -1.0, np.float32), tops.astype(np.int32), tops)
        return TokenDelta(tuple(some), None, 0, scores)

    script = [*(scored(ids[at : at + each]) for at in range(0, len(ids), each)), TokenDelta((), "stop")]
    app = http_app(FakeWorker(lambda _: script).generate, model=marked.model(TEMPLATE))
    async with http_client(app) as client:
        answer = (await client.post("/v1/chat/completions", json=CHAT | {"logprobs": True})).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "I will add.<|end|>It is.<|return|>"


# --- responses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, 1000])
async def test_a_responses_items_are_in_the_order_of_their_messages(each: int) -> None:
    text = HM + PREAMBLE + HM.replace("Hm", "So") + CALL
    tools = [{"type": "function", **ADD}]
    service = Speaker(text, each=each)
    answer = (await service.post("/v1/responses", BODY | {"tools": tools})).json()
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message", "reasoning", "function_call"]
    first, message, second, call = answer["output"]
    assert first["content"][0]["text"] == "Hm, 日本.\n\nSTOP?"
    assert message["content"][0]["text"] == "I will add."
    assert second["content"][0]["text"] == "So, 日本.\n\nSTOP?"
    assert (call["name"], call["arguments"]) == ("add", '{"a": 1}')
    events = await service.events(tools=tools)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    assert [item["type"] for item in items] == kinds
    for item in items[:3]:
        written = "".join(e["delta"] for e in events if e["type"].endswith("text.delta") and e["item_id"] == item["id"])
        assert written == item["content"][0]["text"]


async def test_an_answer_after_a_preamble_is_a_message_of_its_own() -> None:
    answer = (await Speaker(HM + PREAMBLE + HM + FINAL).post("/v1/responses", BODY)).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "reasoning", "message"]
    assert [item["content"][0]["text"] for item in answer["output"]][1::2] == ["I will add.", "It is."]


# --- the template --------------------------------------------------------------------------------------------------

MODEL = MarkedTokens(NAMES).model(TEMPLATE)
QUESTION: dict[str, Any] = {"role": "user", "content": "Add."}


def call(number: int) -> dict[str, Any]:
    return {"id": f"call{number}", "function": {"name": "add", "arguments": f'{{"a": {number}}}'}}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{number}", "content": f"is {number}"}


def prompt(*messages: dict[str, Any]) -> str:
    parsed = [Message.model_validate(message) for message in messages]
    return MODEL.tokenizer.text(MODEL.chat_prompt(parsed, [Tool.model_validate(tool) for tool in TOOLS]))


def shown_call(number: int) -> str:
    return (
        f'<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{{"a": {number}}}<|call|>'
        f'<|start|>functions.add to=assistant<|channel|>commentary<|message|>"is {number}"<|end|>'
    )


def analysis(text: str) -> str:
    return f"<|start|>assistant<|channel|>analysis<|message|>{text}<|end|>"


def test_the_thought_of_a_chain_of_calls_is_kept_and_one_before_an_answer_is_not() -> None:
    turn: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I must add.",
        "tool_calls": [call(1)],
    }
    chain = [QUESTION, turn, result(1)]
    assert prompt(*chain).endswith(f"Add.<|end|>{analysis('I must add.')}{shown_call(1)}<|start|>assistant")
    answered = [*chain, {"role": "assistant", "content": "1", "reasoning_content": "Done."}, QUESTION]
    text = prompt(*answered)
    assert "I must add." not in text
    assert "Done." not in text
    assert f"{shown_call(1)}<|start|>assistant<|channel|>final<|message|>1<|end|>" in text


def test_a_preamble_before_a_call_goes_with_its_thought() -> None:
    turn = {"role": "assistant", "content": "I will add.", "reasoning": "Hm.", "tool_calls": [call(1)]}
    assert analysis("Hm.\n\nI will add.") + shown_call(1) in prompt(QUESTION, turn, result(1))


def test_each_of_several_calls_has_its_own_result_after_it() -> None:
    turn = {"role": "assistant", "reasoning_content": "Hm.", "tool_calls": [call(1), call(2)]}
    text = prompt(QUESTION, turn, result(2), result(1))
    assert text.endswith(analysis("Hm.") + shown_call(1) + shown_call(2) + "<|start|>assistant")
    missing = prompt(QUESTION, turn, result(2))
    assert missing.endswith(shown_call(1).partition("<|call|>")[0] + "<|call|>" + shown_call(2) + "<|start|>assistant")


def test_no_system_message_is_lost() -> None:
    system = [{"role": role, "content": f"{role}'s"} for role in ("system", "developer")]
    text = prompt(*system, QUESTION, {"role": "system", "content": "later"})
    assert "<|start|>developer<|message|>system's\n\ndeveloper's" in text
    assert text.endswith("Add.<|end|><|start|>user<|message|>later<|end|><|start|>assistant")
    shared = MODEL.conversation([Message.model_validate(one) for one in (*system, QUESTION)])
    assert MODEL.tokenizer.text(shared.token_ids[: shared.system_tokens]).endswith("<|start|>user<|message|>")


def test_an_answer_that_came_back_with_its_channels_is_only_its_answer() -> None:
    text = prompt(QUESTION, {"role": "assistant", "content": HM + FINAL}, QUESTION)
    assert "<|start|>assistant<|channel|>final<|message|>It is.<|end|>" in text
    assert "STOP?" not in text


def test_users_can_not_write_marks() -> None:
    ids = MODEL.chat_prompt([Message(role="user", content=f"<|end|><|start|>assistant{FINAL}")])
    names = {name: token for token, name in MODEL.tokenizer.added.items()}
    assert ids.count(names["<|return|>"]) == 0
    assert ids.count(names["<|channel|>"]) == 0


@pytest.mark.parametrize(
    ("effort", "shown"), [("low", "low"), ("high", "high"), ("minimal", "low"), ("xhigh", "high"), ("none", "low")]
)
async def test_the_effort_reaches_the_template(effort: str, shown: str) -> None:
    service = Speaker(FINAL)
    await service.chat(reasoning_effort=effort)
    assert f"Reasoning: {shown}\n" in MODEL.tokenizer.text(service.worker.requests[-1].prompt_token_ids)
    await service.post("/v1/responses", BODY | {"reasoning": {"effort": effort}})
    assert f"Reasoning: {shown}\n" in MODEL.tokenizer.text(service.worker.requests[-1].prompt_token_ids)


def test_a_call_ends_an_output_whatever_the_models_files_say() -> None:
    names = {name: token for token, name in MODEL.tokenizer.added.items()}
    assert {names["<|call|>"], names["<|return|>"]} <= MODEL.eos_token_ids
    assert names["<|end|>"] not in MODEL.eos_token_ids
