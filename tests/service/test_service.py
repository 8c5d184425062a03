import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from bench.processes import command_line
from tests.app.client.on_terminal import chat_on_terminal
from tests.listening import listening_addresses
from tests.service.running import RunningService, descendants, wait_until

UUID = "0f34da44-76a0-4e60-97a7-166d3a9070c7"


@pytest.fixture
def client(service: RunningService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_the_worker_table(service: RunningService) -> None:
    wait_until(lambda: len(service.alive()) == 2, "both workers")
    rows = service.rows()
    assert [row["state"] for row in rows] == ["alive", "alive"]
    assert len({row["worker_id"] for row in rows}) == 2
    first, second = (set(row["cpus"]) for row in rows)
    assert len(first) == len(second) == 1
    assert first != second
    for row in rows:
        assert row["model_names"] == [service.model]
        assert row["speed"] > 0
        assert row["check_heart_beat"]
        assert row["last_heart_beat"] > 0


def test_the_model_knows_something(client: openai.OpenAI, service: RunningService) -> None:
    answer = client.completions.create(
        model=service.model, prompt="The capital of France is", max_tokens=4, temperature=0
    )
    assert "Paris" in answer.choices[0].text


def test_blocking_and_streamed_chat_say_the_same(client: openai.OpenAI, service: RunningService) -> None:
    messages = [{"role": "user", "content": "Name three primary colors."}]
    options = {"model": service.model, "messages": messages, "temperature": 0, "max_tokens": 24}
    answer = client.chat.completions.create(**options)  # type: ignore[call-overload]
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 24
    pieces = client.chat.completions.create(**options, stream=True)  # type: ignore[call-overload]
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == answer.choices[0].message.content


def test_many_at_once_over_both_workers(client: openai.OpenAI, service: RunningService) -> None:
    answer = client.completions.create(model=service.model, prompt="The sea is", n=4, max_tokens=8, temperature=0)
    assert len({choice.text for choice in answer.choices}) == 1
    service.wait_until_idle()


def test_a_request_that_can_never_fit(client: openai.OpenAI, service: RunningService) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model=service.model, prompt="word " * 20_000, max_tokens=8)


def test_a_model_that_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.completions.create(model="gpt-7", prompt="x")


def test_health_and_models(service: RunningService) -> None:
    for probe in ("/health", "/livez", "/readyz"):
        assert httpx.get(f"{service.url}{probe}", timeout=60).status_code == 200
    assert httpx.get(f"{service.url}/v1/models", timeout=60).json()["data"][0]["id"] == service.model


def test_streams_that_wait_in_the_queue_are_kept_alive(service: RunningService) -> None:
    """Through Serve and HAProxy: their answers begin after `ingress.keep_alive_comment_s`, 15 s."""
    all_have_begun = threading.Barrier(6)

    def first_piece(number: int) -> bytes:
        body = service.endless(f"Story {number}")
        with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as stream:
            assert stream.status_code == 200
            pieces = stream.iter_raw()  # kept: a forgotten iterator closes its connection
            piece = next(pieces)
            all_have_begun.wait(60)
        return piece

    with ThreadPoolExecutor(6) as clients:
        pieces = [*clients.map(first_piece, range(6))]
    waited = [piece for piece in pieces if piece == b": keep-alive\n\n"]
    assert len(waited) == 2, "four are computed at once"
    assert all(piece.startswith(b"data: ") for piece in pieces if piece not in waited)
    service.wait_until_idle()


def test_clients_ask_as_they_do(service: RunningService) -> None:
    """Without `/v1`, compressed, with HEAD, or in HTTP/1.0."""
    body = {"model": service.model, "prompt": "The sea is", "max_tokens": 4}
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    content = gzip.compress(json.dumps(body).encode())
    assert httpx.post(f"{service.url}/completions", content=content, headers=headers, timeout=60).status_code == 200
    for path in ("/health", "/v1/models"):
        assert httpx.head(f"{service.url}{path}", timeout=60).status_code == 200
    assert "base URL" in httpx.get(f"{service.url}/api/tags", timeout=60).json()["error"]["message"]
    streamed = json.dumps(body | {"stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(streamed)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), 30) as old:
        old.sendall(head.encode() + streamed)
        answer = b"".join(iter(lambda: old.recv(65536), b""))
    assert b"transfer-encoding" not in answer.lower()
    assert answer.endswith(b"\n\ndata: [DONE]\n\n")


def test_responses_say_what_chat_says(client: openai.OpenAI, service: RunningService) -> None:
    words = "Name three primary colors."
    chat = client.chat.completions.create(
        model=service.model, messages=[{"role": "user", "content": words}], temperature=0, max_tokens=16
    )
    options: Any = {"model": service.model, "input": words, "temperature": 0, "max_output_tokens": 16}
    answer = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert answer.output_text == "".join(deltas) == chat.choices[0].message.content
    assert answer.status == {"stop": "completed", "length": "incomplete"}[chat.choices[0].finish_reason]


def test_embeddings_tell_texts_apart(client: openai.OpenAI, service: RunningService) -> None:
    texts = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose by half a percent."]
    answer = client.embeddings.create(model=service.model, input=texts)
    cat, same, other = ([*entry.embedding] for entry in answer.data)
    assert sum(x * y for x, y in zip(cat, same, strict=True)) > sum(x * y for x, y in zip(cat, other, strict=True))
    service.wait_until_idle()


def test_a_chat_on_a_terminal_is_cut_and_goes_on(service: RunningService, tmp_path: Path) -> None:
    with chat_on_terminal(service.url, tmp_path, "--temperature", "0", "--max-tokens", "5") as on:
        on.type("Name three primary colors.\r")
        on.wait_for("Cut at 5 tokens: the longest answer. /continue goes on.")
        on.wait_for("5 tokens, ", 1)
        on.type("/continue\r")
        on.wait_for(" remembered", 2)
        assert on.leave() == 0


def test_tokens_metrics_and_documents(service: RunningService) -> None:
    tokens = httpx.post(f"{service.url}/tokenize", json={"prompt": "The cat"}, timeout=60).json()
    text = httpx.post(f"{service.url}/detokenize", json={"tokens": tokens["tokens"]}, timeout=60).json()["prompt"]
    assert (text, tokens["count"]) == ("The cat", len(tokens["tokens"]))
    series = httpx.get(f"{service.url}/metrics", timeout=60).text
    assert series.count("redoubt_worker_up{") == 2
    assert "cat" not in series
    assert "/v1/responses" in httpx.get(f"{service.url}/openapi.json", timeout=60).json()["paths"]
    assert "<h1>Redoubt</h1>" in httpx.get(f"{service.url}/docs", timeout=60).text


@pytest.mark.parametrize("given", [UUID, "canary", 'canary"}', "canary" * 100], ids=["uuid", "word", "quote", "long"])
def test_a_request_has_one_id_from_end_to_end(service: RunningService, service_config: Path, given: str) -> None:
    """The client's own, if that is a UUID; what else it sends there is nowhere."""
    body = {"model": service.model, "prompt": "canary", "max_tokens": 3, "user": "canary", "seed": 1}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, headers={"X-Request-Id": given}, timeout=60)
    assert answer.status_code == 200
    name = answer.headers["x-request-id"]
    assert (name == given) == (given == UUID)
    access = service_config.with_name("access") / "access-1.jsonl"
    wait_until(lambda: name in access.read_text(), "the line")
    (line,) = [one for text in access.read_text().splitlines() if (one := json.loads(text))["request_id"] == name]
    assert line["answer_id"] == answer.json()["id"]
    assert line["completion_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert "canary" not in access.read_text()


def test_no_process_leaves_a_core_file(service: RunningService) -> None:
    """Nor may one of them allow it again: the hard limit is as low."""
    checked = 0
    for pid in descendants(service.process.pid):
        try:
            limits = Path(f"/proc/{pid}/limits").read_text()
        except OSError:  # it has ended meanwhile
            continue
        for line in limits.splitlines():  # none of one that is just ending
            if line.startswith("Max core"):
                assert set(line.split()[4:6]) <= {"0", "1"}, command_line(pid)
                checked += 1
    assert checked > 10


def test_nothing_listens_beyond_loopback(service: RunningService) -> None:
    listening = listening_addresses(descendants(service.process.pid))
    assert len(listening) > 5  # Ray opens a dozen
    assert [address for address in listening if not address.is_loopback] == []
