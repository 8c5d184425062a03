"""Users in the access log: the ids of their keys and sessions, and no name, password, label or text."""

import json
from pathlib import Path
from typing import Any

from app.interface.request.access_log import AccessLog
from app.messages.accounts import UserLimits
from tests.app.interface.users.here import CHAT, PASSWORD, Site
from tests.app.service import http_app, http_client


async def test_a_caller_is_the_id_of_a_key_or_session(site: Site, tmp_path: Path) -> None:
    log = AccessLog(tmp_path, 1 << 20)
    await site.client.aclose()
    site.client = http_client(http_app(site.worker.generate, accounts=site.gate, access_log=log))
    site.add("canary-user")
    site.add("canary-admin", role="admin", limits=UserLimits())
    token, admin = await site.log_in("canary-user"), await site.log_in("canary-admin")
    key = (await site.ask("POST", "/v1/keys", token, {"label": "canary-label"})).json()
    assert (await site.ask("POST", "/v1/chat/completions", key["secret"], CHAT)).status_code == 200
    stored: dict[str, Any] = {"model": "tiny", "input": "canary-text", "conversation": None}
    made = (await site.ask("POST", "/v1/conversations", token, {"metadata": {"canary": "canary"}})).json()
    await site.ask("POST", "/v1/responses", token, stored | {"conversation": made["id"]})
    await site.ask("POST", "/v1/responses", token, stored | {"background": True})
    await site.ask("POST", "/v1/admin/users/canary-user", admin, {"disabled": False})
    await site.ask("GET", "/v1/admin/users", admin)
    await site.ask("POST", "/v1/auth/login", None, {"name": "canary-nobody", "password": "canary-password"})
    await site.ask("GET", "/v1/models", "rdbt_canary_of_nobody")
    log.close()
    text = (tmp_path / "access-1.jsonl").read_text()
    for hidden in ("canary", PASSWORD, key["secret"], token, admin):
        assert hidden not in text
    lines = [json.loads(line) for line in text.splitlines()]
    (chat,) = [line for line in lines if line["route"] == "/v1/chat/completions"]
    assert chat["caller"] == key["id"]
    sessions = {line["caller"] for line in lines if line["route"].startswith(("/v1/responses", "/v1/conv"))}
    assert len(sessions) == 1, "one session's"
    assert sessions != {"anonymous"}
    assert "/v1/admin/users/{name}" in {line["route"] for line in lines}
    of_admin = {line["caller"] for line in lines if line["route"].startswith("/v1/admin")}
    assert len(of_admin) == 1
    assert not of_admin & (sessions | {"anonymous", key["id"]})
    assert {(line["caller"], line["error"]) for line in lines if line["status"] == 401} == {
        ("anonymous", "invalid_login"),
        ("anonymous", "invalid_api_key"),
    }
