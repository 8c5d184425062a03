"""Clients of both libraries, and OpenAI's own, over verified connections."""

import asyncio
import dataclasses
import importlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

import redoubt_verify
from redoubt_verify import Policy, connections, transport
from redoubt_verify.policy import parse
from tests.verify.fake_service import CANARY, KEY, WORDS, FakeService, TlsKey, http_response, policy_text

LIBRARIES = ("httpx2", "httpx")
TEXT = "".join(WORDS)
MESSAGES: Any = [{"role": "user", "content": CANARY}]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> list[float]:
    """Seconds by which the client's clock is ahead."""
    return [0.0]


@pytest.fixture
def verifier(service: FakeService, policy: Policy, clock: list[float]) -> connections.Verifier:
    now = service.tee.issued.timestamp() + 7200
    return connections.Verifier(service.url, policy, clock=lambda: now + clock[0])


@pytest.mark.parametrize("version", [4, 5])
def test_openai_verifies_then_speaks(service: FakeService, policy_file: Path, library: str, version: int) -> None:
    service.tee.version = version
    http = redoubt_verify.client(service.url, policy_file, library=library, allow_insecure=True)
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, http_client=http, max_retries=0) as client:
        answer = client.chat.completions.create(model="smollm2", messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
        stream = client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == TEXT
    assert service.targets == ["/v1/attestation", "/v1/chat/completions", "/v1/chat/completions"]
    assert len(service.plain) == 1
    assert bytes(service.plain[0]).index(b"nonce=") < bytes(service.plain[0]).index(KEY.encode())


async def test_async_openai_verifies_then_speaks(service: FakeService, policy_file: Path, library: str) -> None:
    http = redoubt_verify.async_client(service.url, policy_file, library=library, allow_insecure=True)
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=KEY, http_client=http, max_retries=0) as client:
        answer = await client.chat.completions.create(model="smollm2", messages=MESSAGES)
        assert answer.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        assert "".join([part.choices[0].delta.content or "" async for part in stream]) == TEXT
    assert service.targets == ["/v1/attestation", "/v1/chat/completions", "/v1/chat/completions"]


def test_openai_says_why_a_service_was_refused(service: FakeService, policy_file: Path, library: str) -> None:
    service.config = "00" * 32
    http = redoubt_verify.client(service.url, policy_file, library=library, allow_insecure=True)
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, http_client=http, max_retries=2)
    with client, pytest.raises(redoubt_verify.AttestationError) as refused:
        client.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert refused.value.reason == "config_digest"
    assert service.targets == ["/v1/attestation"]
    service.assert_no_prompt()


async def test_async_clients_refuse_too(service: FakeService, verifier: connections.Verifier, library: str) -> None:
    service.change_statement = lambda values: values.update(nonce="ab" * 32)
    async with transport.async_client_of(verifier, library=library) as client:
        with pytest.raises(redoubt_verify.AttestationError) as refused:
            await client.post(f"{service.url}/v1/chat/completions", content=CANARY)
    assert refused.value.reason == "nonce"
    service.assert_no_prompt()


async def test_a_cancelled_verification_sends_nothing(
    service: FakeService, verifier: connections.Verifier, library: str
) -> None:
    service.step = threading.Event()
    service.respond = lambda answer: [b"HTTP/1.1 200 OK\r\n", http_response(answer)[17:]]
    async with transport.async_client_of(verifier, library=library) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.post(f"{service.url}/v1/chat/completions", content=CANARY)
    service.assert_no_prompt()


def test_an_answer_streams_part_by_part(service: FakeService, verifier: connections.Verifier, library: str) -> None:
    service.step = threading.Event()
    body = {"messages": MESSAGES, "stream": True}
    with (
        transport.client_of(verifier, library=library) as client,
        client.stream("POST", f"{service.url}/v1/chat/completions", json=body) as response,
    ):
        parts = response.iter_lines()
        assert WORDS[0] in next(parts)
        assert not service.step.is_set()
        service.step.set()
        assert WORDS[1] in next(part for part in parts if part)


def test_a_key_is_verified_once(service: FakeService, verifier: connections.Verifier) -> None:
    for _ in range(3):
        with transport.client_of(verifier) as client:
            for _ in range(2):
                client.get(f"{service.url}/v1/models")
    assert service.targets == ["/v1/attestation", *["/v1/models"] * 6]
    assert len(service.plain) == 3


def test_a_key_is_verified_again_when_its_time_is_over(
    service: FakeService, verifier: connections.Verifier, clock: list[float]
) -> None:
    """On a connection of its own: the old one, though open, is not used again."""
    with transport.client_of(verifier) as client:
        client.get(f"{service.url}/v1/models")
        clock[0] = 3590
        client.get(f"{service.url}/v1/models")
        assert len(service.plain) == 1
        clock[0] = 3610
        client.get(f"{service.url}/v1/models")
    assert service.targets == [*["/v1/attestation", "/v1/models"], "/v1/models", *["/v1/attestation", "/v1/models"]]
    assert len(service.plain) == 2


async def test_async_a_key_is_verified_again(
    service: FakeService, verifier: connections.Verifier, clock: list[float], library: str
) -> None:
    async with transport.async_client_of(verifier, library=library) as client:
        await client.get(f"{service.url}/v1/models")
        clock[0] = 3610
        await client.get(f"{service.url}/v1/models")
    assert service.targets == ["/v1/attestation", "/v1/models"] * 2


def test_a_verdict_that_ran_out_while_it_was_made(service: FakeService, policy: Policy) -> None:
    times = itertools.count(time.time(), policy.reverify_after_s)
    with pytest.raises(redoubt_verify.AttestationError, match="reverify_after is too short"):
        transport.verify_once(connections.Verifier(service.url, policy, clock=lambda: next(times)))


def test_a_clock_that_is_set_back_does_not_make_a_verdict_younger(
    service: FakeService, verifier: connections.Verifier, clock: list[float]
) -> None:
    with transport.client_of(verifier) as client:
        client.get(f"{service.url}/v1/models")
        clock[0] = -600
        client.get(f"{service.url}/v1/models")
    assert service.targets == ["/v1/attestation", "/v1/models"] * 2


def test_a_policy_that_expires_ends_an_open_connection(
    service: FakeService, verifier: connections.Verifier, clock: list[float]
) -> None:
    with transport.client_of(verifier) as client:
        client.get(f"{service.url}/v1/models")
        clock[0] = 1e10
        with pytest.raises(redoubt_verify.AttestationError) as refused:
            client.get(f"{service.url}/v1/models")
    assert refused.value.reason == "policy_expired"
    assert service.targets == ["/v1/attestation", "/v1/models"]


def test_no_tls_session_is_resumed(service: FakeService, verifier: connections.Verifier, library: str) -> None:
    """The server offers tickets; each connection proves the key anew, and sends nothing early."""
    for _ in range(3):
        with transport.client_of(verifier, library=library) as client:
            client.get(f"{service.url}/v1/models")
    assert service.resumed == [False] * 3


def _refuse_key(service: FakeService, key: TlsKey) -> None:
    """Connections to this key get a statement about another one."""
    honest = service.answer

    def answer(nonce: str, spki_sha256: str) -> dict[str, Any]:
        return honest(nonce, "aa" * 32 if spki_sha256 == key.spki_sha256 else spki_sha256)

    service.answer = answer  # type: ignore[method-assign]


def test_replicas_are_each_verified(service: FakeService, verifier: connections.Verifier, tmp_path: Path) -> None:
    service.keys.append(TlsKey.make(tmp_path))
    for _ in range(4):
        with transport.client_of(verifier) as client:
            client.get(f"{service.url}/v1/models")
    assert service.targets == [*["/v1/attestation", "/v1/models"] * 2, "/v1/models", "/v1/models"]
    assert len(verifier.verdicts) == 2


def test_a_replica_behind_the_balancer_that_nobody_vouches_for(
    service: FakeService, verifier: connections.Verifier, tmp_path: Path
) -> None:
    service.keys.append(TlsKey.make(tmp_path))
    _refuse_key(service, service.keys[1])
    with transport.client_of(verifier) as client:
        client.get(f"{service.url}/v1/models")
    with transport.client_of(verifier) as client, pytest.raises(redoubt_verify.AttestationError) as refused:
        client.post(f"{service.url}/v1/chat/completions", content=CANARY)
    assert refused.value.reason == "key_mismatch"
    assert CANARY.encode() not in b"".join(map(bytes, service.plain))


def test_a_certificate_that_changes_on_reconnect(
    service: FakeService, verifier: connections.Verifier, tmp_path: Path
) -> None:
    """The server ends the connection; who answers the next is another."""
    service.keys.append(TlsKey.make(tmp_path))
    _refuse_key(service, service.keys[1])
    service.chat = lambda: [http_response(b"{}", Connection="close")]
    with transport.client_of(verifier) as client:
        client.post(f"{service.url}/v1/chat/completions", content="harmless")
        with pytest.raises(redoubt_verify.AttestationError) as refused:
            client.post(f"{service.url}/v1/chat/completions", content=CANARY)
    assert refused.value.reason == "key_mismatch"
    assert CANARY.encode() not in b"".join(map(bytes, service.plain))


def test_a_certificate_in_another_key_with_the_verified_statement(
    service: FakeService, verifier: connections.Verifier, tmp_path: Path
) -> None:
    """Who replays an honest machine's answer, nonce and all, still has no key that TLS would accept."""
    service.keys.append(TlsKey.make(tmp_path))
    honest = service.keys[0].spki_sha256
    original = service.answer
    service.answer = lambda nonce, spki_sha256: original(nonce, honest)  # type: ignore[method-assign]
    transport.verify_once(verifier)
    with transport.client_of(verifier) as client, pytest.raises(redoubt_verify.AttestationError) as refused:
        client.post(f"{service.url}/v1/chat/completions", content=CANARY)
    assert refused.value.reason == "key_mismatch"


@pytest.mark.parametrize("status", ["301 A", "302 A", "303 A", "307 A", "308 A"])
@pytest.mark.parametrize("follow", [False, True])
def test_a_verified_service_may_not_redirect(
    service: FakeService, verifier: connections.Verifier, library: str, status: str, follow: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.05)
        location = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/v1"
        service.chat = lambda: [http_response(b"", status, Location=location)]
        with (
            transport.client_of(verifier, library=library) as client,
            pytest.raises(redoubt_verify.AttestationError) as refused,
        ):
            client.post(f"{service.url}/v1/chat/completions", content=CANARY, follow_redirects=follow)
        assert refused.value.reason == "origin"
        with pytest.raises(TimeoutError):
            elsewhere.accept()


def test_alt_svc_leads_nowhere(service: FakeService, verifier: connections.Verifier) -> None:
    service.chat = lambda: [http_response(b"{}", Alt_Svc='h3="127.0.0.1:1"; ma=86400')]
    with transport.client_of(verifier) as client:
        for _ in range(2):
            client.post(f"{service.url}/v1/chat/completions", content="{}")
    assert len(service.plain) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/v1/models",
        "https://127.0.0.1:1/v1/models",
        "https://localhost:{port}/v1/models",
        "https://127.0.0.1.example:{port}/v1/models",
        "https://127.0.0.1/v1/models",
    ],
)
async def test_other_origins_are_not_dialled(
    service: FakeService, verifier: connections.Verifier, library: str, url: str
) -> None:
    url = url.format(port=service.port)
    with (
        transport.client_of(verifier, library=library) as client,
        pytest.raises(redoubt_verify.AttestationError) as refused,
    ):
        client.post(url, content=CANARY)
    assert refused.value.reason == "origin"
    async with transport.async_client_of(verifier, library=library) as other:
        with pytest.raises(redoubt_verify.AttestationError) as refused:
            await other.post(url, content=CANARY)
    assert refused.value.reason == "origin"
    assert not service.raw


@pytest.mark.parametrize(
    "url", ["http://service.example", "service.example", "https://", "https://a:b@service.example"]
)
def test_a_client_is_for_an_https_address(policy: Policy, url: str) -> None:
    for make in (redoubt_verify.client, redoubt_verify.async_client):
        with pytest.raises(redoubt_verify.AttestationError) as refused:
            make(url, policy)
        assert refused.value.reason == "origin"


def test_proxies_of_the_environment_are_not_asked(
    service: FakeService, verifier: connections.Verifier, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with transport.client_of(verifier, library=library) as client:
        assert client.get(f"{service.url}/v1/models").status_code == 200


def test_requests_extensions_change_no_name(service: FakeService, verifier: connections.Verifier) -> None:
    with transport.client_of(verifier) as client:
        extensions = {"sni_hostname": "elsewhere.example", "target": b"http://elsewhere.example/"}
        assert client.get(f"{service.url}/v1/models", extensions=extensions).status_code == 200
    assert service.targets == ["/v1/attestation", "/v1/models"]
    assert b"elsewhere" not in service.raw


def test_errors_of_the_network_are_those_of_the_library(
    service: FakeService, verifier: connections.Verifier, library: str
) -> None:
    http = importlib.import_module(library)
    service.step = None
    with transport.client_of(verifier, library=library) as client:
        assert client.get(f"{service.url}/v1/models").status_code == 200  # the service is verified
        service.chat = lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"]
        timeout = http.Timeout(60, read=0.5)
        with pytest.raises(http.ReadTimeout):
            client.post(f"{service.url}/v1/chat/completions", content="{}", timeout=timeout)
        service.chat = lambda: [b"nonsense\r\n\r\n"]
        with pytest.raises(http.RemoteProtocolError):
            client.post(f"{service.url}/v1/chat/completions", content="{}")


def test_many_threads_share_a_client(service: FakeService, verifier: connections.Verifier) -> None:
    with transport.client_of(verifier) as client:
        codes: list[int] = []

        def ask() -> None:
            codes.append(client.get(f"{service.url}/v1/models").status_code)

        _in_threads(ask, 8)
    assert codes == [200] * 8


def _in_threads(call: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_own_collateral_wins(service: FakeService, policy: Policy) -> None:
    """A server without any, or with stale one, is verified with the client's."""
    # dcap-qvl would take a chain of certificates from there instead of the quote's.
    own = service.tee.collateral() | {"pck_certificate_chain": "of another platform"}
    service.change_answer = lambda answer: answer.update(collateral=None)
    http = redoubt_verify.client(service.url, policy, collateral=own)
    with http:
        assert http.get(f"{service.url}/v1/models").status_code == 200


@pytest.mark.parametrize("own", [{}, {"tcb_info": "{}"}])
def test_own_collateral_that_is_not_whole_is_not_replaced_by_the_servers(
    service: FakeService, policy: Policy, own: dict[str, str]
) -> None:
    with pytest.raises(redoubt_verify.AttestationError) as refused:
        redoubt_verify.client(service.url, policy, collateral=own)
    assert refused.value.reason == "collateral_missing"


def test_a_policy_with_a_test_root_needs_a_word(service: FakeService, policy_file: Path) -> None:
    with pytest.raises(redoubt_verify.PolicyError, match="allow-insecure"):
        redoubt_verify.client(service.url, policy_file)


def test_a_verdict_says_that_it_is_insecure_and_what_is_open(service: FakeService) -> None:
    text = policy_text(service.tee, drop="mrtd platforms", unpinned='["mrtd", "platforms"]')
    verdict = transport.verify_once(connections.Verifier(service.url, parse(text, allow_insecure=True)))
    assert verdict.insecure
    assert verdict.unpinned == ("mrtd", "platforms")
    assert dataclasses.asdict(verdict)["models"] == (("smollm2", "e1" * 32),)
