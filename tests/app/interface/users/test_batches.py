"""Files and batches with OpenAI's client, over accounts in this process and a worker without an engine."""

import asyncio
import base64
import inspect
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import APIStatusError
from openai.resources.batches import AsyncBatches
from openai.resources.files import AsyncFiles
from openai.types import Batch, FileObject
from sqlalchemy import update

from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS
from app.interface.users.batches import answering, running
from app.interface.users.batches.lines import Line, lines_of
from app.interface.users.gate import AccountsGate
from app.messages.accounts import UserChange, UserLimits
from app.messages.batches import LEASE_S
from app.messages.failures import NoWorkerError, QueueFullError, RequestGivenUpError
from app.messages.outputs import PromptResult, TokenDelta
from app.messages.requests import GenerateRequest, Priority
from app.settings.accounts import BatchSettings
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.documents.test_openapi import TRANSPORT
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import CHAT, LocalAccounts, Site
from tests.app.interface.users.test_conversations import client_of
from tests.app.service import http_app
from tests.app.tiny_model import HIDDEN_SIZE, reference_tokenizer

ENDPOINT: Any = "/v1/chat/completions"
URL = b"/v1/chat/completions"
ENDED = ("failed", "completed", "expired", "cancelled")
BOUNDARY = "a-boundary"


class Worker(FakeWorker):
    """Says which number it was asked for."""

    def __init__(self) -> None:
        super().__init__(lambda _: [])
        self.go = asyncio.Event()
        """Answers wait until this is set."""
        self.go.set()
        self.errors: dict[int, list[Exception]] = {}
        """What becomes of a number the next times it is asked for."""
        self.asked: list[int] = []

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        decoded: str = reference_tokenizer().decode(list(request.prompt_token_ids), skip_special_tokens=False)
        found = re.search(r"number (\d+)", decoded)
        number = int(found[1]) if found is not None else -1
        self.requests.append(request)
        self.asked.append(number)
        self.running += 1
        has_ended = False
        try:
            await self.go.wait()
            if self.errors.get(number):
                has_ended = True
                raise self.errors[number].pop(0)
            if request.pooling is not None:
                yield TokenDelta((), "length", 0, None, PromptResult(embedding=np.ones(HIDDEN_SIZE, np.float32)))
            else:
                for delta in deltas(tokens_of(f"it is {number}")):
                    yield delta
            has_ended = True
        finally:
            self.running -= 1
            self.closed += not has_ended


def line(number: int, **changes: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"number {number}"}]}
    return {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body} | changes


def lines(numbers: Sequence[int]) -> bytes:
    return b"".join(json.dumps(line(number)).encode() + b"\n" for number in numbers)


class World:
    def __init__(self, site: Site, worker: Worker, secret: str) -> None:
        self.site, self.worker, self.secret = site, worker, secret
        self.client = client_of(site, secret)

    async def upload(self, content: bytes, **more: Any) -> str:
        return str((await self.client.files.create(file=("in.jsonl", content), purpose="batch", **more)).id)

    async def begin(self, content: bytes, endpoint: Any = ENDPOINT, **more: Any) -> str:
        file_id = await self.upload(content)
        made = await self.client.batches.create(
            input_file_id=file_id, endpoint=endpoint, completion_window="24h", **more
        )
        return str(made.id)

    async def until(self, batch_id: str, reached: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(120):
            while not reached(found := await self.client.batches.retrieve(batch_id)):
                await asyncio.sleep(0.01)
        return found

    async def ended(self, batch_id: str) -> Any:
        return await self.until(batch_id, lambda batch: batch.status in ENDED)

    async def results(self, file_id: str | None) -> dict[str, Any]:
        """The results by custom_id, each of which comes once."""
        assert file_id is not None
        content = (await self.client.files.content(file_id)).content
        found = [json.loads(one) for one in content.splitlines()]
        assert max(Counter(one["custom_id"] for one in found).values()) == 1
        return {one["custom_id"]: one for one in found}

    async def said(self, batch: Any) -> dict[str, str]:
        found = await self.results(batch.output_file_id)
        return {name: said(one) for name, one in found.items()}


def said(result: Any) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def expected(numbers: Sequence[int]) -> dict[str, str]:
    return {f"line-{number}": f"it is {number}" for number in numbers}


class OtherIngress:
    """An ingress over the same accounts."""

    def __init__(self, site: Site, worker: Worker) -> None:
        self.accounts = accounts = LocalAccounts(site.service, "another")
        gate = AccountsGate(accounts, accounts, accounts, accounts, guests=False, revocation_s=5.0)
        self.app = http_app(worker.generate, accounts=gate, batches=site.settings.batches)


@asynccontextmanager
async def running_batches(site: Site | OtherIngress) -> AsyncIterator["asyncio.Task[None]"]:
    """Runs batches, as the ingress does while it runs."""
    task = asyncio.create_task(site.app.state.batches.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def world_of(make_site: Callable[..., Site], **settings: Any) -> AsyncIterator[World]:
    worker = Worker()
    site = make_site(worker, **settings)
    site.add("ann")
    yield World(site, worker, await site.log_in("ann"))


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_LONGEST_WAIT_S", 0.01)
    for name in ("_SHORTEST_WAIT_S", "_LONGEST_WAIT_S", "_ROOM_PERIOD_S"):
        monkeypatch.setattr(running, name, 0.01)


@pytest.fixture
async def world(make_site: Callable[..., Site]) -> AsyncIterator[World]:
    async with world_of(make_site) as world:
        yield world


async def refusal(call: Any) -> tuple[int, str | None, str | None]:
    """Status, code and param of the error."""
    with pytest.raises(APIStatusError) as error:
        await call
    return error.value.status_code, error.value.code, error.value.param


# --- a whole batch


async def test_a_batch_with_openai_s_client(world: World) -> None:
    async with running_batches(world.site):
        batch_id = await world.begin(lines(range(50)), metadata={"job": "night"})
        batch = await world.ended(batch_id)
    assert (batch.status, batch.metadata, batch.model) == ("completed", {"job": "night"}, "tiny")
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (50, 50, 0)
    assert batch.error_file_id is None
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at
    found = await world.results(batch.output_file_id)
    assert {name: said(one) for name, one in found.items()} == expected(range(50))
    one = found["line-7"]
    assert one["id"].startswith("batch_req_")
    assert (one["error"], one["response"]["status_code"]) == (None, 200)
    assert one["response"]["body"]["usage"]["completion_tokens"] > 0
    assert {request.priority for request in world.worker.requests} == {Priority.BATCH}
    files = {file.id: file async for file in world.client.files.list()}
    assert {file.purpose for file in files.values()} == {"batch", "batch_output"}
    file = files[str(batch.output_file_id)]
    assert file.filename == f"{batch_id}_output.jsonl"
    assert file.bytes == len((await world.client.files.content(file.id)).content)
    assert [one.id async for one in world.client.files.list(purpose="batch")] == [batch.input_file_id]
    assert [one.id async for one in world.client.batches.list()] == [batch_id]
    assert (await world.client.files.delete(file.id)).deleted
    assert (await world.client.batches.retrieve(batch_id)).output_file_id is None
    usage = (await world.site.ask("GET", "/v1/auth/limits", world.secret)).json()
    assert usage["tokens_per_day"]["used"] > 100
    assert usage["concurrent"]["used"] == 0


@pytest.mark.parametrize(
    ("endpoint", "body", "key"),
    [
        ("/v1/completions", {"prompt": "number 1"}, "choices"),
        ("/v1/responses", {"input": "number 1"}, "output"),
        ("/v1/embeddings", {"input": "number 1"}, "data"),
    ],
)
async def test_other_endpoints(world: World, endpoint: str, body: Mapping[str, Any], key: str) -> None:
    asked = line(1, url=endpoint, body={"model": "tiny", **body})
    async with running_batches(world.site):
        batch = await world.ended(await world.begin(json.dumps(asked).encode(), endpoint))
    answer = (await world.results(batch.output_file_id))["line-1"]["response"]["body"]
    assert answer[key]
    (request,) = world.worker.requests
    assert request.priority == Priority.BATCH
    if endpoint == "/v1/responses":
        assert answer["store"] is False
        assert await refusal(world.client.responses.retrieve(answer["id"])) == (404, "not_found", None)


async def test_a_response_is_stored_where_its_line_says_so(world: World) -> None:
    asked = line(1, url="/v1/responses", body={"model": "tiny", "input": "number 1", "store": True})
    async with running_batches(world.site):
        batch = await world.ended(await world.begin(json.dumps(asked).encode(), "/v1/responses"))
    answer = (await world.results(batch.output_file_id))["line-1"]["response"]["body"]
    assert (await world.client.responses.retrieve(answer["id"])).output_text == "it is 1"


async def test_lines_without_a_model_ask_the_first(world: World) -> None:
    asked = line(1, body={"messages": CHAT["messages"]})
    async with running_batches(world.site):
        batch = await world.ended(await world.begin(json.dumps(asked).encode()))
    assert batch.model is None
    assert (await world.results(batch.output_file_id))["line-1"]["response"]["body"]["model"] == "tiny"


async def test_what_fails_is_in_the_file_of_errors(world: World) -> None:
    world.worker.errors[3] = [RequestGivenUpError("It crashed two workers.")]
    world.worker.errors[4] = [RuntimeError("a secret of the prompt")]
    wrong = [line(1), line(2, body=line(2)["body"] | {"temperature": 9}), line(3), line(4)]
    async with running_batches(world.site):
        batch = await world.ended(await world.begin("\n".join(map(json.dumps, wrong)).encode()))
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)
    assert await world.said(batch) == expected([1])
    failed = await world.results(batch.error_file_id)
    statuses = {name: one["response"]["status_code"] for name, one in failed.items()}
    assert statuses == {"line-2": 400, "line-3": 500, "line-4": 500}
    error = failed["line-2"]["response"]["body"]["error"]
    assert (error["param"], error["code"]) == ("temperature", "invalid_value")
    assert "secret" not in json.dumps(failed)


async def test_lines_may_have_files(world: World) -> None:
    """Of the user's own, or with their bytes; what is wrong with one is in its line's result."""
    world.site.add("bob")
    stranger = await world.site.log_in("bob")
    content = b"This is number 1."
    files = [
        {"file_id": (await client.files.create(file=("a.txt", content), purpose="user_data")).id}
        for client in (world.client, client_of(world.site, stranger))
    ]
    files += [
        {"filename": "b.txt", "file_data": base64.b64encode(data).decode()} for data in (b"number 3", b"\x89PNG\r")
    ]

    def asked(file: Mapping[str, str]) -> dict[str, Any]:
        parts = [{"type": "file", "file": file}, {"type": "text", "text": "Which?"}]
        return {"model": "tiny", "messages": [{"role": "user", "content": parts}]}

    given = [line(number, body=asked(file)) for number, file in enumerate(files, start=1)]
    async with running_batches(world.site):
        batch = await world.ended(await world.begin("\n".join(map(json.dumps, given)).encode()))
    assert await world.said(batch) == expected([1, 3])
    failed = await world.results(batch.error_file_id)
    found = {name: (one["response"]["status_code"], one["response"]["body"]["error"]) for name, one in failed.items()}
    assert {name: (status, error["code"]) for name, (status, error) in found.items()} == {
        "line-2": (404, "not_found"),
        "line-4": (400, "invalid_file"),
    }
    assert found["line-4"][1]["message"].startswith('"b.txt" is a picture')


# --- wrong files


FAULTS: list[tuple[bytes, str, int | None, str | None]] = [
    (b"", "empty_file", None, None),
    (b"\n \r\n", "empty_file", None, None),
    (b"{", "invalid_json", 1, None),
    (b"[1]", "invalid_json", 1, None),
    (b'{"a": NaN}', "invalid_json", 1, None),
    (b"\xff\xfe", "invalid_json", 1, None),
    (lines([1]) + b"\n" + lines([1]), "duplicate_custom_id", 3, "custom_id"),
    (json.dumps(line(1, custom_id="")).encode(), "invalid_value", 1, "custom_id"),
    (json.dumps(line(1, custom_id=7)).encode(), "invalid_value", 1, "custom_id"),
    (json.dumps(line(1, method="GET")).encode(), "invalid_value", 1, "method"),
    (json.dumps(line(1, url="/v1/completions")).encode(), "mismatched_url", 1, "url"),
    (json.dumps(line(1, url="/v1/models")).encode(), "invalid_value", 1, "url"),
    (json.dumps(line(1, body="hi")).encode(), "invalid_value", 1, "body"),
    (b'{"custom_id": "a", "method": "POST", "url": "%b"}' % URL, "missing_required_parameter", 1, "body"),
    (json.dumps(line(1) | {"more": 1}).encode(), "unknown_parameter", 1, "more"),
    (json.dumps(line(1, body={"model": 3})).encode(), "invalid_value", 1, "body.model"),
    (json.dumps(line(1, body=CHAT | {"stream": True})).encode(), "unsupported_parameter", 1, "body.stream"),
    (json.dumps(line(1, body=CHAT | {"model": "another"})).encode(), "model_not_found", 1, "body.model"),
    (lines([1]) + json.dumps(line(2, body={"model": "b"})).encode(), "mismatched_model", 2, "body.model"),
    (lines([1]) + b'"' + b"x" * 2_000_000 + b'"\n', "line_too_long", 2, None),
    (lines(range(9)), "too_many_lines", 9, None),
]


async def test_a_wrong_file_fails_the_batch_and_names_the_line(make_site: Callable[..., Site]) -> None:
    settings = BatchSettings(lines=8, batches_per_user=len(FAULTS))
    async with world_of(make_site, batches=settings) as world, running_batches(world.site):
        begun = [await world.begin(content) for content, _, _, _ in FAULTS]
        for batch_id, (_, *expected) in zip(begun, FAULTS, strict=True):
            batch = await world.ended(batch_id)
            assert batch.status == "failed"
            (error,) = batch.errors.data
            assert [error.code, error.line, error.param] == expected
            assert error.message
            assert (batch.output_file_id, batch.error_file_id, batch.failed_at is None) == (None, None, False)
        assert world.worker.requests == []


async def test_the_first_hundred_faults_are_told(world: World) -> None:
    async with running_batches(world.site):
        batch = await world.ended(await world.begin(b"x\n" * 300))
    assert [error.line for error in batch.errors.data] == list(range(1, 101))


async def pieces(content: bytes, size: int) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_lines_are_the_same_wherever_pieces_end(size: int) -> None:
    content = b"\xef\xbb\xbf{1}\r\n\n" + b"x" * 50 + b"\n  {2} \n" + b"y" * 51 + b"\n{3}"
    found = [one async for one in lines_of(pieces(content, size), 50)]
    assert found == [Line(1, b"{1}"), Line(3, b"x" * 50), Line(4, b"{2}"), Line(5, None), Line(6, b"{3}")]


# --- who goes on


async def claimed_in_vain(ingress: OtherIngress) -> None:
    """Returns when the accounts have answered a claim of this ingress."""
    while ingress.accounts.calls.count("claim_batches") < 2:
        ingress.app.state.batches.look()
        await asyncio.sleep(0.01)


def later(site: Site, seconds: float) -> None:
    """Moves the clock of the accounts."""
    now = site.inside.store.now
    site.inside.store.now = lambda: now() + seconds


async def test_a_dead_ingress_batch_is_taken_over_and_no_line_has_two_results(world: World) -> None:
    site, worker = world.site, world.worker
    now_s = site.inside.store.now()
    site.inside.store.now = lambda: now_s  # so that the lease holds however long this takes
    worker.go.clear()
    second = Worker()
    other = OtherIngress(site, second)
    async with running_batches(site) as first:
        batch_id = await world.begin(lines(range(200)))
        await world.until(batch_id, lambda _: worker.running == 32)
        worker.go.set()
        while len(worker.asked) < 100:
            await asyncio.sleep(0)
        worker.go.clear()
        while worker.running < 32:
            await asyncio.sleep(0)
        await world.until(batch_id, lambda batch: batch.request_counts.completed >= len(worker.asked) - 32)
        site.accounts.is_down = True  # it can neither store nor give back
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        site.accounts.is_down = False
        done = (await world.until(batch_id, lambda _: True)).request_counts.completed
        assert 0 < done < 200
        async with running_batches(other):
            await claimed_in_vain(other)
            assert second.asked == []  # the lease holds
            later(site, LEASE_S + 1)
            other.app.state.batches.look()
            batch = await world.ended(batch_id)
    assert batch.status == "completed"
    assert await world.said(batch) == expected(range(200))
    assert len(second.asked) == 200 - done
    assert (batch.request_counts.total, batch.request_counts.completed) == (200, 200)


async def test_an_ingress_that_ends_gives_its_batch_back_at_once(world: World) -> None:
    second = Worker()
    other = OtherIngress(world.site, second)
    world.worker.go.clear()
    async with running_batches(world.site):
        batch_id = await world.begin(lines(range(40)))
        await world.until(batch_id, lambda _: world.worker.running == 32)
    assert world.worker.closed == 32
    async with running_batches(other):
        batch = await world.ended(batch_id)
    assert await world.said(batch) == expected(range(40))


async def test_one_that_stood_still_is_told_that_another_has_the_batch(world: World) -> None:
    site, second = world.site, Worker()
    other = OtherIngress(site, second)
    world.worker.go.clear()
    async with running_batches(site):
        batch_id = await world.begin(lines(range(5)))
        await world.until(batch_id, lambda _: world.worker.running == 5)
        later(site, LEASE_S + 1)
        second.go.clear()
        async with running_batches(other):
            await world.until(batch_id, lambda _: second.running == 5)
            world.worker.go.set()  # its results come too late
            while world.worker.running:
                await asyncio.sleep(0)
            site.app.state.batches.look(batch_id)
            second.go.set()
            batch = await world.ended(batch_id)
            assert len(world.worker.asked) == len(second.asked) == 5
    assert await world.said(batch) == expected(range(5))


async def test_it_goes_on_over_a_death_of_the_accounts(world: World) -> None:
    site = world.site
    world.worker.go.clear()
    async with running_batches(site):
        batch_id = await world.begin(lines(range(40)))
        await world.until(batch_id, lambda _: world.worker.running == 32)
        site.accounts.is_down = True
        world.worker.go.set()
        while world.worker.running:
            await asyncio.sleep(0.01)
        site.restart()
        site.accounts.is_down = False
        batch = await world.ended(batch_id)
    assert await world.said(batch) == expected(range(40))
    assert Counter(world.worker.asked) == Counter(range(40))


async def test_after_a_death_of_everything_it_waits_for_its_user(world: World) -> None:
    site = world.site
    batch_id = await world.begin(lines(range(3)))
    site.restart()
    async with running_batches(site):
        while "claim_batches" not in site.accounts.calls:
            await asyncio.sleep(0)
        assert site.inside.stored_batches.claim(5) == []  # so it waits
        batch = await world.ended(batch_id)  # whoever asks for it shows a credential
    assert batch.status == "completed"


async def test_a_revoked_key_stops_it_and_another_one_goes_on(world: World) -> None:
    site, worker = world.site, world.worker
    made = (await site.ask("POST", "/v1/keys", world.secret, {})).json()
    worker.go.clear()
    async with running_batches(site), site.watching():
        file_id = await world.upload(lines(range(3)))
        with_key = client_of(site, made["secret"])
        batch_id = (await with_key.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")).id
        while worker.running < 3:
            await asyncio.sleep(0.01)
        site.inside.stored_batches.secrets.end(site.inside.logins.identify(world.secret).user_id)
        site.inside.stored_batches.secrets.begin(site.inside.logins.identify(world.secret).user_id)
        assert (await site.ask("DELETE", f"/v1/keys/{made['id']}", world.secret)).status_code == 200
        while worker.running:
            await asyncio.sleep(0.01)
        assert worker.closed == 3
        later(site, LEASE_S + 1)
        worker.go.set()
        batch = await world.ended(batch_id)
    assert await world.said(batch) == expected(range(3))


# --- how it ends


async def test_a_cancelled_batch_has_the_results_that_there_are(world: World) -> None:
    worker = world.worker
    worker.go.clear()
    async with running_batches(world.site):
        batch_id = await world.begin(lines(range(100)))
        await world.until(batch_id, lambda _: worker.running == 32)
        worker.go.set()
        await world.until(batch_id, lambda batch: batch.request_counts.completed > 0)
        worker.go.clear()
        while worker.running < 32 and len(worker.asked) < 100:
            await asyncio.sleep(0)
        cancelled = await world.client.batches.cancel(batch_id)
        assert cancelled.status in ("cancelling", "cancelled")
        batch = await world.ended(batch_id)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    found = await world.said(batch)
    assert len(found) == batch.request_counts.completed > 0
    assert found.items() <= expected(range(100)).items()
    assert worker.running == 0
    assert (await world.client.batches.cancel(batch_id)).status == "cancelled"  # once more


async def test_one_that_no_ingress_has_is_cancelled_by_the_next(world: World) -> None:
    batch_id = await world.begin(lines(range(3)))
    assert (await world.client.batches.cancel(batch_id)).status == "cancelling"
    async with running_batches(world.site):
        batch = await world.ended(batch_id)
        assert (batch.status, batch.output_file_id, world.worker.asked) == ("cancelled", None, [])
        done = await world.ended(await world.begin(lines([1])))
        assert await refusal(world.client.batches.cancel(done.id)) == (409, "conflict", None)


async def test_what_has_not_run_in_time_is_in_the_file_of_errors(world: World) -> None:
    site, worker = world.site, world.worker
    async with running_batches(site):
        worker.go.clear()
        batch_id = await world.begin(lines(range(3000)))
        await world.until(batch_id, lambda _: worker.running == 32)
        with site.inside.store.transaction() as connection:
            connection.execute(update(tables.batches).values(expires=1))
        site.app.state.batches.look(batch_id)
        batch = await world.ended(batch_id)
    assert (batch.status, batch.output_file_id) == ("expired", None)
    failed = await world.results(batch.error_file_id)
    assert list(failed) == [f"line-{number}" for number in range(3000)]
    assert {(one["response"], one["error"]["code"]) for one in failed.values()} == {(None, "batch_expired")}
    assert (batch.request_counts.completed, batch.request_counts.failed) == (0, 0)


async def test_deleting_all_that_is_stored_ends_it(world: World) -> None:
    world.worker.go.clear()
    async with running_batches(world.site):
        batch_id = await world.begin(lines(range(3)))
        await world.until(batch_id, lambda _: world.worker.running == 3)
        await world.site.ask("DELETE", "/v1/conversations", world.secret)
        world.site.app.state.batches.look(batch_id)
        while world.worker.running:
            await asyncio.sleep(0.01)
    assert await refusal(world.client.batches.retrieve(batch_id)) == (404, "not_found", None)
    assert [one async for one in world.client.files.list()] == []


# --- waiting


async def test_a_full_or_lost_service_is_waited_for(world: World) -> None:
    world.worker.errors = {1: [QueueFullError("full")] * 3, 2: [NoWorkerError("none")]}
    async with running_batches(world.site):
        batch = await world.ended(await world.begin(lines(range(5))))
    assert await world.said(batch) == expected(range(5))
    assert batch.error_file_id is None
    assert Counter(world.worker.asked) == {0: 1, 1: 4, 2: 2, 3: 1, 4: 1}


async def test_the_tokens_of_the_day_are_waited_for_and_no_other_limit_counts(make_site: Callable[..., Site]) -> None:
    async with world_of(make_site, batches=BatchSettings(lines_at_once=1)) as world:
        users, one = world.site.inside.users, UserLimits(requests_per_minute=2, concurrent=1, tokens_per_day=60)
        users.change(OPERATOR_ACTS, "ann", UserChange(limits=one))
        async with running_batches(world.site):
            batch_id = await world.begin(lines(range(30)))
            while "admit" not in world.site.accounts.calls:
                await asyncio.sleep(0.01)
            waiting = await world.until(batch_id, lambda _: world.site.accounts.calls.count("admit") > 40)
            assert (waiting.status, waiting.request_counts.failed) == ("in_progress", 0)
            assert 0 < waiting.request_counts.completed < 30
            users.change(OPERATOR_ACTS, "ann", UserChange(limits=UserLimits(requests_per_minute=2, concurrent=1)))
            world.worker.go.clear()
            await world.until(batch_id, lambda _: world.worker.running == 1)
            chat = asyncio.create_task(world.client.chat.completions.create(**CHAT))  # beside it
            while world.worker.running < 2:
                await asyncio.sleep(0)
            world.worker.go.set()
            assert (await chat).choices
            batch = await world.ended(batch_id)
        assert await world.said(batch) == expected(range(30))


async def test_results_wait_for_room(make_site: Callable[..., Site]) -> None:
    async with world_of(make_site, batches=BatchSettings(bytes_per_user=6000)) as world:
        useless = await world.upload(b"x" * 4000)
        async with running_batches(world.site):
            batch_id = await world.begin(lines(range(4)))
            waiting = await world.until(batch_id, lambda _: world.site.accounts.calls.count("add_results") > 3)
            assert waiting.request_counts.completed < 4
            await world.client.files.delete(useless)
            batch = await world.ended(batch_id)
        assert await world.said(batch) == expected(range(4))


async def test_a_line_whose_result_is_too_large_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.users.batches.results.MOST_RESULT_BYTES", 10)
    async with running_batches(world.site):
        batch = await world.ended(await world.begin(lines([1])))
    error = (await world.results(batch.error_file_id))["line-1"]["response"]["body"]["error"]
    assert error["code"] == "result_too_large"


async def test_a_record_that_does_not_open_fails_the_batch(world: World, caplog: pytest.LogCaptureFixture) -> None:
    batch_id = await world.begin(lines([1]))
    with world.site.inside.store.transaction() as connection:
        connection.execute(update(tables.file_parts).values(sealed=b"changed"))
    async with running_batches(world.site):
        batch = await world.ended(batch_id)
    assert (batch.status, batch.errors.data[0].code) == ("failed", "internal_error")
    assert "a stored record does not open" in caplog.text


# --- users


async def test_two_users_see_nothing_of_each_other(world: World) -> None:
    site = world.site
    site.add("bob", role="admin")
    bob = client_of(site, await site.log_in("bob"))
    async with running_batches(site):
        batch = await world.ended(await world.begin(lines([1])))
    output = str(batch.output_file_id)
    none = (404, "not_found", None)
    for call in (
        bob.files.retrieve(output),
        bob.files.content(output),
        bob.files.delete(output),
        bob.batches.retrieve(batch.id),
        bob.batches.cancel(batch.id),
    ):
        assert await refusal(call) == none
    begun = bob.batches.create(input_file_id=batch.input_file_id, endpoint=ENDPOINT, completion_window="24h")
    assert await refusal(begun) == (404, "not_found", "input_file_id")
    assert await refusal(bob.files.list(after=output)) == (404, "not_found", "after")
    assert await refusal(bob.batches.list(after=batch.id)) == (404, "not_found", "after")
    assert [one async for one in bob.files.list()] == []
    assert [one async for one in bob.batches.list()] == []


async def test_guests_have_none(make_site: Callable[..., Site]) -> None:
    site = make_site(guests=True)
    for method, path in (("GET", "/v1/files"), ("GET", "/v1/files/file-1"), ("GET", "/v1/batches")):
        assert await site.code(method, path, None) == "401 invalid_api_key"
    assert await site.code("POST", "/v1/batches", None, {}) in ("401 invalid_api_key", "400 missing_required_parameter")
    answer = await site.client.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"})
    assert answer.status_code == 401


async def test_nothing_of_a_batch_is_readable_on_the_disk(world: World) -> None:
    canary = "canary-" * 3
    asked = line(1, custom_id=canary, body=CHAT | {"messages": [{"role": "user", "content": canary}]})
    async with running_batches(world.site):
        client = world.client
        file = await client.files.create(file=(f"{canary}.jsonl", json.dumps(asked).encode()), purpose="batch")
        made = await client.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"a": canary}
        )
        batch = await world.ended(made.id)
        failing = await world.ended(await world.begin(json.dumps(asked | {"method": canary}).encode()))
    assert list(await world.results(batch.output_file_id)) == [canary]
    assert failing.status == "failed"
    assert (await client.files.retrieve(file.id)).filename == f"{canary}.jsonl"
    database = Path(world.site.settings.database)
    stored = b"".join(path.read_bytes() for path in database.parent.iterdir())
    assert batch.id.encode() in stored
    assert canary.encode() not in stored


# --- uploads and bodies


def form(*parts: tuple[str, bytes]) -> bytes:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; "
    return b"".join(f"{head}{name}\r\n\r\n".encode() + value + b"\r\n" for name, value in parts) + (
        f"--{BOUNDARY}--\r\n".encode()
    )


PURPOSE, FILE = ('name="purpose"', b"batch"), ('name="file"; filename="a.jsonl"', lines([1]))
ANCHOR, SECONDS = 'name="expires_after[anchor]"', 'name="expires_after[seconds]"'
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
FORMS: list[tuple[bytes, int, str | None]] = [
    (form(PURPOSE), 400, "file"),
    (form(FILE), 400, "purpose"),
    (form(FILE, ('name="purpose"', b"vision")), 400, "purpose"),
    (form(PURPOSE, PURPOSE, FILE), 400, "purpose"),
    (form(PURPOSE, FILE, FILE), 400, "file"),
    (form(PURPOSE, ('name="file"', b"x")), 400, "file"),
    (form(PURPOSE, FILE, ('name="other"; filename="b"', b"x")), 400, "other"),
    (form(PURPOSE, FILE, ('name="user"', b"x")), 400, "user"),
    (form(PURPOSE, FILE, ('name="user"', b"x" * 2000)), 400, "user"),
    (form(PURPOSE, FILE, ("", b"x")), 400, None),
    (form(PURPOSE, FILE, (ANCHOR, b"created_at"), (SECONDS, b"3599")), 400, "expires_after"),
    (form(PURPOSE, FILE, (ANCHOR, b"now"), (SECONDS, b"3600")), 400, "expires_after"),
    (form(PURPOSE, FILE, (SECONDS, b"3600")), 400, "expires_after"),
    (form(PURPOSE, FILE)[:-10], 400, None),
    (form(FILE)[:80], 400, None),
    (b"", 400, None),
    (b"{}", 400, None),
    (form(*[(f'name="f{i}"', b"x") for i in range(30)]), 400, None),
    (form(PURPOSE, ('name="file"; filename="a"', b"x" * 200_000)), 413, None),
    (form(*[(f'name="{"n" * 4100}{i}"', b"x" * 1000) for i in range(15)], FILE), 413, None),
]


async def test_a_wrong_form_is_refused_and_nothing_of_it_is_kept(make_site: Callable[..., Site]) -> None:
    async with world_of(make_site, batches=BatchSettings(file_bytes=100_000)) as world:
        headers = {"Authorization": f"Bearer {world.secret}", "Content-Type": FORM_TYPE}
        for place, (body, status, param) in enumerate(FORMS):
            for size in (17, 1 << 20):
                content = pieces(body, size)
                answer = await world.site.client.post("/v1/files", content=content, headers=headers)
                assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), (place, answer.text)
        assert await nothing_is_stored(world.site)


async def nothing_is_stored(site: Site) -> bool:
    """Once what runs in the background is done."""
    while site.gate._background_tasks:
        await asyncio.gather(*site.gate._background_tasks)
    while site.inside.stored_files.destroy_some():
        pass
    with site.inside.store.transaction() as connection:
        return connection.execute(tables.files.select()).all() == []


async def test_an_upload_has_its_content_whatever_it_is(world: World) -> None:
    content = bytes(range(256)) * 10_000 + b"\r\n--" + BOUNDARY.encode()[:-1]  # three parts
    file_id = await world.upload(content, expires_after={"anchor": "created_at", "seconds": 7200})
    file = await world.client.files.retrieve(file_id)
    assert (file.bytes, file.status, (file.expires_at or 0) - file.created_at) == (len(content), "processed", 7200)
    read = await world.client.files.content(file_id)
    assert read.content == content
    assert read.response.headers["content-disposition"] == "attachment; filename*=UTF-8''in.jsonl"
    empty = await world.upload(b"")
    assert (await world.client.files.content(empty)).content == b""


async def test_a_client_that_goes_away_leaves_no_file(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.secret}", "Content-Type": FORM_TYPE}
    began = asyncio.Event()

    async def half() -> AsyncGenerator[bytes, None]:
        yield form(PURPOSE, ('name="file"; filename="a"', b"x" * (2 << 20)))[:-100]
        began.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(world.site.client.post("/v1/files", content=half(), headers=headers))
    await began.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert await nothing_is_stored(world.site)


async def test_an_upload_says_its_type(world: World) -> None:
    for kind in ("application/json", "multipart/form-data", "text/plain; boundary=x"):
        headers = {"Authorization": f"Bearer {world.secret}", "Content-Type": kind}
        answer = await world.site.client.post("/v1/files", content=form(PURPOSE, FILE), headers=headers)
        assert answer.status_code == 415


BODIES: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "/v1/models"}, "endpoint"),
    ({"endpoint": None}, "endpoint"),
    ({"completion_window": "1h"}, "completion_window"),
    ({"input_file_id": 7}, "input_file_id"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ({"model": "tiny"}, "model"),
]


@pytest.mark.parametrize(("changes", "param"), BODIES, ids=[one[1] for one in BODIES])
async def test_a_wrong_batch_is_refused_by_name(world: World, changes: dict[str, Any], param: str) -> None:
    body = {"input_file_id": await world.upload(lines([1])), "endpoint": ENDPOINT, "completion_window": "24h"}
    answer = await world.site.ask("POST", "/v1/batches", world.secret, body | changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_results_are_kept_as_long_as_asked(world: World) -> None:
    async with running_batches(world.site):
        kept = {"anchor": "created_at", "seconds": 3600}
        batch = await world.ended(await world.begin(lines([1]), output_expires_after=kept))
        file = await world.client.files.retrieve(batch.output_file_id)
        assert (file.expires_at or 0) - file.created_at == 3600
        again = {"input_file_id": batch.output_file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        assert await world.site.code("POST", "/v1/batches", world.secret, again) == "400 invalid_value"


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "order=up", "purpose=vision", "what=1"])
async def test_wrong_queries_are_refused(world: World, query: str) -> None:
    assert (await world.site.ask("GET", f"/v1/files?{query}", world.secret)).status_code == 400


async def test_the_page_and_the_document_have_every_path_and_parameter(world: World) -> None:
    page = (Path(__file__).parents[4] / "docs" / "api-batches.md").read_text(encoding="utf-8")
    described = (await world.site.ask("GET", "/openapi.json", None)).json()
    paths = [path for path in described["paths"] if path.startswith(("/v1/files", "/v1/batches"))]
    paths.remove("/v1/files/{id}/document")  # docs/api-files.md has it
    assert len(paths) == 6
    assert [path for path in paths if f"{path}`" not in page] == []
    schemas = described["components"]["schemas"]
    for create, request in ((AsyncBatches.create, "BatchRequest"), (AsyncFiles.create, "FileUpload")):
        parameters = inspect.signature(create).parameters.keys() - TRANSPORT
        assert parameters == schemas[request]["properties"].keys()
        assert [name for name in parameters if f"`{name}" not in page] == []
    form = described["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    assert list(form) == ["multipart/form-data"]
    for shown, kind in ((FileObject, "FileObject"), (Batch, "BatchObject")):
        assert schemas[kind]["properties"].keys() <= shown.model_fields.keys()
