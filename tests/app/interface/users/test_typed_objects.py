"""Every object of files and collections is one of OpenAI's own types, strictly: typed clients read them so."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types import (
    FileDeleted,
    FileObject,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreSearchResponse,
)
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.vector_stores import (
    FileContentResponse,
    VectorStoreFile,
    VectorStoreFileBatch,
    VectorStoreFileDeleted,
)
from pydantic import TypeAdapter

from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import Site
from tests.app.interface.users.test_vector_stores import LEASE, World

ANSWER = "Three rents [1]."


def strict(kind: Any, value: Any) -> Any:
    """The object as its type, which no value of another type or another literal has."""
    return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)


@pytest.fixture
async def world(make_site: Callable[..., Site]) -> World:
    worker = FakeWorker(lambda _: deltas(tokens_of(ANSWER)))
    site = make_site(worker)
    site.add("ann")
    return World(site, worker, await site.log_in("ann"))


async def raw(call: Any) -> Any:
    """The JSON that a call was answered with, before the client makes its object of it."""
    return (await call).http_response.json()


async def test_collections_and_files(world: World) -> None:
    client = world.client
    stores, files = client.vector_stores.with_raw_response, client.files.with_raw_response
    file = await raw(files.create(file=("lease.md", LEASE), purpose="assistants"))
    empty = await raw(files.create(file=("empty.txt", b"  "), purpose="user_data"))
    for one in (file, empty, await raw(files.retrieve(file["id"])), *(await raw(files.list()))["data"]):
        strict(FileObject, one)
    store = await raw(stores.create(name="Contracts", description="Of 2026", metadata={"year": "2026"}))
    where: Any = {"vector_store_id": store["id"]}
    cut: Any = {"type": "static", "static": {"max_chunk_size_tokens": 400, "chunk_overlap_tokens": 200}}
    added = await raw(
        stores.files.create(file_id=file["id"], attributes={"floor": 2, "of": "us"}, chunking_strategy=cut, **where)
    )
    bad = await raw(stores.files.create(file_id=empty["id"], chunking_strategy={"type": "auto"}, **where))
    lost = await raw(stores.files.create(file_id="file-none", **where))
    for one in (file, empty, lost):
        await world.read(store["id"], one["id"])
    listed = (await raw(stores.files.list(store["id"])))["data"]
    assert [one["last_error"] and one["last_error"]["code"] for one in listed] == [
        "invalid_file",
        "unsupported_file",
        None,
    ]
    changed = await raw(stores.files.update(file["id"], attributes={"floor": 3}, **where))
    for one in (added, bad, lost, changed, *listed):
        assert strict(VectorStoreFile, one).chunking_strategy.type == "other"
    batch = await raw(stores.file_batches.create(file_ids=[file["id"]], chunking_strategy=cut, **where))
    await world.read(store["id"], file["id"])
    later = await raw(stores.file_batches.retrieve(batch["id"], **where))
    for one in (batch, later, await raw(stores.file_batches.cancel(batch["id"], **where))):
        strict(VectorStoreFileBatch, one)
    for one in (await raw(stores.file_batches.list_files(batch["id"], **where)))["data"]:
        strict(VectorStoreFile, one)
    content = await raw(stores.files.content(file["id"], **where))
    assert [strict(FileContentResponse, one).type for one in content["data"]] == ["text"]
    page = await raw(stores.search(store["id"], query="deposit"))
    assert (page["object"], page["has_more"], page["next_page"]) == ("vector_store.search_results.page", False, None)
    for one in page["data"]:
        strict(VectorStoreSearchResponse, one)
    for one in (store, await raw(stores.update(store["id"], name="Leases")), *(await raw(stores.list()))["data"]):
        strict(VectorStore, one)
    strict(VectorStoreFileDeleted, await raw(stores.files.delete(file["id"], **where)))
    strict(VectorStoreDeleted, await raw(stores.delete(store["id"])))
    strict(FileDeleted, await raw(files.delete(file["id"])))


@pytest.mark.parametrize("fields", [{}, {"max_num_results": 2}], ids=["whole", "searched"])
async def test_a_response_and_its_events(world: World, fields: dict[str, Any]) -> None:
    collection_id = await world.collection({"lease.md": b"The deposit is three monthly rents."})
    asked: Any = {
        "model": "tiny",
        "input": "How high is the deposit?",
        "tools": [{"type": "file_search", "vector_store_ids": [collection_id], **fields}],
        "tool_choice": {"type": "file_search"},
    }
    answer = await raw(world.client.responses.with_raw_response.create(**asked))
    assert [one["type"] for one in strict(Response, answer).to_dict()["output"]] == ["file_search_call", "message"]
    again = await raw(world.client.responses.with_raw_response.retrieve(answer["id"]))
    strict(Response, again)
    stream = await world.site.ask("POST", "/v1/responses", world.secret, {**asked, "stream": True})
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: ")]
    found = [strict(ResponseStreamEvent, event) for event in events]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert [event.type for event in found][:8] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
        "response.output_item.added",
    ]
    [cited] = [event for event in found if event.type == "response.output_text.annotation.added"]
    assert cited.annotation.type == "file_citation"
    assert found[-1].response.output_text == ANSWER
