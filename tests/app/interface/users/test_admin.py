"""Administration over HTTP: what only administrators may do, and that they see no more than they should."""

import asyncio
import time
from typing import Any

from app.messages.accounts import UserLimits
from tests.app.interface.users.here import CHAT, PASSWORD, Site

NEW = {"name": "bob", "password": "another long password"}
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/v1/admin/users", None),
    ("POST", "/v1/admin/users", NEW),
    ("POST", "/v1/admin/users/ann", {"role": "admin"}),
    ("DELETE", "/v1/admin/users/ann", None),
    ("POST", "/v1/admin/users/ann/reset", {"password": PASSWORD}),
    ("GET", "/v1/admin/usage", None),
    ("GET", "/v1/admin/usage/users", None),
    ("GET", "/v1/admin/overview", None),
    ("GET", "/v1/admin/capacity", None),
    ("GET", "/v1/admin/audit", None),
]


async def test_users_may_not_administer(site: Site) -> None:
    site.add("ann")
    session = await site.log_in("ann")
    key = (await site.ask("POST", "/v1/keys", session, {})).json()["secret"]
    for method, path, body in ROUTES:
        for secret in (session, key):
            assert await site.code(method, path, secret, body) == "403 admin_only", (method, path)


async def test_who_is_no_administrator_any_more_may_not_either(site: Site) -> None:
    """A demoted user is refused while the ingress still caches the old role."""
    site.add("root", role="admin")
    site.add("ann", role="admin")
    root, ann = await site.log_in("root"), await site.log_in("ann")
    assert (await site.ask("GET", "/v1/admin/users", ann)).status_code == 200  # it is cached for some seconds
    await site.ask("POST", "/v1/admin/users/ann", root, {"role": "user"})
    assert (await site.ask("GET", "/v1/auth/session", ann)).json()["role"] == "admin"
    for method, path, body in ROUTES:
        assert await site.code(method, path, ann, body) == "403 admin_only"


async def test_users_are_added_changed_reset_and_deleted(site: Site) -> None:
    site.add("root", role="admin")
    root = await site.log_in("root")
    made = (await site.ask("POST", "/v1/admin/users", root, NEW | {"limits": {"concurrent": 2}})).json()
    assert (made["name"], made["role"], made["state"]) == ("bob", "user", "active")
    assert made["limits"] == {
        "requests_per_minute": None,
        "tokens_per_day": None,
        "concurrent": 2,
        "memory_bytes": None,
    }
    assert not any("recovery" in name for name in made)
    assert 0 <= made["first_password_expires_at"] - made["created_at"] - 7 * 86_400 < 300
    assert await site.code("POST", "/v1/admin/users", root, NEW) == "409 conflict"
    bob = await site.log_in("bob", NEW["password"])

    changed = await site.ask("POST", "/v1/admin/users/bob", root, {"limits": {"tokens_per_day": 5}})
    assert (changed.json()["limits"]["tokens_per_day"], changed.json()["limits"]["concurrent"]) == (5, None)
    listed = (await site.ask("GET", "/v1/admin/users", root)).json()["data"]
    assert [user["name"] for user in listed] == ["bob", "root"]
    assert not any({"recovery_code", "password", "secret"} & user.keys() for user in listed)

    given = {"password": "a third long password"}
    reset = (await site.ask("POST", "/v1/admin/users/bob/reset", root, given)).json()
    assert reset.pop("first_password_expires_at") >= made["first_password_expires_at"]
    assert reset.items() <= changed.json().items()
    assert (await site.ask("POST", "/v1/admin/users/bob/reset", root, NEW | {"name": "bob"})).status_code == 400
    assert await site.code("GET", "/v1/keys", bob) == "401 session_expired"

    assert (await site.ask("DELETE", "/v1/admin/users/bob", root)).status_code == 200
    assert await site.code("DELETE", "/v1/admin/users/bob", root) == "404 not_found"
    assert await site.code("DELETE", "/v1/admin/users/root", root) == "409 conflict"
    assert await site.code("DELETE", "/v1/admin/users/..%2fetc", root) in ("404 not_found", "404 unknown_url")


async def test_the_first_login_does_nothing_but_choose_a_password(site: Site) -> None:
    """The user is shown the recovery code, which the administrator has not seen."""
    site.add("root", role="admin")
    root = await site.log_in("root")
    await site.ask("POST", "/v1/admin/users", root, NEW | {"role": "admin"})
    bob = await site.log_in("bob", NEW["password"])
    for method, path, body in [*ROUTES, ("GET", "/v1/models", None), ("POST", "/v1/chat/completions", CHAT)]:
        assert await site.code(method, path, bob, body) == "403 password_change_required"
    for path in ("/v1/conversations", "/v1/keys", "/v1/auth/sessions", "/v1/memory", "/v1/anything"):
        assert await site.code("GET", path, bob) == "403 password_change_required"
    me = (await site.ask("GET", "/v1/auth/session", bob)).json()
    assert (me["must_choose_password"], me["can_recover"]) == (True, False)
    choice = {"password": NEW["password"], "new_password": NEW["password"]}
    assert await site.code("POST", "/v1/auth/password", bob, choice) == "400 invalid_value"
    chosen = await site.ask("POST", "/v1/auth/password", bob, choice | {"new_password": PASSWORD})
    assert chosen.headers["cache-control"] == "no-store"
    assert len(chosen.json()["recovery_code"]) == 39
    assert (await site.ask("GET", "/v1/admin/users", bob)).status_code == 200
    assert (await site.ask("GET", "/v1/auth/session", bob)).json()["must_choose_password"] is False
    await site.ask("POST", "/v1/admin/users/bob/reset", root, {"password": NEW["password"]})
    bob = await site.log_in("bob", NEW["password"])
    assert (await site.ask("GET", "/v1/auth/session", bob)).json()["can_recover"] is True
    assert await site.code("POST", "/v1/auth/password", bob, choice | {"new_password": PASSWORD}) == (
        "400 recovery_code_required"
    )
    choice |= {"new_password": PASSWORD, "recovery_code": chosen.json()["recovery_code"]}
    assert (await site.ask("POST", "/v1/auth/password", bob, choice)).json()["memory_lost"] is False


async def test_a_first_password_that_has_expired_says_so_and_the_audit_too(site: Site) -> None:
    site.add("root", role="admin")
    root = await site.log_in("root")
    await site.ask("POST", "/v1/admin/users", root, NEW)
    site.inside.store.now = lambda: time.time() + 7 * 86_400
    refused = await site.ask("POST", "/v1/auth/login", None, NEW)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "password_expired")
    assert "Ask an administrator for another one" in refused.json()["error"]["message"]
    rows = (await site.ask("GET", "/v1/admin/audit", await site.log_in("root"))).json()["data"]
    assert [row["outcome"] for row in rows if row["action"] == "login"][-2:] == ["expired", "ok"]


async def test_usage_and_audit_tell_counts_and_acts_and_nothing_else(site: Site) -> None:
    site.add("root", role="admin")
    ann = site.add("ann").info
    token = await site.log_in("ann")
    canary = "a-canary-in-a-prompt"
    body = CHAT | {"messages": [{"role": "user", "content": canary}], "n": 2}
    answer = await site.ask("POST", "/v1/chat/completions", token, body)
    usage = answer.json()["usage"]
    await asyncio.gather(*site.gate._background_tasks)
    admin = await site.log_in("root")
    rows = (await site.ask("GET", "/v1/admin/usage", admin)).json()["data"]
    session = rows[0].pop("credential")
    day = rows[0].pop("day")
    assert rows == [
        {
            "user_id": ann.id,
            "model": "tiny",
            "requests": 1,
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": 0,
            "output_tokens": usage["completion_tokens"],
        }
    ]
    assert len(session) == 16
    assert (await site.ask("GET", f"/v1/admin/usage?first={day}&last={day}", admin)).json()["data"]
    assert (await site.ask("GET", "/v1/admin/usage?first=2000-01-01&last=2000-01-02", admin)).json()["data"] == []
    audit = await site.ask("GET", "/v1/admin/audit?after=4&limit=3", admin)
    page = audit.json()
    assert page["intact"] is True
    assert [(row["seq"], row["actor"], row["action"]) for row in page["data"]] == [
        (5, "operator", "add_user"),
        (6, ann.id, "login"),
        (7, ann.id, "change_password"),
    ]
    everything = (await site.ask("GET", "/v1/admin/audit", admin)).text + (
        await site.ask("GET", "/metrics", admin)
    ).text
    for hidden in (canary, PASSWORD, token, admin):
        assert hidden not in everything
    for query, param in [("usage?first=yesterday", "first"), ("audit?after=-1", "after"), ("audit?limit=1e9", "limit")]:
        wrong = await site.ask("GET", f"/v1/admin/{query}", admin)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, param)


async def test_nobody_reaches_anothers_keys(site: Site) -> None:
    site.add("ann")
    site.add("root", role="admin", limits=UserLimits())
    ann, root = await site.log_in("ann"), await site.log_in("root")
    key = (await site.ask("POST", "/v1/keys", ann, {"label": "laptop"})).json()
    assert (await site.ask("GET", "/v1/keys", root)).json()["data"] == []
    assert await site.code("DELETE", f"/v1/keys/{key['id']}", root) == "404 not_found"
    assert (await site.ask("GET", "/v1/keys", key["secret"])).status_code == 200
