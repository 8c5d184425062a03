"""Answers that continue without their clients, over accounts in this process."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError, NotFoundError, RateLimitError

from app.interface.generate.answers import running
from app.interface.users import stored_answers
from app.interface.users.texts import Texts
from app.interface.wire.responses import ResponseRequest
from app.messages.failures import QueueFullError
from app.messages.outputs import PromptProgress, TokenDelta
from app.messages.requests import GenerateRequest
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import LocalAccounts, Site
from tests.app.interface.users.test_conversations import client_of, hang_up, texts_of
from tests.app.tiny_model import reference_tokenizer

ANSWER = "the answer is 42"
TEXT = "response.output_text.delta"


class SteppedWorker(FakeWorker):
    """Yields each delta when released."""

    def __init__(self, script: Callable[[GenerateRequest], Any] = lambda _: deltas(tokens_of(ANSWER))) -> None:
        super().__init__(script)
        self._steps = asyncio.Semaphore(0)

    def let(self, count: int = 1000) -> None:
        for _ in range(count):
            self._steps.release()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        stream = super().generate(request)
        try:
            async for delta in stream:
                await self._steps.acquire()
                yield delta
        finally:
            await stream.aclose()


class World:
    def __init__(self, site: Site, worker: SteppedWorker, secret: str) -> None:
        self.site, self.worker, self.secret = site, worker, secret
        self.client = client_of(site, secret)
        self.id = ""

    async def ask(self, question: str = "hi", **more: Any) -> Any:
        body: dict[str, Any] = {"model": "tiny", "input": question, "background": True} | more
        return await self.client.responses.create(**body)

    async def over(self, response_id: str) -> Any:
        """Waits for the response's end and returns it."""
        async with asyncio.timeout(120):
            while (found := await self.client.responses.retrieve(response_id)).status in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
        return found

    async def followed(self, response_id: str) -> list[Any]:
        """Waits for the response's end and returns its events."""
        return [event async for event in await self.client.responses.retrieve(response_id, stream=True)]

    def limit_stored(self, size_bytes: int) -> None:
        """Limits what may be stored per user from now on."""
        store = self.site.inside.store
        store.settings = store.settings.model_copy(update={"stored_bytes_per_user": size_bytes})

    async def texts(self) -> list[str]:
        return await texts_of(self.client, self.id)


@pytest.fixture
async def world(make_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(stored_answers, "_TRY_AGAIN_S", (0.0, 0.0, 0.0))
    worker = SteppedWorker()
    site = make_site(worker)
    site.add("ann")
    made = World(site, worker, await site.log_in("ann"))
    made.id = (await made.client.conversations.create()).id
    return made


async def settled(site: Site) -> None:
    while site.gate._background_tasks:
        await asyncio.gather(*site.gate._background_tasks, return_exceptions=True)


async def test_a_client_that_does_not_listen_asks_for_it_later(world: World) -> None:
    made = await world.ask("my name is ann", conversation=world.id)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    conversation = (await world.client.conversations.retrieve(world.id)).to_dict()
    assert (conversation["response_id"], conversation["title"]) == (made.id, "my name is ann")
    asked: list[Any] = (await world.client.responses.input_items.list(made.id)).data
    assert asked[0].content[0].text == "my name is ann"
    world.worker.let(2)
    while not (now := await world.client.responses.retrieve(made.id)).output_text:
        await asyncio.sleep(0)
    assert now.status == "in_progress"
    assert ANSWER.startswith(now.output_text)
    assert now.output_text != ANSWER
    world.worker.let()
    assert (await world.over(made.id)).output_text == ANSWER
    assert await world.texts() == ["my name is ann", ANSWER]
    assert (await world.client.conversations.retrieve(world.id)).to_dict()["response_id"] is None
    world.site.gate.running.forget(made.id)
    assert (await world.client.responses.retrieve(made.id)).output_text == ANSWER  # as it is stored


async def test_it_goes_on_when_its_client_hangs_up(world: World) -> None:
    body = {"model": "tiny", "input": "hi", "conversation": world.id, "background": True, "stream": True}
    world.worker.let(2)
    await hang_up(world.site, world.secret, body, after=b"output_text.delta")
    response_id = (await world.client.conversations.retrieve(world.id)).to_dict()["response_id"]
    assert isinstance(response_id, str)
    world.worker.let()
    assert (await world.over(response_id)).status == "completed"
    assert await world.texts() == ["hi", ANSWER]
    assert world.worker.closed == 0


async def test_it_goes_on_when_its_client_hangs_up_before_it_begins(world: World) -> None:
    body = {"model": "tiny", "input": "hi", "conversation": world.id, "background": True, "stream": True}
    asking = asyncio.create_task(hang_up(world.site, world.secret, body, after=b"nothing"))
    while not world.worker.running:
        await asyncio.sleep(0)
    asking.cancel()  # as Serve does
    await asyncio.gather(asking, return_exceptions=True)
    response_id = (await world.client.conversations.retrieve(world.id)).to_dict()["response_id"]
    world.worker.let()
    assert (await world.over(str(response_id))).output_text == ANSWER
    assert await world.texts() == ["hi", ANSWER]


async def test_events_from_any_of_them_on(world: World) -> None:
    world.worker.let()
    stream = await world.ask(stream=True)
    events = [event.to_dict() async for event in stream]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    response_id = str(events[0]["response"]["id"])
    for after in range(-1, len(events)):
        more: Any = {} if after < 0 else {"starting_after": after}
        rest = await world.client.responses.retrieve(response_id, stream=True, **more)
        assert [event.to_dict() async for event in rest] == events[after + 1 :]
    world.site.gate.running.forget(response_id)
    late = await world.client.responses.retrieve(response_id, stream=True, starting_after=4)
    (last,) = [event.to_dict() async for event in late]
    assert (last["type"], last["sequence_number"]) == ("response.completed", 5)


async def test_many_follow_one_answer_while_it_grows(world: World) -> None:
    made = await world.ask()

    async def followed() -> str:
        return "".join([event.delta for event in await world.followed(made.id) if event.type == TEXT])

    following = [asyncio.create_task(followed()) for _ in range(5)]
    for _ in range(30):
        world.worker.let(1)
        await asyncio.sleep(0)
    following.append(asyncio.create_task(followed()))
    world.worker.let()
    assert await asyncio.gather(*following) == [ANSWER] * 6
    assert len(world.worker.requests) == 1


async def test_cancelling_keeps_what_there_is(world: World) -> None:
    made = await world.ask(conversation=world.id)
    world.worker.let(3)
    while not (await world.client.responses.retrieve(made.id)).output_text:
        await asyncio.sleep(0)
    following = asyncio.create_task(world.followed(made.id))
    cancelled = await world.client.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert 0 < len(cancelled.output_text) < len(ANSWER)
    assert (await following)[-1].type == "response.incomplete"
    assert await world.texts() == ["hi", cancelled.output_text]
    assert world.worker.closed == 1
    assert (await world.client.responses.cancel(made.id)).id == made.id  # once more
    world.site.gate.running.forget(made.id)
    assert (await world.client.responses.cancel(made.id)).status == "cancelled"
    world.worker.let()
    assert (await world.over((await world.ask(conversation=world.id)).id)).status == "completed"


async def test_cancelled_before_it_begins_its_question_is_kept(world: World) -> None:
    made = await world.ask("what now?", conversation=world.id)
    assert (await world.client.responses.cancel(made.id)).status == "cancelled"
    assert await world.texts() == ["what now?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure(make_site: Callable[..., Site], stream: bool) -> None:
    site = make_site(worker := SteppedWorker(lambda _: [QueueFullError()]))
    site.add("ann")
    ann = World(site, worker, await site.log_in("ann"))
    ann.id = (await ann.client.conversations.create()).id
    worker.let()
    if stream:  # its client is there to be told
        with pytest.raises(RateLimitError):
            await ann.ask(conversation=ann.id, stream=True)
        await settled(site)
        assert await ann.texts() == []
    else:
        failed = await ann.over((await ann.ask(conversation=ann.id)).id)
        assert failed.status == "failed"
        assert failed.error.code == "rate_limit_exceeded"
        assert await ann.texts() == ["hi"]
    await settled(site)
    assert (await ann.client.conversations.retrieve(ann.id)).to_dict()["response_id"] is None
    assert not site.gate._open


async def test_a_failure_at_once_has_its_status(make_site: Callable[..., Site]) -> None:
    site = make_site(FakeWorker(lambda _: [QueueFullError()]))
    site.add("ann")
    client = client_of(site, await site.log_in("ann"))
    made = await client.conversations.create()
    for _ in range(3):
        with pytest.raises(RateLimitError):
            await client.responses.create(model="tiny", input="hi", conversation=made.id, background=True, stream=True)
        await settled(site)
    assert await texts_of(client, made.id) == []
    assert not site.gate._open


async def test_what_runs_counts_until_it_has_ended(world: World) -> None:
    made = await world.ask()
    assert len(world.site.gate._open) == 1
    world.worker.let()
    await world.over(made.id)
    await settled(world.site)
    assert not world.site.gate._open
    assert "done" in world.site.accounts.calls


async def test_too_many_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_OF_ONE", 2)
    made = [await world.ask() for _ in range(2)]
    with pytest.raises(RateLimitError, match="Too many answers"):
        await world.ask(conversation=world.id)
    world.worker.let()
    for one in made:
        await world.over(one.id)
    assert (await world.over((await world.ask(conversation=world.id)).id)).status == "completed"


async def test_what_has_ended_takes_bounded_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.worker.let()
    ended = [(await world.over((await world.ask()).id)).id]
    known = world.site.gate.running._answers
    monkeypatch.setattr(running, "KEPT_BYTES", 3 * known[ended[0]].size_bytes + 100)
    ended += [(await world.over((await world.ask()).id)).id for _ in range(5)]
    assert [*known] == ended[-3:]
    for response_id in ended:  # all of them are stored
        assert (await world.client.responses.retrieve(response_id)).output_text == ANSWER


async def test_when_it_has_ended_what_was_asked_is_not_kept(world: World) -> None:
    asked = "only in this question"
    world.worker.let()
    made = await world.over((await world.ask(asked)).id)
    await settled(world.site)
    world.worker.requests.clear()
    gc.collect()
    holders = [one for one in gc.get_objects() if type(one) is ResponseRequest and one.input == asked]
    assert not holders
    assert (await world.client.responses.retrieve(made.id)).output_text == ANSWER


async def test_what_is_refused(world: World, make_site: Callable[..., Site]) -> None:
    with pytest.raises(BadRequestError, match="'background' needs 'store'"):
        await world.ask(store=False)
    world.worker.let()
    plain = await world.client.responses.create(model="tiny", input="hi")
    with pytest.raises(BadRequestError, match="background"):
        await world.client.responses.cancel(plain.id)
    for query in ("stream=1", "starting_after=1", "stream=true&starting_after=x", "stream=true&more=1"):
        answer = await world.site.ask("GET", f"/v1/responses/{plain.id}?{query}", world.secret)
        assert answer.status_code == 400, query
    answer = await world.site.ask("POST", "/v1/responses", None, {"model": "tiny", "input": "hi", "background": True})
    assert answer.status_code == 401


async def test_nobody_else_sees_or_ends_it(world: World) -> None:
    world.site.add("bob", role="admin")
    bob = client_of(world.site, await world.site.log_in("bob"))
    made = await world.ask()
    for call in (
        bob.responses.retrieve(made.id),
        bob.responses.retrieve(made.id, stream=True),
        bob.responses.cancel(made.id),
        bob.responses.delete(made.id),
        bob.responses.input_items.list(made.id),
    ):
        with pytest.raises(NotFoundError):
            await call
    await world.site.ask("DELETE", "/v1/conversations", await world.site.log_in("bob"))
    world.worker.let()
    assert (await world.over(made.id)).output_text == ANSWER


async def test_an_answer_that_has_not_ended_is_no_beginning(world: World) -> None:
    made = await world.ask()
    with pytest.raises(BadRequestError, match="not ended"):
        await world.client.responses.create(model="tiny", input="and?", previous_response_id=made.id)


@pytest.mark.parametrize("what", ["response", "conversation", "everything"])
async def test_deleted_it_ends_and_does_not_come_back(world: World, what: str) -> None:
    made = await world.ask(conversation=world.id)
    world.worker.let(2)
    if what == "response":
        await world.client.responses.delete(made.id)
    elif what == "conversation":
        await world.client.conversations.delete(world.id)
    else:
        assert (await world.site.ask("DELETE", "/v1/conversations", world.secret)).status_code == 200
    assert world.worker.running == 0
    world.worker.let()
    await settled(world.site)
    with pytest.raises(NotFoundError):
        await world.client.responses.retrieve(made.id)


async def test_the_accounts_are_away_for_a_moment_at_its_end(world: World) -> None:
    made = await world.ask(conversation=world.id)
    world.site.accounts.failing = ["store_response"] * 2
    world.worker.let()
    assert (await world.over(made.id)).status == "completed"
    assert await world.texts() == ["hi", ANSWER]


async def test_what_finds_no_room_at_its_end_has_failed_and_is_not_open_for_ever(world: World) -> None:
    made = await world.ask(conversation=world.id)
    world.limit_stored(1)
    world.worker.let()
    assert (await world.over(made.id)).status == "failed"
    await settled(world.site)
    world.site.gate.running.forget(made.id)
    assert (await world.client.responses.retrieve(made.id)).status == "failed"
    assert (await world.client.conversations.retrieve(world.id)).to_dict()["response_id"] is None


async def test_it_is_complete_when_it_is_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    storing, may_go_on = asyncio.Event(), asyncio.Event()
    store = Texts.store

    async def slow(*arguments: Any, **more: Any) -> None:
        storing.set()
        await may_go_on.wait()
        await store(*arguments, **more)

    monkeypatch.setattr(Texts, "store", slow)
    made = await world.ask()
    world.worker.let()
    await storing.wait()
    status = (await world.client.responses.retrieve(made.id)).status
    may_go_on.set()
    assert status == "in_progress"
    assert (await world.over(made.id)).status == "completed"


async def test_whoever_logs_out_finds_it_ended(world: World) -> None:
    async with world.site.watching():
        made = await world.ask(conversation=world.id)
        await world.site.ask("POST", "/v1/auth/logout", world.secret, {})
        async with asyncio.timeout(120):
            while world.worker.running:
                await asyncio.sleep(0.01)
    await settled(world.site)
    world.site.gate.running.forget(made.id)
    again = client_of(world.site, await world.site.log_in("ann"))
    assert (await again.responses.retrieve(made.id)).status == "failed"
    assert not world.site.gate._open


async def test_the_row_that_an_answer_replaces_takes_no_room_from_it(world: World) -> None:
    made = await world.ask()
    world.limit_stored(1500)  # two such rows have more than 1,800
    world.worker.let()
    assert (await world.over(made.id)).status == "completed"


async def test_the_accounts_are_away_at_its_beginning(world: World) -> None:
    world.site.accounts.failing = ["begin_response"]
    with pytest.raises(APIStatusError) as error:
        await world.ask(conversation=world.id)
    assert error.value.status_code == 503
    await settled(world.site)
    assert not world.site.gate._open
    world.worker.let()
    assert (await world.over((await world.ask(conversation=world.id)).id)).status == "completed"


async def test_a_user_who_is_disabled_meanwhile(world: World) -> None:
    async with world.site.watching():
        made = await world.ask(conversation=world.id)
        world.site.add("eve", role="admin")
        eve = await world.site.log_in("eve")
        await world.site.ask("POST", "/v1/admin/users/ann", eve, {"state": "disabled"})
        async with asyncio.timeout(120):
            while world.worker.running:
                await asyncio.sleep(0.01)
    assert world.worker.running == 0
    assert (await world.site.ask("GET", f"/v1/responses/{made.id}", world.secret)).status_code == 401


async def test_an_ingress_that_stops_stores_what_it_has(world: World) -> None:
    made = await world.ask(conversation=world.id)
    world.worker.let(3)
    while not (await world.client.responses.retrieve(made.id)).output_text:
        await asyncio.sleep(0)
    await world.site.gate.running.close()
    world.site.gate.running.forget(made.id)
    stored = await world.client.responses.retrieve(made.id)
    assert stored.status == "cancelled"
    assert stored.output_text
    assert await world.texts() == ["hi", stored.output_text]


async def test_a_prompts_length_has_what_is_stored_before_it(world: World) -> None:
    made = await world.ask(conversation=world.id)
    world.worker.let()
    await world.over(made.id)
    count = world.client.responses.input_tokens.count
    alone = (await count(model=made.model, input="and?")).input_tokens
    for before in ({"conversation": world.id}, {"previous_response_id": made.id}):
        assert (await count(model=made.model, input="and?", **before)).input_tokens > alone + 5
    asked = await world.ask("and?", conversation=world.id)
    world.worker.let()
    usage = (await world.over(asked.id)).usage
    assert usage is not None
    counted = (await count(model=made.model, input="and?", previous_response_id=made.id)).input_tokens
    assert counted == usage.input_tokens


async def test_an_ingress_that_stops_waits_for_what_it_has(world: World) -> None:
    made = await world.ask(conversation=world.id)
    closing = asyncio.create_task(world.site.gate.running.close(wait_s=60))
    await asyncio.sleep(0)
    world.worker.let()
    await closing
    assert (await world.client.responses.retrieve(made.id)).status == "completed"


async def test_a_question_is_stored_when_a_worker_has_it(world: World) -> None:
    made = await world.ask("what now?", conversation=world.id)
    assert await world.texts() == []
    world.worker.let(1)
    while await world.texts() != ["what now?"]:
        await asyncio.sleep(0.01)
    refused = await world.site.code(
        "POST", f"/v1/conversations/{world.id}/items", world.secret, {"items": [{"role": "user", "content": "no"}]}
    )
    assert refused == "409 conversation_conflict"
    world.site.inside.turns.ingress_lost("here")  # its ingress dies
    world.site.inside.stored_responses.ingress_lost("here")
    assert await world.texts() == ["what now?"]
    world.worker.let()
    await world.over(made.id)


async def test_a_question_that_was_not_stored_at_once_is_stored_with_its_answer(world: World) -> None:
    world.site.accounts.failing = ["add_question"]
    made = await world.ask(conversation=world.id)
    world.worker.let()
    assert (await world.over(made.id)).status == "completed"
    assert await world.texts() == ["hi", ANSWER]


async def test_at_another_ingress_and_after_its_own_has_died(world: World, make_site: Callable[..., Site]) -> None:
    made = await world.ask(conversation=world.id)
    mine = world.site.gate.running.find(made.id, world.site.inside.logins.identify(world.secret).user_id)
    assert mine is not None
    world.site.gate.running.forget(made.id)  # as if it ran at another ingress
    assert (await world.client.responses.retrieve(made.id)).status == "queued"
    for call in (world.client.responses.retrieve(made.id, stream=True), world.client.responses.cancel(made.id)):
        with pytest.raises(APIStatusError) as error:
            await call
        assert (error.value.status_code, error.value.code) == (409, "response_in_progress")
    assert isinstance(world.site.accounts, LocalAccounts)
    world.site.inside.turns.ingress_lost("here")
    world.site.inside.stored_responses.ingress_lost("here")
    lost = await world.client.responses.retrieve(made.id)
    assert lost.status == "failed"
    assert lost.error is not None
    assert "stopped" in lost.error.message
    asked: list[Any] = (await world.client.responses.input_items.list(made.id)).data
    assert asked[0].content[0].text == "hi"
    await mine.cancel()


async def test_it_is_queued_until_a_worker_begins_if_it_asks(make_site: Callable[..., Site]) -> None:
    waits, is_read = PromptProgress(9, 0, 0, 0.0, 1), PromptProgress(9, 0, 4, 0.5, None)
    news = [TokenDelta((), progress=each) for each in (waits, is_read)]
    worker = SteppedWorker(lambda _: [*news, *deltas(tokens_of(ANSWER))])
    site = make_site(worker)
    site.add("ann")
    client = client_of(site, await site.log_in("ann"))
    body: Any = {"model": "tiny", "input": "hi", "background": True, "extra_body": {"return_progress": True}}
    asking = asyncio.create_task(client.responses.create(**body, stream=True))
    while not worker.requests:
        await asyncio.sleep(0)
    statuses = []
    for _ in range(3):
        worker.let(1)
        for _ in range(20):
            await asyncio.sleep(0)
        [one] = site.gate.running._answers.values()
        statuses.append(one.so_far().status)
    assert statuses == ["queued", "in_progress", "in_progress"]
    worker.let()
    kinds = [event.type async for event in await asking]
    assert kinds[:5] == [
        *("response.created", "response.queued", "response.prompt_progress"),
        *("response.in_progress", "response.prompt_progress"),
    ]
    assert kinds[-1] == "response.completed"


async def test_a_stored_chat_goes_on_past_the_context(world: World) -> None:
    world.worker.let()
    told: list[Any] = []
    for number in range(8):
        question = f"question {number} about " + "cats and dogs " * 8
        made = await world.ask(question, conversation=world.id, extra_body={"on_overflow": "shift"})
        assert (await world.over(made.id)).output_text == ANSWER
        world.site.gate.running.forget(made.id)
        told.append((await world.client.responses.retrieve(made.id)).to_dict()["context"])  # as it is stored
    assert told[0] == {"left_out_turns": 0, "limit_tokens": 384}
    left_out = told[-1]["left_out_turns"]
    assert left_out > 0
    prompt = world.site.worker.requests[-1].prompt_token_ids
    text = reference_tokenizer().decode(prompt, skip_special_tokens=False)
    assert text.count("question") == 8 - left_out
    assert f"question {left_out} " in text
    assert len(await world.texts()) == 16, "what was left out is still stored"
    warmed = await world.site.client.post(
        "/v1/memory/warm",
        json={"conversation": world.id, "model": "tiny"},
        headers={"Authorization": f"Bearer {world.secret}"},
    )
    assert warmed.status_code == 200, warmed.text
    assert world.site.worker.requests[-1].prompt_token_ids[: len(prompt) - 3] == prompt[:-3]
