"""Logging in and out over HTTP, and permissions."""

import asyncio
from collections.abc import Callable
from http.cookies import SimpleCookie

import openai
import pytest
from sqlalchemy import select

from app.accounts import tables
from app.accounts.accounts import OPERATOR_ACTS
from app.accounts.credential_service import MOST_WAITING_PASSWORDS
from app.messages.accounts import AuditRow, UserLimits
from app.messages.memory import SavedPages
from tests.app.accounts.world import FIRST
from tests.app.interface.users.here import CHAT, PASSWORD, Site
from tests.app.service import openai_client

LOGIN = "/v1/auth/login"


async def test_a_session_is_sent_like_a_key(site: Site) -> None:
    ann = site.add("Ann", limits=UserLimits(concurrent=3)).info
    answer = await site.client.post(LOGIN, json={"name": "ann", "password": PASSWORD})
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers
    session = answer.json()
    token = session.pop("token")
    assert (session["user_id"], session["name"], session["role"], session["kind"]) == (ann.id, "ann", "user", "session")
    assert session["limits"]["concurrent"] == 3
    shown = await site.ask("GET", "/v1/auth/session", token)
    assert shown.json() == session
    assert (await site.ask("POST", "/v1/chat/completions", token, CHAT)).status_code == 200


async def test_sessions_are_listed_and_ended_one_by_one(site: Site) -> None:
    site.add("ann")
    site.add("bob")
    first, second, other = await site.log_in("ann"), await site.log_in("ann"), await site.log_in("bob")
    listed = (await site.ask("GET", "/v1/auth/sessions", first)).json()["data"]
    assert sorted(each["current"] for each in listed) == [False, True]
    assert {each["device"] for each in listed} == {"python-httpx2"}
    (rest,) = (each["id"] for each in listed if not each["current"])
    assert await site.code("DELETE", f"/v1/auth/sessions/{rest}", other) == "404 not_found"
    assert (await site.ask("DELETE", f"/v1/auth/sessions/{rest}", first)).status_code == 200
    assert await site.code("DELETE", f"/v1/auth/sessions/{rest}", first) == "404 not_found"
    assert await site.code("GET", "/v1/auth/session", second) == "401 session_expired"
    (left,) = (await site.ask("GET", "/v1/auth/sessions", first)).json()["data"]
    assert left["current"] is True
    assert not {first, second} & {left["id"]}


@pytest.mark.parametrize(
    ("user_agent", "device"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0", "Firefox on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0"
            " Safari/537.36 Edg/156.0.0.0",
            "Edge on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)"
            " Version/19.0 Mobile/15E148 Safari/604.1",
            "Safari on iPhone",
        ),
        (
            "Mozilla/5.0 (Linux; Android 16; Pixel 9) AppleWebKit/537.36 Chrome/156.0 Mobile Safari/537.36",
            "Chrome on Android",
        ),
        ("curl/8.14.1", "curl"),
        ("Mozilla/5.0", None),
        ("<script>alert(1)</script>", None),
        ("", None),
    ],
)
async def test_a_session_says_where_it_was_begun(site: Site, user_agent: str, device: str | None) -> None:
    site.add("ann")
    login = {"name": "ann", "password": PASSWORD}
    token = (await site.ask("POST", "/v1/auth/login", None, login, **{"User-Agent": user_agent})).json()["token"]
    (session,) = (await site.ask("GET", "/v1/auth/sessions", token)).json()["data"]
    assert session["device"] == device
    if device is not None:
        with site.inside.store.transaction() as connection:
            (sealed,) = connection.execute(select(tables.sessions.c.device_sealed)).scalars()
        assert device.encode() not in sealed


async def test_limits_say_what_is_used_of_them(site: Site) -> None:
    site.add("ann", limits=UserLimits(requests_per_minute=5, concurrent=3))
    ann = await site.log_in("ann")
    body = {"model": "tiny", "input": "hi"}
    assert (await site.ask("POST", "/v1/responses", ann, body)).status_code == 200
    await asyncio.gather(*site.gate._background_tasks)
    shown = (await site.ask("GET", "/v1/auth/limits", ann)).json()
    assert shown["requests_per_minute"] == {"limit": 5, "used": 1}
    assert shown["concurrent"] == {"limit": 3, "used": 0}
    assert shown["tokens_per_day"]["limit"] is None
    assert shown["tokens_per_day"]["used"] > 0
    assert shown["stored_bytes"]["limit"] == site.settings.stored_bytes_per_user
    assert shown["stored_bytes"]["used"] > 0
    site.add("bob")
    assert (await site.ask("GET", "/v1/auth/limits", await site.log_in("bob"))).json()["tokens_per_day"]["used"] == 0


async def test_the_openai_client_works_with_a_key_of_the_users(site: Site) -> None:
    site.add("ann")
    made = await site.ask("POST", "/v1/keys", await site.log_in("ann"), {"label": "laptop", "expires_in_days": 30})
    key = made.json()
    assert key["expires_at"] == key["created_at"] + 30 * 86_400
    client = openai_client(site.app).with_options(api_key=key["secret"])
    answer = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].finish_reason == "stop"
    assert [model.id async for model in client.models.list()] == ["tiny"]
    listed = (await site.ask("GET", "/v1/keys", key["secret"])).json()["data"]
    assert listed == [{name: value for name, value in key.items() if name != "secret"}]
    assert (await site.ask("DELETE", f"/v1/keys/{key['id']}", key["secret"])).status_code == 200
    async with site.watching():  # the identity is not kept longer than this
        async with asyncio.timeout(60):
            while (await site.ask("GET", "/v1/models", key["secret"])).status_code == 200:
                await asyncio.sleep(0.01)
        with pytest.raises(openai.AuthenticationError, match="not valid here"):
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])


async def test_a_key_is_taken_as_anthropics_clients_send_it(site: Site) -> None:
    site.add("ann")
    key = (await site.ask("POST", "/v1/keys", await site.log_in("ann"), {})).json()["secret"]
    body = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for path, sent in (("/v1/messages", body), ("/v1/messages/count_tokens", body | {"max_tokens": None})):
        counts = {name: value for name, value in sent.items() if value is not None}
        assert (await site.client.post(path, json=counts, headers={"x-api-key": key})).status_code == 200
        assert (
            await site.client.post(path, json=counts, headers={"Authorization": f"Bearer {key}"})
        ).status_code == 200
        for headers in ({}, {"x-api-key": "rdbt_wrong"}):
            refused = await site.client.post(path, json=counts, headers=headers)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert (await site.client.get("/v1/auth/limits", headers={"x-api-key": key})).status_code == 200
    foreign = {"Authorization": f"Bearer {key}", "x-api-key": "rdbt_wrong"}
    assert (await site.client.get("/v1/models", headers=foreign)).status_code == 200


CLOSED = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/workers"),
    ("GET", "/metrics"),
    ("GET", "/v1/auth/session"),
    ("GET", "/v1/auth/limits"),
    ("GET", "/v1/auth/sessions"),
    ("DELETE", "/v1/auth/sessions/0123456789abcdef"),
    ("GET", "/v1/conversations"),
    ("POST", "/v1/conversations"),
    ("DELETE", "/v1/conversations"),
    ("GET", "/v1/conversations/conv_1/export"),
    ("GET", "/v1/responses/resp_1"),
    ("POST", "/v1/memory/warm"),
    ("POST", "/v1/auth/logout"),
    ("POST", "/v1/auth/password"),
    ("POST", "/v1/auth/recovery"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("DELETE", "/v1/keys/0123456789abcdef"),
    ("GET", "/v1/admin/users"),
    ("POST", "/v1/admin/users"),
    ("POST", "/v1/admin/users/ann"),
    ("DELETE", "/v1/admin/users/ann"),
    ("POST", "/v1/admin/users/ann/reset"),
    ("GET", "/v1/admin/usage"),
    ("GET", "/v1/admin/usage/users"),
    ("GET", "/v1/admin/overview"),
    ("GET", "/v1/admin/capacity"),
    ("GET", "/v1/admin/audit"),
    ("GET", "/v1/anything"),
)


async def test_nothing_without_a_credential(site: Site) -> None:
    site.add("ann")
    for method, path in CLOSED:
        for secret in (None, "", "none", "rdbt_0123456789abcdef_" + "x" * 43):
            assert await site.code(method, path, secret, {}) == "401 invalid_api_key", (method, path)
        assert await site.code(method, path, "rdbs_" + "x" * 43, {}) == "401 session_expired", (method, path)
    assert site.worker.requests == []


@pytest.mark.parametrize(("name", "password"), [("ann", "wrong password"), ("nobody", PASSWORD), ("a b", PASSWORD)])
async def test_a_wrong_login_says_the_same_whatever_is_wrong(site: Site, name: str, password: str) -> None:
    site.add("ann")
    answer = await site.client.post(LOGIN, json={"name": name, "password": password})
    assert answer.status_code == 401
    assert answer.json()["error"] == {
        "message": "Name or password is wrong.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_login",
    }


@pytest.mark.parametrize("spelled", ["ann", "ANN", "\uff21\uff4e\uff4e"])  # the last one in full-width letters
async def test_logins_are_refused_after_some_failures_however_the_name_is_spelled(
    make_site: Callable[..., Site], spelled: str
) -> None:
    site = make_site(login_failures=3)
    site.add("ann")
    site.add("bob")
    session = await site.log_in("ann")
    for _ in range(3):
        assert await site.code("POST", LOGIN, None, {"name": "ann", "password": "not it"}) == "401 invalid_login"
    answer = await site.client.post(LOGIN, json={"name": spelled, "password": PASSWORD})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_logins")
    assert int(answer.headers["retry-after"]) > 600
    change = {"password": "not it", "new_password": "another long password"}
    assert await site.code("POST", "/v1/auth/password", session, change) == "429 too_many_logins"
    assert (await site.ask("GET", "/v1/auth/session", session)).status_code == 200  # existing sessions stay
    assert await site.log_in("bob")
    for _ in range(3):  # and a name that nobody has is treated alike
        assert await site.code("POST", LOGIN, None, {"name": "nobody", "password": "not it"}) == "401 invalid_login"
    assert await site.code("POST", LOGIN, None, {"name": "nobody", "password": "x"}) == "429 too_many_logins"


async def test_guesses_at_the_same_time_are_no_more_than_one_after_the_other(make_site: Callable[..., Site]) -> None:
    site = make_site(login_failures=3)
    site.add("ann")
    guesses = [site.code("POST", LOGIN, None, {"name": "ann", "password": f"guess {n}"}) for n in range(10)]
    answers = await asyncio.gather(*guesses)
    assert sorted(answers) == ["401 invalid_login"] * 3 + ["429 too_many_logins"] * 7


async def test_a_right_password_opens_the_name_again(make_site: Callable[..., Site]) -> None:
    site = make_site(login_failures=3)
    site.add("ann")
    for _ in range(3):
        for _ in range(2):
            assert await site.code("POST", LOGIN, None, {"name": "ann", "password": "not it"}) == "401 invalid_login"
        assert await site.log_in("ann")


async def test_a_flood_of_logins_is_refused_and_requests_go_on(site: Site) -> None:
    site.add("ann")
    session = await site.log_in("ann")
    flood = [
        site.client.post(LOGIN, json={"name": f"nobody{number}", "password": "x"})
        for number in range(3 * MOST_WAITING_PASSWORDS)
    ]
    asked = [asyncio.create_task(each) for each in flood]
    assert (await site.ask("POST", "/v1/chat/completions", session, CHAT)).status_code == 200
    statuses = [(await each).status_code for each in asked]
    assert set(statuses) == {401, 429}
    assert statuses.count(401) >= MOST_WAITING_PASSWORDS
    assert await site.log_in("ann")
    unknown = [row for row in audit(site) if row.actor == "unknown"]
    assert 0 < len(unknown) <= 5  # the flood does not fill the audit


def audit(site: Site) -> list[AuditRow]:
    return list(site.inside.audit(OPERATOR_ACTS, 0, 1000).rows)


async def test_failures_are_in_the_audit(site: Site) -> None:
    ann = site.add("ann").info
    await site.code("POST", LOGIN, None, {"name": "ann", "password": "not it"})
    await asyncio.gather(*site.service._tasks)
    assert [(row.actor, row.action, row.outcome) for row in audit(site)][-1] == (ann.id, "login", "refused")


async def test_a_cookie_is_for_the_sites_own_pages(site: Site) -> None:
    site.add("ann")
    fixed = "rdbs_" + "x" * 43
    site.client.cookies.set("redoubt_session", fixed)  # what an attacker planted
    answer = await site.client.post(LOGIN, json={"name": "ann", "password": PASSWORD, "cookie": True})
    assert answer.json()["token"] is None
    cookie = SimpleCookie(answer.headers["set-cookie"])["redoubt_session"]
    assert cookie.value.startswith("rdbs_")
    assert cookie.value != fixed
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "strict", "/", "")
    assert 0 < int(cookie["max-age"]) <= 90 * 86_400
    site.client.cookies.clear()
    assert await site.code("GET", "/v1/auth/session", None, Cookie=f"redoubt_session={fixed}") == "401 session_expired"

    own = {"Cookie": f"redoubt_session={cookie.value}"}
    assert (await site.ask("GET", "/v1/auth/session", None, **own)).status_code == 200
    for origin in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://test.evil.example"}):
        assert await site.code("POST", "/v1/chat/completions", None, CHAT, **own, **origin) == "403 foreign_origin"
        assert await site.code("POST", "/v1/auth/logout", None, {}, **own, **origin) == "403 foreign_origin"
        assert await site.code("DELETE", "/v1/keys/x", None, None, **own, **origin) == "403 foreign_origin"
    same = {"Origin": "http://test"}
    assert (await site.ask("POST", "/v1/chat/completions", None, CHAT, **own, **same)).status_code == 200
    out = await site.ask("POST", "/v1/auth/logout", None, {}, **own, **same)
    assert out.json() == {
        "object": "session.ended",
        "sessions": 1,
        "saved_pages": 0,
        "saved_bytes": 0,
        "unsaved_pages": 0,
        "unacknowledged": 0,
    }
    assert SimpleCookie(out.headers["set-cookie"])["redoubt_session"]["max-age"] == "0"
    assert await site.code("GET", "/v1/auth/session", None, **own) == "401 session_expired"


async def test_a_login_ends_the_session_that_the_browser_had(site: Site) -> None:
    site.add("ann")
    site.add("bob")
    for each in site.page_workers:
        each.answers["clear_memory"] = SavedPages(3, 450_000, 0)

    async def log_in(name: str, former: str, origin: str = "http://test", password: str = PASSWORD) -> str | None:
        headers = {"Origin": origin, "Cookie": f"redoubt_session={former}"}
        body = {"name": name, "password": password, "cookie": True}
        answer = await site.client.post(LOGIN, json=body, headers=headers)
        site.client.cookies.clear()
        if answer.status_code != 200:
            return None
        return SimpleCookie(answer.headers["set-cookie"])["redoubt_session"].value

    async def holds(session: str | None) -> bool:
        return (await site.ask("GET", "/v1/auth/session", session)).status_code == 200

    def clears() -> int:
        return [call[0] for call in site.page_workers[0].calls].count("clear_memory")

    elsewhere, first = await site.log_in("ann"), await site.log_in("ann")
    assert await holds(first)  # the ingress keeps the identity now
    # Neither a wrong password nor a page of another site ends anything.
    assert await log_in("ann", first, password="not the password") is None
    assert await log_in("ann", first, "https://evil.example")
    assert await holds(first)

    second = await log_in("ann", first)
    assert second is not None
    assert (await holds(first), await holds(second), await holds(elsewhere)) == (False, True, True)
    assert clears() == 0
    bobs = await log_in("bob", second)  # another user: as if the first one had signed out
    assert (await holds(second), await holds(bobs), await holds(elsewhere)) == (False, True, True)
    assert clears() == 1

    # An invalid session has nothing to end, and does not prevent a login.
    key = (await site.ask("POST", "/v1/keys", bobs, {})).json()["secret"]
    assert await log_in("bob", key)
    assert await holds(key)
    assert await log_in("bob", "rdbs_" + "x" * 43)
    assert bobs is not None
    site.accounts.failing = ["logout"]
    assert await log_in("bob", bobs)
    assert await holds(bobs)


async def test_a_cookie_is_secure_behind_tls(site: Site) -> None:
    site.add("ann")
    body = {"name": "ann", "password": PASSWORD, "cookie": True}
    answer = await site.client.post(LOGIN, json=body, headers={"X-Forwarded-Proto": "https"})
    assert SimpleCookie(answer.headers["set-cookie"])["redoubt_session"]["secure"] is True


async def test_a_new_password(site: Site) -> None:
    site.add("ann")
    mine, other = await site.log_in("ann"), await site.log_in("ann")
    change = {"password": PASSWORD, "new_password": "another long password"}
    wrong = change | {"password": "not the one"}
    assert await site.code("POST", "/v1/auth/password", mine, wrong) == "401 invalid_login"
    short = await site.ask("POST", "/v1/auth/password", mine, change | {"new_password": "short"})
    assert short.json()["error"]["param"] == "new_password"
    async with site.watching():
        assert (await site.ask("GET", "/v1/auth/session", other)).status_code == 200
        assert (await site.ask("POST", "/v1/auth/password", mine, change)).json() == {
            "object": "done",
            "recovery_code": None,
            "memory_lost": False,
        }
        async with asyncio.timeout(60):
            while (await site.ask("GET", "/v1/auth/session", other)).status_code == 200:
                await asyncio.sleep(0.01)
        assert await site.code("GET", "/v1/auth/session", other) == "401 session_expired"
    assert (await site.ask("GET", "/v1/auth/session", mine)).status_code == 200
    assert await site.log_in("ann", "another long password")


@pytest.mark.parametrize("everywhere", [False, True])
async def test_logout(site: Site, everywhere: bool) -> None:
    site.add("ann")
    mine, other = await site.log_in("ann"), await site.log_in("ann")
    body = {"everywhere": everywhere}
    assert (await site.ask("POST", "/v1/auth/logout", mine, body)).json()["sessions"] == 1 + everywhere
    assert await site.code("GET", "/v1/auth/session", mine) == "401 session_expired"
    assert (await site.ask("GET", "/v1/auth/session", other)).status_code == (401 if everywhere else 200)


@pytest.mark.parametrize(("guests", "status"), [(True, 421), (False, 401)])
async def test_a_site_that_has_the_service_under_its_own_name(
    make_site: Callable[..., Site], guests: bool, status: int
) -> None:
    """After DNS rebinding, web pages are not guests. Without guests, they lack a credential."""
    answer = await make_site(guests=guests).client.get("/v1/models", headers={"Host": "evil.example"})
    assert answer.status_code == status


async def test_guests_are_served_where_they_may_be(make_site: Callable[..., Site]) -> None:
    site = make_site(guests=True)
    site.add("ann", limits=UserLimits(requests_per_minute=1))
    ann = await site.log_in("ann")
    for secret in (None, "none", "sk-unused", ann):  # stock clients send some key
        assert (await site.ask("POST", "/v1/chat/completions", secret, CHAT)).status_code == 200
    tenants = [request.tenant for request in site.worker.requests]
    assert tenants[:3] == [b""] * 3
    assert len(tenants[3]) == 32
    assert await site.code("GET", "/v1/models", "rdbt_0123456789abcdef_" + "x" * 43) == "401 invalid_api_key"
    for method, path in [("GET", "/v1/auth/session"), ("GET", "/v1/keys")]:
        assert await site.code(method, path, None) == "401 invalid_api_key"
    assert await site.code("GET", "/v1/admin/users", None) == "403 admin_only"


async def test_all_credentials_of_a_user_share_pages_and_no_other_users(site: Site) -> None:
    site.add("ann")
    site.add("bob")
    ann, bob = await site.log_in("ann"), await site.log_in("bob")
    key = (await site.ask("POST", "/v1/keys", ann, {})).json()["secret"]
    for secret in (ann, key, await site.log_in("ann"), bob):
        await site.ask("POST", "/v1/chat/completions", secret, CHAT | {"user": "bob"})
    mine, with_key, again, his = (request.tenant for request in site.worker.requests)
    assert mine == with_key == again != his
    assert len(mine) == len(his) == 32


async def test_account_routes_are_not_there_without_accounts(site: Site) -> None:
    from tests.app.fake_worker import FakeWorker
    from tests.app.service import http_app, http_client

    async with http_client(http_app(FakeWorker(lambda _: []).generate)) as client:
        assert (await client.post(LOGIN, json={})).json()["error"]["code"] == "unknown_url"
        paths = (await client.get("/openapi.json")).json()["paths"]
    described = (await site.client.get("/openapi.json")).json()["paths"]
    assert not any(path.startswith(("/v1/auth", "/v1/keys", "/v1/admin", "/v1/memory")) for path in paths)
    assert set(described) - set(paths) == {
        "/v1/conversations",
        "/v1/conversations/{id}",
        "/v1/conversations/{id}/export",
        "/v1/conversations/{id}/restore",
        "/v1/conversations/{id}/items",
        "/v1/conversations/{id}/items/{item_id}",
        "/v1/files",
        "/v1/files/{id}",
        "/v1/files/{id}/content",
        "/v1/files/{id}/document",
        "/v1/batches",
        "/v1/batches/{id}",
        "/v1/batches/{id}/cancel",
        "/v1/memory/warm",
        "/v1/responses/{id}",
        "/v1/responses/{id}/cancel",
        "/v1/responses/{id}/input_items",
        "/v1/vector_stores",
        "/v1/vector_stores/{id}",
        "/v1/vector_stores/{id}/files",
        "/v1/vector_stores/{id}/files/{file_id}",
        "/v1/vector_stores/{id}/files/{file_id}/content",
        "/v1/vector_stores/{id}/members",
        "/v1/vector_stores/{id}/search",
        "/v1/vector_stores/{id}/file_batches",
        "/v1/vector_stores/{id}/file_batches/{batch_id}",
        "/v1/vector_stores/{id}/file_batches/{batch_id}/cancel",
        "/v1/vector_stores/{id}/file_batches/{batch_id}/files",
        "/v1/auth/login",
        "/v1/auth/logout",
        "/v1/auth/session",
        "/v1/auth/limits",
        "/v1/auth/sessions",
        "/v1/auth/sessions/{id}",
        "/v1/auth/password",
        "/v1/auth/recovery",
        "/v1/keys",
        "/v1/keys/{id}",
        "/v1/admin/users",
        "/v1/admin/users/{name}",
        "/v1/admin/users/{name}/reset",
        "/v1/admin/usage",
        "/v1/admin/usage/users",
        "/v1/admin/overview",
        "/v1/admin/capacity",
        "/v1/admin/audit",
        "/v1/memory",
        "/v1/memory/save",
    }
    assert "security" not in described["/v1/auth/login"]["post"]


async def test_other_methods_name_those_that_are_there(site: Site) -> None:
    site.add("ann")
    answer = await site.ask("PUT", "/v1/keys", await site.log_in("ann"))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


async def test_hostile_bodies_are_refused_by_name(site: Site) -> None:
    for body, param in [
        ({}, "name"),
        ({"name": "ann"}, "password"),
        ({"name": "ann", "password": "x" * 5000}, "password"),
        ({"name": ["ann"], "password": "x"}, "name"),
        ({"name": "ann", "password": "x", "admin": True}, "admin"),
    ]:
        answer = await site.client.post(LOGIN, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await site.client.post(LOGIN, json={"name": "x" * 70_000, "password": ""})).status_code == 413
    assert (await site.client.post(LOGIN, content=b"name=ann")).status_code == 415


async def test_a_page_that_believes_to_be_another_user_is_refused(make_site: Callable[..., Site]) -> None:
    site = make_site(guests=True)
    ann = site.add("ann").info
    site.add("root", role="admin")
    cookie = {"Cookie": f"redoubt_session={await site.log_in('root')}", "Origin": "http://test"}
    for method, path in (("GET", "/v1/auth/session"), ("POST", "/v1/conversations"), ("POST", "/v1/chat/completions")):
        refused = await site.code(method, path, None, {}, **cookie, **{"X-Redoubt-User": ann.id})
        assert refused == "409 another_user"
        signed_out = await site.code(method, path, None, {}, **{"X-Redoubt-User": ann.id})  # not as a guest either
        assert signed_out == "401 session_expired"
    here = await site.ask("GET", "/v1/auth/session", None, **cookie)
    assert here.json()["name"] == "root"
    # A web page that knows no user acts as a guest, whatever the cookie has become.
    guest = await site.code("GET", "/v1/auth/session", None, **cookie, **{"X-Redoubt-User": "none"})
    assert guest == "401 invalid_api_key"


OURS = "X-Redoubt-Client"
FOR = "X-Forwarded-For"


ADDRESSES: tuple[tuple[list[tuple[str, str]], str | None], ...] = (
    ([(OURS, "192.0.2.7")], "192.0.2.7"),
    ([(OURS, "192.0.2.7"), (FOR, "198.51.100.1")], "192.0.2.7"),  # only the client claims it
    ([(OURS, "10.0.0.1"), (FOR, "198.51.100.1")], "198.51.100.1"),
    ([(OURS, "10.0.0.1"), (FOR, "203.0.113.9, 198.51.100.1, 10.1.1.1")], "198.51.100.1"),
    ([(OURS, "10.0.0.1"), (FOR, "203.0.113.9"), (FOR, "198.51.100.1")], "198.51.100.1"),
    ([(OURS, "10.0.0.1"), (FOR, "203.0.113.9, root")], "10.0.0.1"),
    ([(OURS, "10.0.0.1")], "10.0.0.1"),
    ([(OURS, "::ffff:10.0.0.1"), (FOR, "2001:db8:0::7%\x1b[2J")], "2001:db8::7"),
    ([(OURS, "unix")], None),
    ([(FOR, "198.51.100.1")], None),
)


async def test_the_address_of_a_refused_login_is_what_can_be_believed(make_site: Callable[..., Site]) -> None:
    proxied = {"behind_own_proxy": True, "trusted_proxies": ("10.0.0.0/8",)}
    site = make_site(http=proxied, login_failures=len(ADDRESSES) + 1)
    site.add("root", role="admin")
    wrong = {"name": "nobody", "password": "not it"}
    for headers, _ in ADDRESSES:
        assert (await site.client.post(LOGIN, json=wrong, headers=headers)).status_code == 401
    rows = (await site.ask("GET", "/v1/admin/audit", await site.log_in("root"))).json()["data"]
    refused = [row["address"] for row in sorted(rows, key=lambda row: row["seq"]) if row["outcome"] == "refused"]
    assert refused == [address for _, address in ADDRESSES]


async def test_without_our_proxy_no_header_is_believed(site: Site) -> None:
    site.add("root", role="admin")
    body = {"name": "root", "password": PASSWORD}
    answer = await site.client.post(LOGIN, json=body, headers={OURS: "192.0.2.7", FOR: "192.0.2.8"})
    rows = (await site.ask("GET", "/v1/admin/audit", answer.json()["token"])).json()["data"]
    assert [row["address"] for row in rows] == [None] * len(rows)


RECOVERY = "/v1/auth/recovery"


async def test_a_new_recovery_code_is_shown_once_for_the_password(site: Site) -> None:
    lost = site.add("ann").recovery_code
    site.add("root", role="admin")
    ann, root = await site.log_in("ann"), await site.log_in("root")
    made = await site.ask("POST", RECOVERY, ann, {"password": PASSWORD})
    assert made.headers["cache-control"] == "no-store"
    code = made.json()["recovery_code"]
    assert (len(code), code == lost) == (39, False)
    await site.ask("POST", "/v1/admin/users/ann/reset", root, {"password": FIRST})
    first = await site.log_in("ann", FIRST)
    assert await site.code("POST", RECOVERY, first, {"password": FIRST}) == "403 password_change_required"
    choice = {"password": FIRST, "new_password": PASSWORD}
    for wrong in (lost, None):
        assert (
            await site.ask("POST", "/v1/auth/password", first, choice | {"recovery_code": wrong})
        ).status_code == 400
    kept = await site.ask("POST", "/v1/auth/password", first, choice | {"recovery_code": code})
    assert kept.json()["memory_lost"] is False
    everything = (await site.ask("GET", "/v1/admin/audit", root)).text
    assert "new_recovery_code" in everything
    assert code not in everything


async def test_guesses_at_the_password_of_a_recovery_code_are_counted_and_in_the_audit(
    make_site: Callable[..., Site],
) -> None:
    """Passwords count together with those at logins: a stolen session must not allow further guesses."""
    site = make_site(login_failures=3)
    site.add("ann")
    ann = await site.log_in("ann")
    assert (await site.ask("POST", RECOVERY, ann, {})).status_code == 400
    assert (
        await site.ask("POST", RECOVERY, ann, {"password": PASSWORD}, Cookie="redoubt_session=x")
    ).status_code == 200
    tries = [site.code("POST", RECOVERY, ann, {"password": "not it"}) for _ in range(9)]
    answers = sorted(await asyncio.gather(*tries))
    assert answers == ["401 invalid_login"] * 3 + ["429 too_many_logins"] * 6
    assert await site.code("POST", RECOVERY, ann, {"password": PASSWORD}) == "429 too_many_logins"
    assert await site.code("POST", LOGIN, None, {"name": "ann", "password": PASSWORD}) == "429 too_many_logins"
    rows = [row for row in site.inside.audit(OPERATOR_ACTS, 0, 100).rows if row.outcome == "refused"]
    assert [(row.action, row.object) for row in rows] == [("new_recovery_code", session_of(site, ann))] * 3


async def test_guesses_at_the_password_that_is_to_be_changed_are_in_the_audit_too(site: Site) -> None:
    site.add("ann")
    ann = await site.log_in("ann")
    guess = {"password": "not it", "new_password": "another long password"}
    assert await site.code("POST", "/v1/auth/password", ann, guess) == "401 invalid_login"
    await site.log_in("ann")
    (row,) = (row for row in site.inside.audit(OPERATOR_ACTS, 0, 100).rows if row.outcome == "refused")
    assert (row.action, row.object) == ("change_password", session_of(site, ann))


async def test_a_page_of_another_site_gets_no_recovery_code(site: Site) -> None:
    site.add("ann")
    cookie = f"redoubt_session={await site.log_in('ann')}"
    asked = {"password": PASSWORD}
    assert await site.code("POST", RECOVERY, None, asked, Cookie=cookie) == "403 foreign_origin"
    assert await site.code("POST", RECOVERY, None, asked, Cookie=cookie, Origin="http://evil") == "403 foreign_origin"
    assert (await site.ask("POST", RECOVERY, None, asked, Cookie=cookie, Origin="http://test")).status_code == 200


def session_of(site: Site, token: str) -> str:
    return site.inside.logins.identify(token).credential
