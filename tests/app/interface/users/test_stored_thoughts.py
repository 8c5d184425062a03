"""A thought is stored as an item of its own, beside the answer and never in its text."""

from collections.abc import Callable
from typing import Any

import pytest

from app.interface.documents.conversation import as_markdown
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.routes.test_responses import tokens_of
from tests.app.interface.users.here import Site
from tests.app.interface.users.test_conversations import client_of, prompt
from tests.app.tiny_model import TEMPLATE, tiny_model

WRITTEN = "<think>\nhm\n</think>\n\nYes."


async def test_a_stored_thought(make_site: Callable[..., Site]) -> None:
    site = make_site(FakeWorker(lambda _: deltas(tokens_of(WRITTEN))))
    site.add("ann")
    secret = await site.log_in("ann")
    ann = client_of(site, secret)
    conversation = await ann.conversations.create()
    first = await ann.responses.create(model="tiny", input="Is it?", conversation=conversation.id)
    assert [item.type for item in first.output] == ["reasoning", "message"]
    listed = await site.ask("GET", f"/v1/conversations/{conversation.id}/items?order=asc", secret)
    items: list[Any] = listed.json()["data"]
    assert [item["type"] for item in items] == ["message", "reasoning", "message"]
    assert items[1]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert items[2]["content"][0]["text"] == "Yes."
    assert "## Thought\n\nhm\n\n## Answer\n\nYes." in as_markdown("T", 0, items)
    assert (await ann.responses.retrieve(first.id)).output == first.output
    await ann.responses.create(model="tiny", input="So?", conversation=conversation.id)
    assert "assistant\nYes.<|im_end|>" in prompt(site), "the template has no place for the thought"
    assert "cut" not in items[1]
    second = await ann.responses.create(model="tiny", input="So?", previous_response_id=first.id)
    assert second.status == "completed"
    assert "assistant\nYes.<|im_end|>" in prompt(site)


async def test_a_stored_thought_says_what_cut_it(make_site: Callable[..., Site]) -> None:
    site = make_site(FakeWorker(lambda _: deltas(tokens_of("<think>\nhm, well"), finish_reason="length")))
    site.add("ann")
    secret = await site.log_in("ann")
    ann = client_of(site, secret)
    conversation = await ann.conversations.create(metadata={"thinking": "short"})
    first = await ann.responses.create(model="tiny", input="Is it?", conversation=conversation.id)
    assert first.status == "incomplete"
    listed = await site.ask("GET", f"/v1/conversations/{conversation.id}/items?order=asc", secret)
    thought = listed.json()["data"][1]
    assert (thought["type"], thought["cut"], thought["status"]) == ("reasoning", "max_output_tokens", "incomplete")
    assert (await ann.responses.retrieve(first.id)).output == first.output
    found = await site.ask("GET", f"/v1/conversations/{conversation.id}", secret)
    assert found.json()["metadata"]["thinking"] == "short"


@pytest.mark.parametrize(("kept", "system"), [({"thinking": "off"}, "no_think"), ({"thinking": "short"}, "think")])
async def test_a_chat_is_warmed_as_it_thinks(make_site: Callable[..., Site], kept: dict[str, str], system: str) -> None:
    """Where a template has its switch in the system prompt, as SmolLM3's."""
    switch = "<|im_start|>system\n{{ 'think' if enable_thinking | default(true) else 'no_think' }}<|im_end|>\n"
    site = make_site(FakeWorker(lambda _: deltas([5])), http={"model": tiny_model(f"{switch}{TEMPLATE}")})
    site.add("ann")
    secret = await site.log_in("ann")
    ann = client_of(site, secret)
    conversation = await ann.conversations.create(metadata=kept, items=[{"role": "user", "content": "Is it?"}])
    await ann.post("/memory/warm", body={"conversation": conversation.id}, cast_to=object)
    assert prompt(site).startswith(f"<|im_start|>system\n{system}<|im_end|>")
