"""Users' saved KV pages over HTTP: which calls reach every worker, when, and the answers."""

from collections.abc import Callable

import pytest

from app.messages.accounts import Forgotten, UserLimits
from app.messages.memory import SavedPages
from tests.app.accounts.world import FIRST
from tests.app.interface.users.here import CHAT, PASSWORD, Site

CHATS = "/v1/chat/completions"


def owner_of(site: Site, secret: str) -> str:
    return site.inside.logins.identify(secret).pages.owner


def calls(site: Site) -> list[tuple[object, ...]]:
    """The calls of one worker; all workers must have had the same."""
    first, *others = (worker.calls for worker in site.page_workers)
    assert all(other == first for other in others)
    return first


async def test_what_is_saved_is_counted_over_all_workers(site: Site) -> None:
    site.add("ann")
    site.add("bob", limits=UserLimits(memory_bytes=0))
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    first, second = site.page_workers
    first.answers["memory_use"], second.answers["memory_use"] = (3, 300), (4, 400)
    # Both may show the same folder: the fuller one counts.
    assert (await site.ask("GET", "/v1/memory", ann)).json() == {
        "object": "memory",
        "bytes": 400,
        "quota_bytes": 1 << 20,
        "pages": 4,
        "unacknowledged": 0,
    }
    assert (await site.ask("GET", "/v1/memory", bob)).json()["quota_bytes"] == 0
    first.answers["flush_memory"], second.answers["flush_memory"] = SavedPages(5, 500, 0), None
    assert (await site.ask("POST", "/v1/memory/save", ann)).json() == {
        "object": "memory.saved",
        "saved_pages": 5,
        "saved_bytes": 500,
        "unsaved_pages": 0,
        "unacknowledged": 1,
    }
    first.answers["flush_memory"] = SavedPages(5, 500, 1)
    refused = await site.ask("POST", "/v1/memory/save", ann)
    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "memory_not_saved")
    assert "5 pages were saved and 1 could not be" in refused.json()["error"]["message"]
    mine, his = owner_of(site, ann), owner_of(site, bob)
    assert calls(site) == [("memory_use", mine), ("memory_use", his), *[("flush_memory", mine)] * 2]
    site.page_workers.clear()
    assert (await site.ask("GET", "/v1/memory", ann)).json()["bytes"] == 0


async def test_a_conversation_is_forgotten_key_first_and_no_other_one(site: Site) -> None:
    site.add("ann")
    site.add("bob")
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    named = CHAT | {"prompt_cache_key": "a chat"}
    for secret, body in ((ann, named), (ann, CHAT), (bob, named)):
        await site.ask("POST", CHATS, secret, body)
    before, other, his = (request.memory for request in site.worker.requests)
    assert before is not None
    first, second = site.page_workers
    first.answers["forget_memory"], second.answers["forget_memory"] = 2, 1
    answer = await site.ask("DELETE", "/v1/memory?conversation=a%20chat", ann)
    assert answer.json() == {"object": "memory.forgotten", "conversations": 1, "files": 3, "unacknowledged": 0}
    assert calls(site) == [("forget_memory", before.owner, before.conversation_key_id)]
    for secret, body in ((ann, named), (ann, CHAT), (bob, named)):  # at once, although keys are cached for some seconds
        await site.ask("POST", CHATS, secret, body)
    after, *rest = (request.memory for request in site.worker.requests[3:])
    assert after is not None
    assert after.conversation_key != before.conversation_key
    assert after.conversation_key_id != before.conversation_key_id
    assert rest == [other, his]


async def test_everything_is_forgotten_and_what_a_worker_does_not_answer_is_counted(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    for name in ("1", "2"):
        await site.ask("POST", CHATS, ann, CHAT | {"prompt_cache_key": name})
    site.page_workers[1].answers["forget_memory"] = None
    answer = await site.ask("DELETE", "/v1/memory", ann)
    assert answer.json() == {"object": "memory.forgotten", "conversations": 2, "files": 0, "unacknowledged": 1}
    assert calls(site) == [("forget_memory", owner_of(site, ann), None)]
    old = site.worker.requests[0].memory
    await site.ask("POST", CHATS, ann, CHAT | {"prompt_cache_key": "1"})
    new = site.worker.requests[-1].memory
    assert old is not None
    assert new is not None
    assert {old.conversation_key, old.shared_key}.isdisjoint({new.conversation_key, new.shared_key})


async def test_a_misspelled_parameter_forgets_nothing(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    for query in ("conversaton=1", "conversation=1&conversation=2", "conversation=1&all=true"):
        assert await site.code("DELETE", f"/v1/memory?{query}", ann) == "400 invalid_value", query
    assert "forget" not in site.accounts.calls
    assert calls(site) == []


async def test_others_and_unknown_conversations_are_not_there(site: Site) -> None:
    site.add("ann")
    site.add("bob", role="admin")
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    await site.ask("POST", CHATS, ann, CHAT | {"prompt_cache_key": "a chat"})
    for name in ("a%20chat", "", "..%2f", "0" * 32):
        assert await site.code("DELETE", f"/v1/memory?conversation={name}", bob) == "404 not_found"
    assert calls(site) == []


@pytest.mark.parametrize("everywhere", [False, True])
async def test_logout_saves_and_clears_the_users_pages(site: Site, everywhere: bool) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    owner = owner_of(site, ann)
    first, second = site.page_workers
    first.answers["clear_memory"], second.answers["clear_memory"] = SavedPages(5, 500, 1), SavedPages(2, 200, 0)
    answer = (await site.ask("POST", "/v1/auth/logout", ann, {"everywhere": everywhere})).json()
    assert (answer["saved_pages"], answer["saved_bytes"], answer["unsaved_pages"]) == (7, 700, 1)
    assert answer["unacknowledged"] == 0
    assert calls(site) == [("clear_memory", owner)]


async def test_a_deleted_users_pages_go_and_so_do_those_that_a_reset_has_lost(site: Site) -> None:
    site.add("root", role="admin")
    code = site.add("ann").recovery_code
    root, owner = await site.log_in("root"), owner_of(site, await site.log_in("ann"))
    for kept in ({"recovery_code": code}, {"lose_saved": True}):
        assert (await site.ask("POST", "/v1/admin/users/ann/reset", root, {"password": FIRST})).status_code == 200
        assert calls(site) == []
        choice = {"password": FIRST, "new_password": PASSWORD} | kept
        chosen = await site.ask("POST", "/v1/auth/password", await site.log_in("ann", FIRST), choice)
        assert chosen.json()["memory_lost"] is ("lose_saved" in kept)
    assert calls(site) == [("forget_memory", owner, None)]
    assert (await site.ask("DELETE", "/v1/admin/users/ann", root)).json() == {"object": "done"}
    assert calls(site) == [("forget_memory", owner, None)] * 2
    assert await site.code("DELETE", "/v1/admin/users/root", root) == "409 conflict"
    assert len(calls(site)) == 2


@pytest.mark.parametrize(
    ("method", "path", "asked", "reached"),
    [
        ("DELETE", "/v1/memory", "forget", "forget_memory"),
        ("POST", "/v1/auth/logout", "logout", "clear_memory"),
        ("DELETE", "/v1/admin/users/ann", "delete_user", "forget_memory"),
    ],
)
async def test_a_client_that_goes_leaves_nothing_half_done(
    make_site: Callable[..., Site], method: str, path: str, asked: str, reached: str
) -> None:
    site = make_site(revocation_s=60.0)  # until then the identity is cached
    site.add("root", role="admin")
    site.add("ann", role="admin")
    ann = await site.log_in("ann")
    owner = owner_of(site, ann)
    assert (await site.ask("GET", "/v1/models", ann)).status_code == 200  # from now on the identity is cached
    await site.give_up(method, path, ann, {}, asked)
    assert [call[:2] for call in calls(site)] == [(reached, owner)]


async def test_who_may_use_these_routes_and_where_they_are(make_site: Callable[..., Site]) -> None:
    routes = [("GET", "/v1/memory"), ("POST", "/v1/memory/save"), ("DELETE", "/v1/memory")]
    site = make_site(guests=True)
    for method, path in routes:
        assert await site.code(method, path, None) == "401 invalid_api_key"
        cookie = {"Cookie": "redoubt_session=x", "Origin": "https://evil.example"}
        if method != "GET":
            assert await site.code(method, path, None, **cookie) == "403 foreign_origin"
    assert calls(site) == []
    assert {"/v1/memory", "/v1/memory/save"} <= (await site.ask("GET", "/openapi.json", None)).json()["paths"].keys()
    site = make_site(saves_pages=False)
    site.add("ann")
    ann = await site.log_in("ann")
    for method, path in routes:
        assert await site.code(method, path, ann) == "404 unknown_url"
    assert (await site.accounts.forget(ann, None)) == Forgotten(0, None)
