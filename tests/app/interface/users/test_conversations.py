"""Stored conversations and responses as clients use them: with the openai client, over accounts in this process."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError, OpenAIError, RateLimitError

from app.interface.users.items import items_of
from app.interface.users.routes.conversations import passage_of
from app.interface.users.texts import Record, path_to
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import Site
from tests.app.tiny_model import reference_tokenizer

ANSWER = "the answer is 42"
CANARY = "xylophone"


def client_of(site: Site, secret: str) -> AsyncOpenAI:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(site.app))
    return AsyncOpenAI(base_url="http://test/v1", api_key=secret, max_retries=0, http_client=http)


def prompt(site: Site, number: int = -1) -> str:
    ids = list(site.worker.requests[number].prompt_token_ids)
    decoded: str = reference_tokenizer().decode(ids, skip_special_tokens=False)
    return decoded


@pytest.fixture
def saying(make_site: Callable[..., Site]) -> Site:
    return make_site(FakeWorker(lambda _: deltas(tokens_of(ANSWER))))


@pytest.fixture
async def ann(saying: Site) -> AsyncOpenAI:
    saying.add("ann")
    return client_of(saying, await saying.log_in("ann"))


@pytest.fixture
async def bob(saying: Site) -> AsyncOpenAI:
    saying.add("bob")
    return client_of(saying, await saying.log_in("bob"))


async def hang_up(
    site: Site, secret: str, body: dict[str, Any], *, after: bytes, hang_after: int | None = None
) -> None:
    """Streams an answer and disconnects once `after` has arrived."""
    if hang_after is not None:
        site.worker._hang_after = hang_after
    gone, sent = asyncio.Event(), [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    headers = [(b"authorization", b"Bearer " + secret.encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers, "query_string": b""}
    scope |= {"scheme": "http", "server": ("test", 80), "client": ("test", 1), "http_version": "1.1"}

    async def receive() -> Any:
        if sent:
            return sent.pop()
        if hang_after is not None:
            await site.worker.started.wait()
            gone.set()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if after in message.get("body", b""):
            gone.set()

    await site.app(scope, receive, send)


async def texts_of(client: AsyncOpenAI, conversation_id: str) -> list[str]:
    items: list[Any] = (await client.conversations.items.list(conversation_id, order="asc", limit=100)).data
    return [item.content[0].text for item in items]


async def test_items_of_agents_are_stored_without_what_only_answers_have(ann: AsyncOpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "edit", "internal_chat_message_metadata_passthrough": {"turn_id": "t"}},
        {
            "type": "reasoning",
            "id": "rs_1",
            "content": [{"type": "reasoning_text", "text": "so"}],
            "status": "completed",
        },
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "text", "caller": {"type": "direct"}},
        {"type": "custom_tool_call_output", "call_id": "c", "name": "patch", "output": "done"},
        {"type": "function_call", "call_id": "d", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "function_call_output", "call_id": "d", "output": "done"},
    ]
    made = await ann.conversations.create(items=items)
    stored = [item.to_dict() async for item in await ann.conversations.items.list(made.id, order="asc")]
    assert [item.pop("type") for item in stored] == [
        "message",
        "reasoning",
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
    ]
    assert not any("caller" in item or "internal_chat_message_metadata_passthrough" in item for item in stored)
    assert (stored[2]["input"], stored[4]["namespace"]) == ("text", "n")
    answer = await ann.responses.create(model="tiny", input="go on", conversation=made.id)
    assert answer.status == "completed"
    exported = await ann.get(f"/conversations/{made.id}/export?format=md", cast_to=str)
    assert "## Thought\n\nso" in exported
    assert "## Call of `patch`" in exported


async def test_a_conversation_of_items(ann: AsyncOpenAI) -> None:
    items: Any = [
        {"type": "message", "role": "user", "content": "What is  the\nanswer?"},
        {"role": "assistant", "content": "42"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    made = await ann.conversations.create(items=items, metadata={"a": "b"})
    assert made.metadata == {"a": "b"}
    assert made.to_dict()["title"] == "What is the answer?"
    page = await ann.conversations.items.list(made.id, order="asc", limit=3)
    kinds = [item.type async for item in page]  # over pages
    assert kinds == ["message", "message", "function_call", "function_call_output"]
    assert [item.type for item in (await ann.conversations.items.list(made.id, limit=1)).data] == [kinds[-1]]
    added = await ann.conversations.items.create(made.id, items=[{"role": "user", "content": "and now?"}])
    item = str(added.data[0].id)
    assert await ann.conversations.items.retrieve(item, conversation_id=made.id) == added.data[0]
    assert (await ann.conversations.items.delete(item, conversation_id=made.id)).to_dict()["items"] == 4
    with pytest.raises(NotFoundError):
        await ann.conversations.items.retrieve(item, conversation_id=made.id)
    changed = await ann.conversations.update(made.id, metadata={"title": "Mine"})
    assert changed.to_dict()["title"] == "Mine"
    assert await ann.conversations.retrieve(made.id) == changed
    assert (await ann.conversations.delete(made.id)).deleted
    with pytest.raises(NotFoundError):
        await ann.conversations.retrieve(made.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_of_a_conversation(saying: Site, ann: AsyncOpenAI, stream: bool) -> None:
    made = await ann.conversations.create()

    async def ask(question: str) -> Any:
        asked: dict[str, Any] = {"model": "tiny", "input": question, "conversation": made.id, "stream": stream}
        answer: Any = await ann.responses.create(**asked)
        if not stream:
            return answer
        events: list[Any] = [event async for event in answer]
        assert events[-1].type == "response.completed"
        return events[-1].response

    first = await ask("my name is ann")
    assert (first.to_dict()["store"], first.conversation.id) == (True, made.id)
    await ask("who am i?")
    assert prompt(saying).index("my name is ann") < prompt(saying).index(ANSWER) < prompt(saying).index("who am i?")
    assert await texts_of(ann, made.id) == ["my name is ann", ANSWER, "who am i?", ANSWER]
    assert (await ann.conversations.retrieve(made.id)).to_dict()["title"] == "my name is ann"
    assert (await ann.responses.retrieve(first.id)).output_text == ANSWER
    answered: list[Any] = (await ann.responses.input_items.list(first.id)).data
    assert [item.content[0].text for item in answered] == ["my name is ann"]


async def test_a_conversations_saved_pages_are_its_own(saying: Site, ann: AsyncOpenAI) -> None:
    made = await ann.conversations.create()
    await ann.responses.create(model="tiny", input="hi", conversation={"id": made.id})
    await ann.responses.create(model="tiny", input="hi")
    keys = [request.memory.conversation_key for request in saying.worker.requests if request.memory is not None]
    assert len(keys) == len(set(keys)) == 2
    await ann.conversations.delete(made.id)
    assert [call[0] for worker in saying.page_workers for call in worker.calls] == ["forget_memory"] * 2


async def test_responses_that_go_on_from_each_other(saying: Site, ann: AsyncOpenAI) -> None:
    first = await ann.responses.create(model="tiny", input="one", instructions="be brief")
    second = await ann.responses.create(model="tiny", input="two", previous_response_id=first.id)
    await ann.responses.create(model="tiny", input="three", previous_response_id=second.id)
    shown = prompt(saying)
    places = [shown.index(text) for text in ("one", ANSWER, "two", "three")]
    assert places == sorted(places)
    assert "be brief" not in shown
    assert second.previous_response_id == first.id
    await ann.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        await ann.responses.retrieve(first.id)
    await ann.responses.create(model="tiny", input="four", previous_response_id=second.id)
    assert "one" not in prompt(saying)
    assert "two" in prompt(saying)


async def test_what_is_not_to_be_stored_is_not(ann: AsyncOpenAI, saying: Site) -> None:
    made = await ann.conversations.create(items=[{"role": "user", "content": "before"}])
    answer = await ann.responses.create(model="tiny", input="hi", store=False, conversation=made.id)
    assert answer.to_dict()["store"] is False
    assert "before" in prompt(saying)
    assert await texts_of(ann, made.id) == ["before"]
    with pytest.raises(NotFoundError):
        await ann.responses.retrieve(answer.id)


@pytest.mark.parametrize("by_response", [False, True])
async def test_an_answer_keeps_the_tokens_that_it_was_made_of(
    make_site: Callable[..., Site], by_response: bool
) -> None:
    own = [tokens_of(character)[0] for character in ANSWER]
    assert own != tokens_of(ANSWER)
    site = make_site(FakeWorker(lambda _: deltas(own)))
    site.add("ann")
    ann = client_of(site, await site.log_in("ann"))
    made = await ann.conversations.create()
    asked: dict[str, Any] = {} if by_response else {"conversation": made.id}
    first = await ann.responses.create(model="tiny", input="hi", **asked)
    assert first.output_text == ANSWER
    if by_response:
        asked = {"previous_response_id": first.id}
    await ann.responses.create(model="tiny", input="and now?", **asked)
    before, after = (list(request.prompt_token_ids) for request in site.worker.requests)
    assert after[: len(before) + len(own)] == before + own
    shown = (await ann.responses.retrieve(first.id)).to_dict()
    assert "token_ids" not in json.dumps(shown)


async def test_two_turns_at_once(make_site: Callable[..., Site]) -> None:
    site = make_site(FakeWorker(lambda _: deltas(tokens_of(ANSWER)), hang_after=1))
    site.add("ann")
    ann = client_of(site, await site.log_in("ann"))
    made = await ann.conversations.create()
    running = asyncio.create_task(ann.responses.create(model="tiny", input="first", conversation=made.id))
    await site.worker.started.wait()
    with pytest.raises(ConflictError) as refused:
        await ann.responses.create(model="tiny", input="second", conversation=made.id)
    assert refused.value.code == "conversation_conflict"
    with pytest.raises(ConflictError):
        await ann.conversations.items.create(made.id, items=[{"role": "user", "content": "third"}])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    site.worker._hang_after = None
    async with asyncio.timeout(60):
        while True:
            try:
                await ann.responses.create(model="tiny", input="fourth", conversation=made.id)
                break
            except ConflictError:
                await asyncio.sleep(0.01)
    assert await texts_of(ann, made.id) == ["fourth", ANSWER]


async def test_what_a_client_has_seen_before_it_went_is_kept(make_site: Callable[..., Site]) -> None:
    words = tokens_of(ANSWER)
    site = make_site(FakeWorker(lambda _: deltas(words), hang_after=len(words) - 1))
    site.add("ann")
    ann = client_of(site, await site.log_in("ann"))
    made = await ann.conversations.create()
    body = {"model": "tiny", "input": "hi", "conversation": made.id, "stream": True}
    for _ in range(2):
        await hang_up(site, ann.api_key, body, after=b"output_text.delta")
        await asyncio.gather(*site.gate._background_tasks)
    texts = await texts_of(ann, made.id)
    assert texts == ["hi", texts[1], "hi", texts[1]]
    assert texts[1]
    assert ANSWER.startswith(texts[1])
    await hang_up(site, ann.api_key, body, after=b"response.in_progress", hang_after=0)
    await asyncio.gather(*site.gate._background_tasks)
    assert await texts_of(ann, made.id) == texts


async def test_a_conversation_is_warmed_as_its_next_turn_asks(saying: Site, ann: AsyncOpenAI, bob: AsyncOpenAI) -> None:
    made = await ann.conversations.create()
    body = {"conversation": made.id}
    empty: Any = await ann.post("/memory/warm", body=body, cast_to=object)
    assert empty == {"object": "memory.warmed", "tokens": 0, "remembered_tokens": 0}
    await ann.responses.create(model="tiny", input="my name is ann", conversation=made.id)
    warmed: Any = await ann.post("/memory/warm", body=body, cast_to=object)
    request = saying.worker.requests[-1]
    assert warmed == {"object": "memory.warmed", "tokens": len(request.prompt_token_ids), "remembered_tokens": 0}
    assert request.max_new_tokens == 1
    await ann.responses.create(model="tiny", input="who am i?", conversation=made.id)
    following = saying.worker.requests[-1]
    shared = tokens_of(f"{ANSWER}<|im_end|>\n")
    text = list(request.prompt_token_ids)
    end = next(i for i in range(len(text), 0, -1) if text[i - len(shared) : i] == shared)
    assert list(following.prompt_token_ids[:end]) == text[:end]
    assert following.memory is not None
    assert request.memory is not None
    assert following.memory.conversation_key == request.memory.conversation_key
    for other, wrong in ((bob, body), (ann, {"conversation": "conv_" + "0" * 32})):
        with pytest.raises(NotFoundError):
            await other.post("/memory/warm", body=wrong, cast_to=object)


async def test_another_users_texts_are_not_there(saying: Site, ann: AsyncOpenAI, bob: AsyncOpenAI) -> None:
    made = await ann.conversations.create(items=[{"role": "user", "content": CANARY}])
    answer = await ann.responses.create(model="tiny", input=CANARY)
    item = str((await ann.conversations.items.list(made.id)).data[0].id)
    calls: list[Callable[[], Any]] = [
        lambda: bob.conversations.retrieve(made.id),
        lambda: bob.conversations.update(made.id, metadata={}),
        lambda: bob.conversations.delete(made.id),
        lambda: bob.conversations.items.list(made.id),
        lambda: bob.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}]),
        lambda: bob.conversations.items.retrieve(item, conversation_id=made.id),
        lambda: bob.conversations.items.delete(item, conversation_id=made.id),
        lambda: bob.responses.create(model="tiny", input="x", conversation=made.id),
        lambda: bob.responses.create(model="tiny", input="x", conversation=made.id, store=False),
        lambda: bob.responses.create(model="tiny", input="x", previous_response_id=answer.id),
        lambda: bob.responses.retrieve(answer.id),
        lambda: bob.responses.delete(answer.id),
        lambda: bob.responses.input_items.list(answer.id),
        lambda: bob.get(f"/conversations/{made.id}/export", cast_to=object),
        lambda: bob.get(f"/conversations?after={made.id}", cast_to=object),
    ]
    requests = len(saying.worker.requests)
    for call in calls:
        with pytest.raises(NotFoundError) as refused:
            await call()
        assert CANARY not in str(refused.value)
    assert len(saying.worker.requests) == requests
    assert (await bob.get("/conversations", cast_to=object))["data"] == []  # type: ignore[index]
    assert await texts_of(ann, made.id) == [CANARY]


async def test_branches(saying: Site, ann: AsyncOpenAI) -> None:
    made = await ann.conversations.create()

    async def ask(question: str, parent: str | None = None) -> str:
        place: Any = {"id": made.id} | ({} if parent is None else {"parent": parent})
        answer: Any = await ann.responses.create(model="tiny", input=question, conversation=place)
        return str(answer.output[0].id)

    first = await ask("one")
    await ask("two")
    other = await ask("three", first)
    assert "one" in prompt(saying)
    assert "two" not in prompt(saying)
    await ask("four")  # after the newest
    assert prompt(saying).index("three") < prompt(saying).index("four")
    assert "two" not in prompt(saying)
    await ask("five", "root")
    assert "one" not in prompt(saying)
    items: list[Any] = (await ann.conversations.items.list(made.id, order="asc", limit=100)).data
    parents = {item.content[0].text: item.to_dict().get("parent") for item in items if item.role == "user"}
    assert parents == {"one": None, "two": None, "three": first, "four": None, "five": "root"}
    markdown = await saying.ask("GET", f"/v1/conversations/{made.id}/export?format=md", ann.api_key)
    assert "five" in markdown.text
    assert "three" not in markdown.text
    exported = (await saying.ask("GET", f"/v1/conversations/{made.id}/export", ann.api_key)).json()
    assert len(exported["items"]) == 10
    added = {"items": [{"role": "user", "content": "six"}], "parent": other}
    assert (await saying.ask("POST", f"/v1/conversations/{made.id}/items", ann.api_key, added)).status_code == 200
    await ann.conversations.items.delete(first, conversation_id=made.id)
    await ask("seven", items[2].id)  # its parent was deleted: it follows the item stored before
    assert prompt(saying).index("one") < prompt(saying).index("two") < prompt(saying).index("seven")
    with pytest.raises(BadRequestError, match="no such item"):
        await ask("eight", "msg_0")
    code = await saying.code("POST", f"/v1/conversations/{made.id}/items", ann.api_key, added | {"parent": "msg_0"})
    assert code == "404 not_found"


def test_a_ring_of_parents_is_not_followed_for_ever() -> None:
    records = [Record({"id": id_}, [], parent) for id_, parent in (("a", "c"), ("b", "b"), ("c", "a"))]
    assert [one.item["id"] for one in path_to(records, None)] == ["a", "c"]
    assert [one.item["id"] for one in path_to(records, "b")] == ["a", "b"]
    assert path_to([], None) == path_to(records, "root") == []


def test_a_passage_is_the_text_around_what_was_found() -> None:
    long = "A" * 50 + "\n\nthe  Straße is long " + "b" * 200
    said: list[Any] = [{"content": "First."}, {"content": [{"text": long}]}]
    assert passage_of(said, "strasse is") == "…" + "A" * 18 + " the Straße is long " + "b" * 84 + "…"
    assert passage_of(said, "first") == "First."
    assert passage_of(said, "second") is None
    file = {"type": "input_file", "filename": "lease.md", "text": "The rent is 900."}
    said.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How much?"}, file]})
    assert [passage_of(said, words) for words in ("much", "lease")] == ["How much? lease.md"] * 2
    assert passage_of(said, "rent") == "The rent is 900."


async def test_an_answers_last_item_tells_of_its_response(saying: Site, ann: AsyncOpenAI) -> None:
    made = await ann.conversations.create()
    answer = await ann.responses.create(model="tiny", input="hi", conversation=made.id)
    items: list[Any] = (await ann.conversations.items.list(made.id, order="asc")).data
    assert "response" not in items[0].to_dict()
    told = items[1].to_dict()["response"]
    assert (told["id"], told["model"], told["status"]) == (answer.id, "tiny", "completed")
    assert answer.usage is not None
    assert told["usage"]["total_tokens"] == answer.usage.total_tokens


async def test_the_list_its_search_and_the_end_of_all(ann: AsyncOpenAI, saying: Site) -> None:
    made = [await ann.conversations.create(items=[{"role": "user", "content": text}]) for text in ("Alpha", "beta")]
    await ann.conversations.update(made[0].id, metadata={"title": "Greek"})

    async def found(query: str) -> list[str]:
        answer: Any = await ann.get(f"/conversations?{query}", cast_to=object)
        return [one["title"] for one in answer["data"]]

    assert sorted(await found("")) == ["Greek", "beta"]
    assert await found("q=ALPHA") == await found("q=gree") == ["Greek"]
    assert await found("q=nothing") == []
    passages: Any = await ann.get("/conversations?q=ALPHA", cast_to=object)
    assert [one["passage"] for one in passages["data"]] == ["Alpha"]
    passages = await ann.get("/conversations?q=gree", cast_to=object)
    assert [one["passage"] for one in passages["data"]] == [None]
    answer: Any = await ann.get("/conversations?limit=1", cast_to=object)
    assert answer["has_more"] is True
    rest = await found(f"after={answer['last_id']}")
    assert len(rest) == 1
    deleted: Any = await ann.delete("/conversations", cast_to=object)
    assert deleted == {"object": "conversations.deleted", "conversations": 2, "files": 0, "unacknowledged": 0}
    assert await found("") == []
    assert [call[0] for call in saying.page_workers[0].calls] == ["forget_memory"]


async def test_a_deletion_can_be_undone_for_some_seconds(ann: AsyncOpenAI, saying: Site) -> None:
    async def listed(client: AsyncOpenAI, words: str = "") -> list[str]:
        answer: Any = await client.get(f"/conversations?q={words}", cast_to=object)
        return [each["title"] for each in answer["data"]]

    one = await ann.conversations.create(metadata={"title": "Kept"})
    deleted = await ann.delete(f"/conversations/{one.id}?undo=true", cast_to=httpx2.Response)
    assert deleted.json()["deleted"] is True
    assert saying.page_workers[0].calls[-1][0] == "forget_memory"
    assert await listed(ann) == []
    assert await listed(ann, "kept") == []
    for path in (f"/conversations/{one.id}/export", f"/conversations/{one.id}/items", f"/conversations/{one.id}"):
        with pytest.raises(NotFoundError):
            await ann.get(path, cast_to=httpx2.Response)
    with pytest.raises(NotFoundError):
        await ann.responses.create(model="tiny", input="hi", conversation=one.id)
    restored = await ann.post(f"/conversations/{one.id}/restore", cast_to=httpx2.Response)
    assert restored.json()["title"] == "Kept"
    assert await listed(ann) == ["Kept"]
    with pytest.raises(NotFoundError):
        await ann.post(f"/conversations/{one.id}/restore", cast_to=httpx2.Response)
    with pytest.raises(BadRequestError):
        await ann.delete(f"/conversations/{one.id}?undo=1", cast_to=httpx2.Response)


async def test_export(ann: AsyncOpenAI, saying: Site) -> None:
    items: Any = [{"role": "user", "content": "hi ```` there"}, {"role": "assistant", "content": "hello"}]
    made = await ann.conversations.create(items=items, metadata={"title": 'a "title"\n../x'})
    markdown = await saying.ask("GET", f"/v1/conversations/{made.id}/export?format=md", ann.api_key)
    assert markdown.headers["content-disposition"] == f'attachment; filename="{made.id}.md"'
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert "## You\n\nhi ```` there\n\n## Answer\n\nhello\n" in markdown.text
    exported = (await saying.ask("GET", f"/v1/conversations/{made.id}/export", ann.api_key)).json()
    again = await ann.conversations.create(items=exported["items"], metadata=exported["metadata"])
    assert await texts_of(ann, again.id) == await texts_of(ann, made.id)


async def test_what_is_wrong_is_named(saying: Site, ann: AsyncOpenAI) -> None:
    for body, param in (
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": 3}, "conversation"),
    ):
        answer = await saying.ask("POST", "/v1/responses", ann.api_key, {"model": "tiny", "input": "x", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for query in ("limit=0", "limit=x", "order=up", "aftr=1"):
        assert (await saying.ask("GET", f"/v1/conversations?{query}", ann.api_key)).status_code == 400
    assert (await saying.ask("DELETE", "/v1/conversations?all=1", ann.api_key)).status_code == 400


async def test_a_guest_stores_nothing(make_site: Callable[..., Site]) -> None:
    site = make_site(FakeWorker(lambda _: deltas(tokens_of(ANSWER))), guests=True)
    for field, value in (("store", True), ("previous_response_id", "resp_1"), ("conversation", "conv_1")):
        body = {"model": "tiny", "input": "hi", field: value}
        answer = await site.ask("POST", "/v1/responses", None, body)
        assert answer.json()["error"]["message"].startswith(f"'{field}' is for users only")
        assert answer.status_code == 400
    plain = (await site.ask("POST", "/v1/responses", None, {"model": "tiny", "input": "hi"})).json()
    assert plain["store"] is False
    assert (await site.ask("GET", "/v1/conversations", None)).status_code == 401
    assert (await site.ask("GET", f"/v1/responses/{plain['id']}", None)).status_code == 401


async def test_an_answer_that_can_not_be_stored_says_so(saying: Site, ann: AsyncOpenAI) -> None:
    saying.accounts.failing = ["store_response"]
    with pytest.raises(OpenAIError, match="accounts do not answer"):
        await ann.responses.create(model="tiny", input="hi", store=True)
    saying.accounts.failing = ["store_response"]
    stream = await ann.responses.create(model="tiny", input="hi", stream=True, store=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_without_room_an_answer_is_given_and_not_stored(make_site: Callable[..., Site], stream: bool) -> None:
    site = make_site(FakeWorker(lambda _: deltas(tokens_of(ANSWER))), stored_bytes_per_user=0)
    site.add("ann")
    ann = client_of(site, await site.log_in("ann"))
    asked: dict[str, Any] = {"model": "tiny", "input": "hi", "stream": stream}
    answer: Any = await ann.responses.create(**asked)
    if stream:
        events: list[Any] = [event async for event in answer]
        answer = events[-1].response
    assert (answer.status, answer.to_dict()["store"]) == ("completed", False)
    with pytest.raises(NotFoundError):
        await ann.responses.retrieve(answer.id)
    with pytest.raises(RateLimitError, match="take 0 of 0 bytes"):
        await ann.responses.create(model="tiny", input="hi", store=True)
    with pytest.raises(RateLimitError):
        await ann.conversations.create(items=[{"role": "user", "content": "x"}])


async def test_no_text_is_on_the_disk(saying: Site, ann: AsyncOpenAI, tmp_path: Path) -> None:
    made = await ann.conversations.create(items=[{"role": "user", "content": CANARY}], metadata={"title": CANARY})
    await ann.responses.create(model="tiny", input=CANARY, conversation=made.id)
    for path in tmp_path.iterdir():
        assert CANARY.encode() not in path.read_bytes()
    # Exchanged rows do not open.
    other = await ann.conversations.create(items=[{"role": "user", "content": "other"}])
    saying.service.close()
    database = sqlite3.connect(saying.settings.database)
    rows = database.execute("SELECT conversation_id, seq, sealed FROM items ORDER BY seq").fetchall()
    swapped = next(row for row in rows if row[0] == other.id.removeprefix("conv_"))
    foreign = next(row for row in rows if row[0] != swapped[0])
    database.execute("UPDATE items SET sealed = ? WHERE conversation_id = ?", (foreign[2], swapped[0]))
    database.commit()
    database.close()
    saying.service = saying.accounts.service = saying._opened()
    answer = await saying.ask("GET", f"/v1/conversations/{other.id}/items", ann.api_key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "stored_record_damaged")


def test_items_get_ids_of_their_own() -> None:
    (one,), (other,) = items_of("hi"), items_of("hi")
    assert one["id"] != other["id"]
    assert one["content"] == [{"type": "input_text", "text": "hi"}]
