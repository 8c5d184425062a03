"""The access log: its lines, which have nothing that a client wrote; files, rotation and full disks."""

import asyncio
import contextlib
import json
import os
import re
import stat
import time
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app.interface.request.access_log import AccessLog
from app.messages.failures import QueueFullError
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import GenerateRequest
from app.settings.knobs import SettingsError
from tests.app.fake_worker import FakeWorker
from tests.app.interface.routes.test_metrics import series, value
from tests.app.service import http_app, http_client, loopback_server, never
from tests.app.tiny_model import reference_tokenizer

TOKENS = tuple(reference_tokenizer().encode("one two three").ids)
UUID = "0f34da44-76a0-4e60-97a7-166d3a9070c7"
FIELDS = [
    *("time", "request_id", "method", "route", "status", "error", "duration_s", "caller", "model", "answer_id"),
    *("stream", "first_token_s", "prompt_tokens", "cached_tokens", "completion_tokens", "finish_reason", "resumed"),
]
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": [4] * 7}


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    if request.max_new_tokens == 5:
        return [TokenDelta(TOKENS[:1]), ZeroDivisionError("secret words")]
    if request.max_new_tokens == 6:
        return [QueueFullError("full")]
    return [TokenDelta(TOKENS[:1], None, 3), TokenDelta(TOKENS[1:3], losses=(Loss.LOST,)), TokenDelta((), "length")]


@pytest.fixture
def log(tmp_path: Path) -> AccessLog:
    """An access log, which `text_of` closes."""
    return AccessLog(tmp_path / "log", 1 << 20)


def text_of(log: AccessLog, folder: Path) -> str:
    """Closes the log and returns its text."""
    log.close()
    return "".join(path.read_text() for path in sorted((folder / "log").iterdir()))


def lines_of(log: AccessLog, folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(log, folder).splitlines()]


async def test_a_line_for_each_request(log: AccessLog, tmp_path: Path) -> None:
    app = http_app(FakeWorker(script).generate, access_log=log)
    before = datetime.now().astimezone()
    async with http_client(app) as client:
        answers = [
            await client.post("/v1/completions", json=PROMPT, headers={"X-Request-Id": UUID}),
            await client.post("/v1/completions", json=PROMPT | {"stream": True}),
            await client.post("/v1/completions", json=PROMPT | {"stop": "o"}),
            await client.post("/v1/completions", json=PROMPT | {"max_tokens": 5}),
            await client.post("/v1/completions", json=PROMPT | {"max_tokens": 5, "stream": True}),
            await client.post("/v1/completions", json=PROMPT | {"max_tokens": 6}),
            await client.post("/v1/completions", json=PROMPT | {"n": 0}),
            await client.get("/v1/models/tiny"),
            await client.get("/health"),
        ]
    lines = lines_of(log, tmp_path)
    assert len(lines) == len(answers)
    for line, answer in zip(lines, answers, strict=True):
        assert list(line) == FIELDS
        assert line["status"] == answer.status_code
        assert line["time"].endswith("Z")
        assert timedelta(-0.01) <= datetime.fromisoformat(line["time"]) - before < timedelta(minutes=1)
        assert 0 < line["duration_s"] < 60
        assert line["caller"] == "anonymous"
    whole, stream, stopped, failed, broken, full, wrong, model, health = lines
    assert (
        whole.items()
        >= {
            "request_id": UUID,
            "method": "POST",
            "route": "/v1/completions",
            "error": None,
            "model": "tiny",
            "answer_id": answers[0].json()["id"],
            "stream": False,
            "prompt_tokens": 7,
            "cached_tokens": 3,
            "completion_tokens": 3,
            "finish_reason": "length",
            "resumed": 1,
        }.items()
    )
    assert 0 < whole["first_token_s"] <= whole["duration_s"]
    assert re.fullmatch("req-[0-9a-f]{32}", stream["request_id"])
    assert (stream["stream"], stream["completion_tokens"], stream["finish_reason"]) == (True, 3, "length")
    assert (stopped["finish_reason"], stopped["completion_tokens"]) == ("stop", 1)
    assert (failed["error"], failed["finish_reason"], failed["completion_tokens"]) == ("internal_error", None, 1)
    assert (broken["status"], broken["error"], broken["finish_reason"]) == (200, "internal_error", None)
    assert (full["error"], full["model"], full["first_token_s"]) == ("queue_full", "tiny", None)
    assert (wrong["error"], wrong["model"], wrong["prompt_tokens"]) == ("invalid_value", None, 0)
    assert (model["method"], model["route"]) == ("GET", "/v1/models/{name:path}")
    assert health["route"] == "/health"


async def test_nothing_that_a_client_wrote_is_in_it(log: AccessLog, tmp_path: Path) -> None:
    """Puts secrets wherever a client may put a word, also one that would end the line."""
    app = http_app(FakeWorker(script).generate, access_log=log, api_keys=("canary-key-of-a-user",), max_body_bytes=2000)
    secret = 'canary"},\n{"status": 1'
    key = {"Authorization": "Bearer canary-key-of-a-user"}
    names = ("X-Request-Id", "User-Agent", "Referer", "X-Forwarded-For", "Cookie", "OpenAI-Organization", "Forwarded")
    headers = dict.fromkeys(names, "canary; redoubt_session=canary")
    chat: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": secret, "name": "canary"}]}
    bodies: list[dict[str, Any]] = [
        chat | {"user": secret, "metadata": {"canary": secret}, "stop": [secret], "prompt_cache_key": secret},
        chat | {"safety_identifier": "canary", "service_tier": "canary", "store": False},
        chat | {"model": "canary"},
        chat | {"canary": 1},
        chat | {"messages": [{"role": "canary", "content": "canary"}]},
        chat | {"tools": [{"type": "function", "function": {"name": "canary", "description": secret}}]},
        chat | {"response_format": {"type": "json_schema", "json_schema": {"name": "canary", "schema": {"x": secret}}}},
        chat | {"user": "canary" * 1000},
    ]
    async with http_client(app) as client:
        sent = 0
        families = ("chat/completions", "completions", "responses", "messages", "embeddings")
        for path in (*(f"/v1/{family}" for family in families), "/tokenize"):
            for body in (*bodies, {"model": "tiny", "prompt": secret}, {"model": "tiny", "input": secret}):
                for authorization in (key, {}, {"Authorization": "Bearer canary-other-key"}):
                    await client.post(f"{path}?canary=canary", json=body, headers=headers | authorization)
                    sent += 1
        for path in ("/canary", "/v1/canary", "/v1/models/canary", "/c/canary", "/ui/canary.js", "/v1/../canary"):
            for method in ("GET", "POST", "CANARY"):
                await client.request(method, path, headers=headers | key)
                sent += 1
        await client.post("/v1/chat/completions", content=b'{"canary', headers={"Content-Type": "text/canary"} | key)
    text = text_of(log, tmp_path)
    assert "canary" not in text.lower()
    assert len(text.splitlines()) == sent + 1
    callers = {json.loads(line)["caller"] for line in text.splitlines()}
    assert callers == {"anonymous", sha256(b"canary-key-of-a-user").hexdigest()[:8]}
    assert {json.loads(line)["method"] for line in text.splitlines()} == {"GET", "POST", "other"}


def test_a_client_that_leaves(log: AccessLog, tmp_path: Path) -> None:
    import httpx

    async def endless(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        while True:
            yield TokenDelta(TOKENS[:1])
            await asyncio.sleep(0.01)

    async def silent(request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        await asyncio.sleep(600)
        yield TokenDelta(())

    def leave(app: FastAPI, *, stream: bool) -> None:
        with loopback_server(app) as address, contextlib.suppress(httpx.ReadTimeout):
            url = f"{address}/v1/completions"
            timeout = httpx.Timeout(60, read=60 if stream else 0.5)
            with httpx.stream("POST", url, json=PROMPT | {"stream": stream}, timeout=timeout) as answer:
                next(answer.iter_lines())

    leave(http_app(endless, access_log=log), stream=True)
    leave(http_app(silent, access_log=log), stream=False)
    begun, early = lines_of(log, tmp_path)
    assert (begun["status"], begun["error"], begun["finish_reason"]) == (200, "client_closed_request", None)
    assert begun["completion_tokens"] > 0
    assert (early["status"], early["error"], early["route"]) == (499, "client_closed_request", "/v1/completions")


async def test_a_refusal_for_want_of_a_place_has_a_line(log: AccessLog, tmp_path: Path) -> None:
    async with http_client(http_app(never, access_log=log, max_ongoing_requests=0)) as client:
        await client.get("/v1/models")
    (line,) = lines_of(log, tmp_path)
    assert (line["route"], line["status"], line["error"]) == ("any", 503, "service_unavailable")


async def test_durations_are_counted_with_and_without_a_log() -> None:
    async with http_client(http_app(FakeWorker(script).generate)) as client:
        for _ in range(2):
            await client.post("/v1/completions", json=PROMPT | {"stream": True})
        await client.post("/v1/completions", json=PROMPT | {"n": 0})
        found = series((await client.get("/metrics")).text)
    name = "redoubt_http_request_duration_seconds"
    assert value(found, f"{name}_count", route="/v1/completions", status="2xx") == 2
    assert value(found, f"{name}_count", route="/v1/completions", status="4xx") == 1
    assert 0 < value(found, f"{name}_sum", route="/v1/completions", status="2xx") < 60


def test_each_process_has_a_file_of_its_own_that_nobody_else_reads(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "log"
    before = os.umask(0)
    try:
        first, second = AccessLog(folder, 1 << 20), AccessLog(folder, 1 << 20)
    finally:
        os.umask(before)
    first.write({"by": 1})
    second.write({"by": 2})
    first.close()
    third = AccessLog(folder, 1 << 20)
    third.write({"by": 3})
    for log in (second, third):
        log.close()
    assert (folder / "access-1.jsonl").read_text() == '{"by":1}\n{"by":3}\n', "a successor goes on with the file"
    assert (folder / "access-2.jsonl").read_text() == '{"by":2}\n'
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_old_lines_go(tmp_path: Path) -> None:
    log = AccessLog(tmp_path, 1 << 16)
    for number in range(5000):
        log.write({"number": number, "filler": "x" * 30})
    log.close()
    paths = [tmp_path / f"access-1.jsonl{suffix}" for suffix in (".3", ".2", ".1", "")]
    assert sorted(paths) == sorted(tmp_path.glob("access-*"))
    assert (1 << 15) < sum(path.stat().st_size for path in paths) <= 1 << 16
    numbers = [json.loads(line)["number"] for path in paths for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 5000)), "the newest, in order, and none twice"


@pytest.mark.parametrize("where", ["file/log", "file", "/proc/none"])
def test_a_folder_that_cannot_be_written_to(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"ingress\.access_log_folder: .*; it must be a folder that can be written"):
        AccessLog(tmp_path / where, 1 << 20)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "access-1.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="access_log_folder"):
        AccessLog(tmp_path, 1 << 20)
    assert not (tmp_path / "elsewhere").exists()


async def test_a_full_disk_breaks_no_request(log: AccessLog, tmp_path: Path) -> None:
    path = tmp_path / "log" / "access-1.jsonl"
    (descriptor,) = (int(one.name) for one in Path("/proc/self/fd").iterdir() if one.resolve() == path)
    kept, full = os.dup(descriptor), os.open("/dev/full", os.O_WRONLY)
    async with http_client(http_app(FakeWorker(script).generate, access_log=log)) as client:
        os.dup2(full, descriptor)
        for _ in range(3):
            assert (await client.post("/v1/completions", json=PROMPT)).status_code == 200
        await dropped(client, 3)
        os.dup2(kept, descriptor)
        assert (await client.get("/health")).status_code == 200
    os.close(kept)
    os.close(full)
    lines = lines_of(log, tmp_path)  # each is whole
    assert lines[-1]["route"] == "/health", "it goes on when there is space"


def test_a_disk_that_hangs_costs_lines_only(log: AccessLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.interface.request.access_log._LONGEST_STOP_S", 60.0)
    lost = []
    log.on_drop = lambda: lost.append(1)
    log._file.acquire()  # the writing thread waits, as for a disk
    began_s = time.monotonic()
    for number in range(20_000):
        log.write({"number": number})
    assert time.monotonic() - began_s < 60
    log._file.release()
    assert 20_000 - 8192 - 1 <= len(lost) <= 20_000 - 8192
    assert len(lines_of(log, tmp_path)) == 20_000 - len(lost)


async def test_files_that_are_taken_away_at_the_next_one(tmp_path: Path) -> None:
    """The folder is removed, and created again later."""
    log = AccessLog(tmp_path / "log", 1 << 16)
    count = 0

    def count_one() -> None:
        nonlocal count
        count += 1

    log.on_drop = count_one
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    (tmp_path / "log").rmdir()
    for number in range(3000):
        log.write({"number": number})
    deadline = time.monotonic() + 60
    while not count and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    (tmp_path / "log").mkdir()
    log.write({"number": "last"})
    log.close()
    assert count > 0
    assert '"last"' in (tmp_path / "log" / "access-1.jsonl").read_text()


async def dropped(client: Any, count: int) -> None:
    deadline = time.monotonic() + 60
    found = -1.0
    while time.monotonic() < deadline:
        found = value(series((await client.get("/metrics")).text), "redoubt_access_log_dropped_total")
        if found >= count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(found)
