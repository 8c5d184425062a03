import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.attestation.evidence import AgentEvidence, Evidence, EvidenceError
from app.attestation.service import AttestationService
from app.attestation.soft import SoftTee
from app.attestation.statement import report_data
from tests.app.attestation.test_statement import FACTS, NONCE

pytestmark = pytest.mark.asyncio


class FakeSource:
    """Quotes are the report data itself. `gate` holds them back."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.running = self.most_running = 0

    async def quote(self, report_data: bytes) -> Evidence:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            return Evidence(report_data, b"log", {"tcb_info": "{}"}, insecure=True)
        finally:
            self.running -= 1


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture(params=[60.0])
async def client(source: FakeSource, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    """Its param: how long a quote may take."""
    application = AttestationService(FACTS, source, timeout_s=request.param).application()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://front") as made:
        yield made


def get(client: httpx.AsyncClient, query: str) -> Any:
    return client.get(f"/v1/attestation{query}")


async def test_the_quote_is_over_the_statement_with_the_nonce(client: httpx.AsyncClient) -> None:
    response = await get(client, f"?nonce={NONCE}")
    assert response.status_code == 200
    answer = response.json()
    said = base64.b64decode(answer["statement"])
    assert json.loads(said)["nonce"] == NONCE
    assert base64.b64decode(answer["quote"]) == report_data(said)
    assert base64.b64decode(answer["event_log"]) == b"log"
    assert answer["collateral"] == {"tcb_info": "{}"}
    assert answer["insecure"] is True
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?nonce=",
        f"?nonce={NONCE[:-1]}",
        f"?nonce={NONCE}0",
        f"?nonce={NONCE.upper()}",
        f"?nonce={NONCE}&nonce={NONCE}",
        f"?nonce={NONCE}&report_data=00",
        f"?nonce={NONCE}%0a",
        "?nonce=" + "g" * 64,
        "?nonce=" + "\u0663" * 64,
    ],
)
async def test_nothing_but_one_nonce_is_signed(query: str, client: httpx.AsyncClient) -> None:
    response = await get(client, query)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_nonce"


async def test_one_quote_at_a_time_and_few_wait(client: httpx.AsyncClient, source: FakeSource) -> None:
    source.gate.clear()
    waiting = [asyncio.create_task(get(client, f"?nonce={NONCE}")) for _ in range(16)]
    for _ in range(200):  # until all have asked
        await asyncio.sleep(0)
    refused = await get(client, f"?nonce={NONCE}")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    source.gate.set()
    assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}
    assert source.most_running == 1
    assert (await get(client, f"?nonce={NONCE}")).status_code == 200


@pytest.mark.parametrize(("how", "client"), [("error", 60.0), ("silence", 0.5)], indirect=["client"])
async def test_without_a_quote_it_says_so_and_logs_no_nonce(
    how: str, client: httpx.AsyncClient, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "error":
        source.error = EvidenceError("the agent is away")
    else:
        source.gate.clear()
    with caplog.at_level(logging.DEBUG, logger="app"):
        response = await get(client, f"?nonce={NONCE}")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "attestation_unavailable"
    assert "away" in caplog.text if how == "error" else "none within 0.5 s" in caplog.text
    assert NONCE not in caplog.text
    source.gate.set()


class TestAgent:
    def agent(self, answer: object, status: int = 200) -> AgentEvidence:
        self.asked: list[httpx.Request] = []

        def respond(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            return httpx.Response(status, content=content)

        return AgentEvidence(httpx.AsyncClient(transport=httpx.MockTransport(respond)), {"tcb_info": "{}"})

    async def test_it_is_asked_for_a_quote_over_the_64_bytes(self) -> None:
        data = bytes(range(64))
        evidence = await self.agent({"quote": base64.b64encode(b"Q").decode(), "cc_eventlog": None}).quote(data)
        assert evidence == Evidence(b"Q", b"", {"tcb_info": "{}"})
        (request,) = self.asked
        assert base64.b64decode(request.url.params["runtime_data"]) == data

    async def test_clients_get_exact_sizes_of_what_comes_in_full_buffers(self) -> None:
        tee = SoftTee.make()
        quote, log = tee.quote(bytes(64)), tee.event_log
        given = {"quote": quote + bytes(70), "cc_eventlog": log + b"\xff" * ((1 << 20) - len(log))}
        answer = {name: base64.b64encode(data).decode() for name, data in given.items()}
        evidence = await self.agent(answer).quote(bytes(64))
        assert (evidence.quote, evidence.event_log) == (quote, log)

    @pytest.mark.parametrize(
        ("answer", "status"),
        [({}, 200), ([], 200), ({"quote": "?"}, 200), (b"\xff", 200), ({"quote": "UQ=="}, 500)],
        ids=["empty", "list", "no base64", "no JSON", "status"],
    )
    async def test_any_other_answer_is_an_error(self, answer: object, status: int) -> None:
        with pytest.raises(EvidenceError, match="gave no quote"):
            await self.agent(answer, status).quote(bytes(64))

    async def test_a_quote_that_no_client_would_take_is_refused(self) -> None:
        large = base64.b64encode(bytes(20 << 10)).decode()
        with pytest.raises(EvidenceError, match="too large"):
            await self.agent({"quote": large}).quote(bytes(64))
