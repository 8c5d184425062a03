"""The tool `file_search` with OpenAI's client: what chooses it, tool loops, and how much of what is found fits."""

from collections.abc import Callable
from typing import Any

import pytest

from app.interface.users.knowledge.searching import KnowledgeSearch
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import Site
from tests.app.interface.users.test_vector_stores import World, more, refusal
from tests.app.tiny_model import tiny_model

F: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
ONLY_F = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}
RENT = b"The deposit is three monthly rents."


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "file_search"}, *tools]}


@pytest.fixture
async def world(make_site: Callable[..., Site]) -> World:
    made: list[World] = []
    worker = FakeWorker(lambda _: deltas(tokens_of(made[0].answer)))
    site = make_site(worker, http={"model": tiny_model(context_tokens=2048)})
    site.add("ann", role="admin")
    made.append(World(site, worker, await site.log_in("ann")))
    return made[0]


def search_in(collection_id: str, **fields: Any) -> Any:
    return {"type": "file_search", "vector_store_ids": [collection_id], **fields}


async def test_what_chooses_the_search(world: World) -> None:
    search = search_in(await world.collection({"rent.md": RENT}), max_num_results=2)
    ask = world.client.responses.create
    alone: list[Any] = [{"type": "file_search"}, "required", allowed("auto"), allowed("required")]
    for choice in alone:
        answer = await ask(model="tiny", input="The deposit?", tools=[search], tool_choice=choice)
        assert [one.type for one in answer.output] == ["file_search_call", "message"]
        assert "three monthly rents" in world.prompt()
        assert world.worker.requests[-1].grammar is None, "the search is the call"
    with_f: list[Any] = [{"type": "file_search"}, allowed("auto"), "auto"]
    for choice in with_f:
        answer = await ask(model="tiny", input="The deposit?", tools=[F, search], tool_choice=choice)
        assert answer.output[0].type == "file_search_call"
        assert ("You can call functions" in world.prompt()) == (choice != allowed("auto"))
    world.answer = '[{"name": "f", "arguments": {}}]'
    answer = await ask(model="tiny", input="The deposit?", tools=[F, search], tool_choice="required")
    assert [one.type for one in answer.output] == ["file_search_call", "function_call"]
    nothing: list[Any] = ["none", ONLY_F]
    for choice in nothing:
        answer = await ask(model="tiny", input="The deposit?", tools=[F, search], tool_choice=choice)
        assert "file_search_call" not in [one.type for one in answer.output]
        assert "three monthly rents" not in world.prompt()
    for choice, field in (({"type": "file_search"}, "tool_choice"), (allowed("auto"), "tool_choice.tools[0]")):
        wrong: Any = choice
        asked = ask(model="tiny", input="The deposit?", tools=[F], tool_choice=wrong)
        assert await refusal(asked) == (400, "invalid_value", field)


async def test_a_stored_search_is_retrieved_with_its_results(world: World) -> None:
    collection_id = await world.collection({"rent.md": RENT})
    tools = [search_in(collection_id, max_num_results=2)]
    made = await world.client.responses.create(model="tiny", input="The deposit?", tools=tools)
    found: Any = await world.client.responses.retrieve(made.id, include=["file_search_call.results"])
    [result] = found.output[0].results
    assert (result.text, more(result)["vector_store_id"]) == (RENT.decode(), collection_id)


async def test_a_tool_loop_searches_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    search, searches = KnowledgeSearch.search, list[str]()

    async def counted(self: Any, caller: Any, documents: Any, questions: Any, *rest: Any) -> Any:
        searches.append(questions[0])
        return await search(self, caller, documents, questions, *rest)

    monkeypatch.setattr(KnowledgeSearch, "search", counted)
    asked: Any = {"model": "tiny", "tools": [F, search_in(await world.collection({"a.md": RENT}), max_num_results=2)]}
    ask = world.client.responses.create
    question: Any = {"role": "user", "content": "How high is the deposit?"}
    world.answer = CALL
    first = await ask(input=[question], **asked)
    assert [one.type for one in first.output] == ["file_search_call", "function_call"]
    asking, call = world.prompt(), first.output[1]
    assert call.type == "function_call"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "900"}
    world.answer = "Three rents [1], so 2700."
    returned: Any = [one.to_dict() for one in first.output]
    later: list[Any] = [
        {"input": [output], "previous_response_id": first.id},
        {"input": [question, *returned, output], "store": False},
    ]
    for step in later:
        answer = await ask(**step, **asked)
        assert searches == ["How high is the deposit?"]
        [message] = answer.output
        assert message.type == "message"
        [cited] = message.content[0].annotations
        assert (cited.type, cited.index) == ("file_citation", len("Three rents [1]"))
        assert world.prompt().startswith(asking)
        assert world.prompt().count("three monthly rents") == 1
    # a client that does not return the search has it again, behind its question
    answer = await ask(input=[question, returned[1], output], store=False, **asked)
    assert [one.type for one in answer.output] == ["file_search_call", "message"]
    assert world.prompt().startswith(asking)
    assert world.prompt().count("three monthly rents") == 1
    assert len(searches) == 2
    # and the next question is another one
    await ask(input=[question, *returned, output, {"role": "user", "content": "And notice?"}], store=False, **asked)
    assert searches[2:] == ["And notice?"]


async def test_documents_are_whole_in_each_step(world: World) -> None:
    collection_id = await world.collection({"key.md": b"The key is blue.", "rent.md": b"The rent is 900."})
    asked: Any = {"model": "tiny", "tools": [F, search_in(collection_id)]}
    world.answer = CALL
    first = await world.client.responses.create(input="How high?", **asked)
    asking, call = world.prompt(), first.output[1]
    assert call.type == "function_call"
    world.answer = "It is 900 [2]."
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
    answer = await world.client.responses.create(input=[output], previous_response_id=first.id, **asked)
    assert world.prompt().startswith(asking)
    assert world.prompt().count("The rent is 900.") == 1
    search, message = answer.output
    assert (search.type, more(search)["whole"]) == ("file_search_call", True)
    assert [one.filename for one in message.content[0].annotations] == ["rent.md"]


async def test_results_that_do_not_fit_are_left_out(world: World) -> None:
    files = {f"{number}.md": (f"The deposit {number} is high. " * 12).encode() for number in range(14)}
    collection_id = await world.collection(files)
    tools = [search_in(collection_id, max_num_results=50)]
    assert len(await world.found(collection_id, "deposit", max_num_results=50)) == 14
    sizes = list[int]()
    early: Any = [{"role": "user", "content": "word " * 400}, {"role": "assistant", "content": "Yes."}]
    for before, limit in (([], 16), ([], None), ([], 400), (early, None)):
        asked: Any = [*before, {"role": "user", "content": "The deposit?"}]
        answer = await world.client.responses.create(model="tiny", input=asked, tools=tools, max_output_tokens=limit)
        found: Any = answer.output[0]
        sizes.append(len(found.results))
        assert len(world.worker.requests[-1].prompt_token_ids) <= 2048 - (limit or 64)
    assert sizes[0] >= sizes[1] > sizes[2] > 0
    assert sizes[1] > sizes[3] > 0
    # where the oldest turns are left out, they take nothing from the newest one
    asked = [*early * 3, {"role": "user", "content": "The deposit?"}]
    answer = await world.client.responses.create(model="tiny", input=asked, tools=tools, truncation="auto")
    found = answer.output[0]
    assert len(found.results) > sizes[3]


async def test_whole_documents_leave_room_for_the_chat(world: World) -> None:
    collection_id = await world.collection({"a.md": b"The rent is 900. " * 40, "b.md": b"The key is blue."})
    asked: Any = {"model": "tiny", "tools": [search_in(collection_id)]}
    early: Any = [{"role": "user", "content": "word " * 800}, {"role": "assistant", "content": "Yes."}]
    for before, is_whole in (([], True), (early, False)):
        question: Any = [*before, {"role": "user", "content": "The key?"}]
        answer = await world.client.responses.create(input=question, **asked)
        assert ("whole" in more(answer.output[0])) == is_whole
