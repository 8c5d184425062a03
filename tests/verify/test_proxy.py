"""The local proxy: what it passes on, what it shows, and whom it refuses."""

import datetime
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.attestation.soft import SoftTee
from redoubt_verify import Policy, PolicyError
from redoubt_verify.connections import Verifier
from redoubt_verify.policy import parse
from redoubt_verify.proxy import Proxy
from redoubt_verify.standing import Standing
from tests.verify.fake_service import (
    CANARY,
    CONFIG,
    KEY,
    MODEL,
    WORDS,
    FakeService,
    TlsKey,
    http_response,
    policy_text,
)

MESSAGES: Any = [{"role": "user", "content": CANARY}]


@pytest.fixture
def proxy(service: FakeService, policy: Policy) -> Iterator[Proxy]:
    now_s = time.time()  # stands still: the tests compare moments in whole seconds
    made = Proxy(Verifier(service.url, policy, clock=lambda: now_s), "127.0.0.1", 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def _ask(
    proxy: Proxy, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """(status, headers in lower case, body). headers: with _ for -."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, answer


def _raw(proxy: Proxy, rest: bytes, first: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    """The answer to a request of any bytes. rest: what comes behind its Host."""
    host = f"\r\nHost: 127.0.0.1:{proxy.server_port}\r\nConnection: close\r\n".encode()
    with socket.create_connection(("127.0.0.1", proxy.server_port), timeout=60) as connection:
        connection.sendall(first + host + rest)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_stock_client_chats_through_it(service: FakeService, proxy: Proxy) -> None:
    with openai.OpenAI(base_url=f"{proxy.address}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.chat.completions.create(model="smollm2", messages=MESSAGES)
        assert answer.choices[0].message.content == "".join(WORDS)
        stream = client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == "".join(WORDS)
    assert service.targets[0] == "/v1/attestation"
    assert f"Bearer {KEY}".encode() in b"".join(map(bytes, service.plain))


def test_a_stream_is_not_buffered(service: FakeService, proxy: Proxy) -> None:
    service.step = threading.Event()
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES, "stream": True}))
    response = connection.getresponse()
    assert WORDS[0].encode() in response.readline()
    assert not service.step.is_set()
    service.step.set()
    response.readline()
    assert WORDS[1].encode() in response.readline()
    connection.close()


def test_a_refused_service_gets_no_prompt(service: FakeService, proxy: Proxy) -> None:
    service.config = "00" * 32
    status, _, body = _ask(proxy, "POST", "/v1/chat/completions", CANARY.encode())
    assert (status, json.loads(body)["error"]["code"]) == (502, "config_digest")
    service.assert_no_prompt()
    verdict = _verdict(proxy)
    assert (verdict["state"], verdict["reason"]) == ("refused", "config_digest")


def _verdict(proxy: Proxy) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_ask(proxy, "GET", "/verdict.json")[2])
    return answer


def test_it_shows_the_verdict_on_its_own_page(service: FakeService, proxy: Proxy) -> None:
    status, headers, body = _ask(proxy, "GET", "/")
    assert status == 200
    assert b'<meta name="redoubt-proxy"' in body
    assert "script-src 'self'" in headers["content-security-policy"]
    for path in re.findall(r'(?:src|href)="(/ui/[^"]+)"', body.decode()):
        assert _ask(proxy, "GET", path)[0] == 200
    assert _ask(proxy, "GET", "/ui/assets/../../proxy.py")[0] == 404
    assert not service.raw
    answer = _verdict(proxy)
    assert answer["state"] == "insecure"
    assert answer["verdict"]["models"] == [[MODEL["name"], MODEL["sha256"]]]
    assert answer["checked_at"] == answer["verdict"]["verified_at"]
    assert answer["last_refusal"] is None
    assert service.targets == ["/v1/attestation"]


def test_the_verdict_is_of_the_machine_that_answers_now(service: FakeService, proxy: Proxy, tmp_path: Path) -> None:
    """A service that is started anew with other software is refused, although its former key's verdict holds."""
    proxy.standing = Standing(proxy.verifier, check_period_s=0.0)
    assert _verdict(proxy)["state"] == "insecure"
    before, service.keys[:] = service.keys[0], [TlsKey.make(tmp_path)]
    service.config = "00" * 32
    answer = _verdict(proxy)
    assert (answer["state"], answer["reason"], "verdict" in answer) == ("refused", "config_digest", False)
    service.keys[:] = [before]
    service.config = CONFIG
    answer = _verdict(proxy)
    assert answer["state"] == "insecure"
    assert answer["last_refusal"]["reason"] == "config_digest"
    service.close()
    assert _verdict(proxy)["state"] == "unreachable"


def test_a_refused_request_changes_the_verdict_at_once(service: FakeService, proxy: Proxy, tmp_path: Path) -> None:
    assert _verdict(proxy)["state"] == "insecure"
    service.keys[:] = [TlsKey.make(tmp_path)]
    service.image = None
    assert _ask(proxy, "POST", "/v1/chat/completions", CANARY.encode())[0] == 502
    assert (_verdict(proxy)["state"], _verdict(proxy)["reason"]) == ("refused", "measurement")
    service.assert_no_prompt()


def test_a_verdict_ends(service: FakeService, tee: SoftTee) -> None:
    """Then the evidence is asked for again; after the policy's date nothing helps."""
    now_s = time.time()
    expires = datetime.datetime.fromtimestamp(now_s + 7200, datetime.UTC).isoformat()
    policy = parse(policy_text(tee, expires=expires, reverify_after='"1h"'), allow_insecure=True)
    standing = Standing(Verifier(service.url, policy, clock=lambda: now_s), check_period_s=0.0)
    first = standing.now()
    assert (first["state"], first["holds_until"]) == ("insecure", _moment(now_s + 3600))
    now_s += 3599
    assert standing.now()["verdict"] == first["verdict"]
    now_s += 2
    later = standing.now()
    assert later["verdict"]["verified_at"] == _moment(now_s) != first["verdict"]["verified_at"]
    assert later["holds_until"] == _moment(now_s + 3600) or later["holds_until"] == later["policy_expires"]
    now_s += 3600
    ended = standing.now()
    assert (ended["state"], ended["reason"]) == ("refused", "policy_expired")
    assert service.targets == ["/v1/attestation"] * 2


def _moment(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(timespec="seconds")


def test_no_answer_of_the_service_is_a_verdict(service: FakeService, proxy: Proxy) -> None:
    """What it has at the proxy's own address is not asked for, and a redirect there is not followed."""
    service.config = "00" * 32
    service.chat = lambda: [http_response(json.dumps({"state": "verified"}).encode())]
    for path in ("/verdict.json", "/verdict.json?x=1"):
        assert json.loads(_ask(proxy, "GET", path)[2])["state"] == "refused"
    for path in ("/v1/../verdict.json", "/%76erdict.json"):
        assert _ask(proxy, "GET", path)[0] == 404
    assert _ask(proxy, "POST", "/verdict.json")[0] == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.nip.io:{port}"},
        {"Host": "[::1]:{port}"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/verdict.json", "/v1/chat/completions"])
def test_pages_of_others_are_refused(service: FakeService, proxy: Proxy, path: str, headers: dict[str, str]) -> None:
    """DNS rebinding, foreign Hosts and cross-origin requests."""
    headers = {name: value.format(port=proxy.server_port) for name, value in headers.items()}
    for method in ("GET", "POST", "OPTIONS"):
        status, answered, body = _ask(proxy, method, path, CANARY.encode(), **headers)
        assert status == 403
        assert json.loads(body)["error"]["code"] == "foreign_request"
        assert not [name for name in answered if name.startswith("access-control-")]
    assert not service.raw


def test_its_own_page_is_let_in(proxy: Proxy) -> None:
    for host in (f"127.0.0.1:{proxy.server_port}", f"localhost:{proxy.server_port}"):
        headers = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
        assert _ask(proxy, "GET", "/v1/models", None, **headers)[0] == 200


def test_cross_origin_headers_of_the_service_do_not_come_through(service: FakeService, proxy: Proxy) -> None:
    service.chat = lambda: [
        http_response(b"{}", Access_Control_Allow_Origin="*", Alt_Svc='h3=":1"', Set_Cookie="a=b", X_Request_Id="7")
    ]
    status, headers, _ = _ask(proxy, "POST", "/v1/chat/completions", b"{}")
    assert status == 200
    assert headers["x-request-id"] == "7"
    assert not {"access-control-allow-origin", "alt-svc", "set-cookie"} & set(headers)
    assert _ask(proxy, "OPTIONS", "/v1/chat/completions")[0] == 404


def test_cookies_of_the_service_reach_no_other_client(service: FakeService, proxy: Proxy) -> None:
    service.chat = lambda: [http_response(b"{}", Set_Cookie="session=alice; Path=/")]
    for _ in range(2):
        assert _ask(proxy, "POST", "/v1/chat/completions", b"{}")[0] == 200
    assert b"alice" not in b"".join(map(bytes, service.plain))


def test_a_page_of_the_service_runs_no_script_at_the_proxys_address(service: FakeService, proxy: Proxy) -> None:
    """It could say that it is verified."""
    service.chat = lambda: [http_response(b"<script>", Content_Type="text/html", Content_Security_Policy="img-src *")]
    _, headers, _ = _ask(proxy, "GET", "/v1/files/page.html")
    assert headers["content-security-policy"] == "sandbox"
    assert headers["x-content-type-options"] == "nosniff"


def test_paths_outside_of_the_api_are_not_passed_on(service: FakeService, proxy: Proxy) -> None:
    for path in (
        "/admin",
        "/chat",
        "/v1",
        "//evil.example/v1/",
        "/page.py",
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/..%2fadmin",
    ):
        assert _ask(proxy, "GET", path)[0] == 404
    assert not service.raw


def test_bodies_need_a_length(service: FakeService, proxy: Proxy) -> None:
    assert _ask(proxy, "POST", "/v1/chat/completions", b"0\r\n\r\n", Transfer_Encoding="chunked")[0] == 411
    assert _ask(proxy, "POST", "/v1/chat/completions", b"x", Content_Length="-1")[0] == 411
    assert b" 411 " in _raw(proxy, b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}")
    assert not service.raw


def test_headers_pass_byte_by_byte(service: FakeService, proxy: Proxy) -> None:
    assert b" 200 " in _raw(proxy, "X-Name: café\r\nContent-Length: 2\r\n\r\n{}".encode())
    assert "café".encode() in service.plain[0]


def test_a_redirect_ends_at_the_proxy(service: FakeService, proxy: Proxy) -> None:
    service.chat = lambda: [http_response(b"", "307 T", Location="https://evil.example/")]
    status, headers, body = _ask(proxy, "POST", "/v1/chat/completions", b"{}")
    assert (status, json.loads(body)["error"]["code"]) == (502, "origin")
    assert "location" not in headers


def test_it_listens_on_loopback_only(service: FakeService, policy: Policy) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.com", ""):
        with pytest.raises(PolicyError):
            Proxy(Verifier(service.url, policy), host, 0)


def test_a_client_of_http_1_0_gets_no_chunks(proxy: Proxy) -> None:
    answer = _raw(proxy, b"\r\n", b"GET /v1/models HTTP/1.0")
    assert b"chunked" not in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["object"] == "list"
