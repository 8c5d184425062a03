import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.interface.users.grants import memory_grant
from app.messages.accounts import ConversationKey, Identity, PageKeys, UserLimits
from tests.app.interface.users.here import CHAT, Site
from tests.app.service import http_app, http_client
from tests.app.tiny_model import reference_tokenizer

PAGES = PageKeys("0" * 32, b"n" * 32, b"s" * 32, b"i" * 16)
ANN = Identity("ann", "ann", "user", "c", "api_key", None, UserLimits(), PAGES, b"t" * 32)
CONVERSATION = ConversationKey("conversation", b"c" * 32, b"j" * 16)


def test_a_grant_has_the_users_keys_and_the_conversations() -> None:
    grant = memory_grant(ANN, CONVERSATION, shared_tokens=40, save=True)
    assert (grant.owner, grant.names_key) == ("0" * 32, b"n" * 32)
    assert (grant.conversation_key, grant.conversation_key_id) == (b"c" * 32, b"j" * 16)
    assert (grant.shared_key, grant.shared_key_id, grant.shared_tokens, grant.save) == (b"s" * 32, b"i" * 16, 40, True)
    assert not any(key in repr(grant) for key in ("nnn", "ccc", "sss"))


@pytest.mark.parametrize(
    ("bytes_", "save", "saves"), [(None, True, True), (1, True, True), (0, True, False), (None, False, False)]
)
def test_who_may_save(bytes_: int | None, save: bool, saves: bool) -> None:
    user = replace(ANN, limits=UserLimits(memory_bytes=bytes_))
    assert memory_grant(user, CONVERSATION, shared_tokens=0, save=save).save is saves


CHATS = "/v1/chat/completions"


async def grant_of(site: Site, secret: str | None, body: dict[str, Any], path: str = CHATS) -> Any:
    answer = await site.ask("POST", path, secret, body)
    assert answer.status_code == 200, answer.text
    return site.worker.requests[-1].memory


async def test_system_prompt_and_tools_are_shared_by_a_users_conversations(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    system = {"role": "system", "content": "a long system prompt"}
    asked = [[system, {"role": "user", "content": text}] for text in ("hi", "something else")]
    one, other = [await grant_of(site, ann, CHAT | {"messages": messages}) for messages in asked]
    prompts = [request.prompt_token_ids for request in site.worker.requests]
    count = one.shared_tokens
    assert 0 < count == other.shared_tokens < min(map(len, prompts))
    assert prompts[0][:count] == prompts[1][:count]
    text = reference_tokenizer().decode(list(prompts[0][:count]), skip_special_tokens=False)
    assert "a long system prompt" in text
    assert "hi" not in text
    assert (await grant_of(site, ann, CHAT)).shared_tokens < count
    alone = await grant_of(site, ann, CHAT | {"messages": [{"role": "user", "content": "a long system prompt"}]})
    assert alone.shared_tokens < count


async def test_a_request_has_leave_to_the_conversation_that_it_names(site: Site) -> None:
    site.add("ann")
    site.add("bob", limits=UserLimits(memory_bytes=0))
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    key = (await site.ask("POST", "/v1/keys", ann, {})).json()["secret"]
    named = {"prompt_cache_key": "a chat"}
    default, one = await grant_of(site, ann, CHAT), await grant_of(site, ann, CHAT | named)
    his, his_one = await grant_of(site, bob, CHAT), await grant_of(site, bob, CHAT | named)
    assert len({each.conversation_key for each in (default, one, his, his_one)}) == 4
    assert default.owner == one.owner != his.owner
    assert default.names_key == one.names_key != his.names_key
    assert (default.save, his.save, default.quota_bytes, his.quota_bytes) == (True, False, None, 0)
    site.restart()
    for path, body in [
        (CHATS, CHAT),
        (CHATS, CHAT | {"stream": True, "n": 3, "user": "bob"}),
        ("/v1/completions", {"model": "tiny", "prompt": ["hi", "ho"]}),
        ("/v1/responses", {"model": "tiny", "input": "hi"}),
        ("/v1/messages", CHAT | {"max_tokens": 9, "stream": True}),
    ]:
        for secret in (ann, key):
            for sent, wanted in ((body, default), (body | named, one)):
                assert replace(await grant_of(site, secret, sent, path), shared_tokens=wanted.shared_tokens) == wanted
    assert all(request.memory is not None for request in site.worker.requests)


async def test_a_key_is_asked_for_once_in_a_while(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    async with site.watching():
        for _ in range(3):
            await grant_of(site, ann, CHAT | {"n": 4})
        assert site.accounts.calls.count("conversation_key") == 1
        before = await grant_of(site, ann, CHAT)
        await site.accounts.forget(ann, None)
        async with asyncio.timeout(60):
            while (after := await grant_of(site, ann, CHAT)).shared_key == before.shared_key:
                await asyncio.sleep(0.01)
    assert after.conversation_key != before.conversation_key
    assert after.shared_key != before.shared_key


async def test_a_key_that_was_forgotten_while_it_was_asked_for_is_not_kept(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    await site.ask("GET", "/v1/models", ann)
    asked = asyncio.create_task(site.gate.grants._key("ann", ann, None))  # type: ignore[union-attr]
    while "conversation_key" not in site.accounts.calls:
        await asyncio.sleep(0)
    site.accounts.answers.clear()
    await site.service.call("forget", ann, None)
    assert site.gate.grants is not None
    site.gate.grants.drop({"ann"})
    site.accounts.answers.set()
    old = await asked
    assert (await site.gate.grants._key("ann", ann, None)).key != old.key


async def test_a_request_is_answered_without_saved_pages_if_there_is_no_key(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    site.accounts.failing = ["conversation_key"]
    assert await grant_of(site, ann, CHAT) is None
    assert await grant_of(site, ann, CHAT) is not None


async def test_no_grant_for_guests_embeddings_and_where_no_pages_are_saved(make_site: Callable[..., Site]) -> None:
    site = make_site(guests=True)
    assert await grant_of(site, None, CHAT | {"prompt_cache_key": "theirs"}) is None
    site.add("ann")
    await site.ask("POST", "/v1/embeddings", await site.log_in("ann"), {"model": "tiny", "input": "hi"})
    assert [request.memory for request in site.worker.requests] == [None, None]
    site = make_site(saves_pages=False)
    site.add("ann")
    assert await grant_of(site, await site.log_in("ann"), CHAT) is None
    assert "conversation_key" not in site.accounts.calls
    async with http_client(http_app(site.worker.generate)) as client:
        assert (await client.post(CHATS, json=CHAT | {"prompt_cache_key": "a chat"})).status_code == 200
    assert site.worker.requests[-1].memory is None
