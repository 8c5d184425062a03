"""Workers are silent, or a process of the service dies: the service goes on with the others, or recovers."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.processes import is_running
from tests.service.running import RunningService, kill, wait_until


def ask(service: RunningService) -> int:
    body = {"model": service.model, "prompt": "One, two,", "max_tokens": 4}
    return httpx.post(f"{service.url}/v1/completions", json=body, timeout=90).status_code


def state_of(service: RunningService, worker_id: str) -> str:
    return next((row["state"] for row in service.rows() if row["worker_id"] == worker_id), "forgotten")


def test_a_silent_worker_is_dropped_and_taken_back(service: RunningService) -> None:
    wait_until(lambda: len(service.alive()) == 2, "both workers")
    service.wait_until_idle()
    silent = service.alive()[0]
    os.kill(silent["pid"], signal.SIGSTOP)
    try:
        wait_until(lambda: state_of(service, silent["worker_id"]) == "stale", "stale after EXPIRATION")
        row = next(row for row in service.rows() if row["worker_id"] == silent["worker_id"])
        assert not row["check_heart_beat"]
        assert [ask(service) for _ in range(4)] == [200] * 4
    finally:
        os.kill(silent["pid"], signal.SIGCONT)
    wait_until(lambda: state_of(service, silent["worker_id"]) == "alive", "taken back")
    wait_until(lambda: len(service.alive()) == 2, "both workers")


async def answers(http: httpx.AsyncClient, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """What each request gets, all at once: of a stream its deltas put together, and never an error."""

    async def one(body: dict[str, Any]) -> Any:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        if not body.get("stream"):
            response = await http.post(path, json=body)
            assert response.status_code == 200, response.text
            whole = response.json()
            return [choice.get("message", choice.get("text")) for choice in whole["choices"]], counts(whole["usage"])
        text, logprobs, usage = "", [], None
        async with http.stream("POST", path, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    usage = counts(event["usage"]) if event.get("usage") else usage
                    for choice in event["choices"]:
                        text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                        logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
        return text, logprobs, usage

    return await asyncio.gather(*map(one, bodies))


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Without what the prefix cache had, which depends on what was asked before."""
    return {name: count for name, count in usage.items() if isinstance(count, int)}


LONG = {"max_tokens": 1200}
"""A fast machine makes 400 tokens before it is seen that they are made."""


def all_kinds(model: str) -> list[dict[str, Any]]:
    """Requests whose answers are the same each time; long enough to lose a worker in between."""
    asked = "Tell me of a fox and a hen, and of the farm where they live, and of the winter there."
    turns = [{"role": role, "content": f"{asked} {i}"} for i in range(12) for role in ("user", "assistant")]
    # Its oldest turns are left out, and its window moves before the answer's end.
    said = [*turns, {"role": "user", "content": "Tell me of a fox and a hen."}]
    past = {"on_overflow": "shift", "context_window": 512}
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 300}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    prompt = {"model": model, "prompt": "Once upon a time", "max_tokens": 400, "logit_bias": {"0": -100, "2": -100}}
    chat = {"model": model, "messages": said, "max_tokens": 400, "logit_bias": {"0": -100, "2": -100}, **past}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    return [
        {**prompt, **usage, "temperature": 0},
        {**prompt, **usage, "temperature": 1, "seed": 3, "logprobs": 2, "frequency_penalty": 0.4},
        {**prompt, "temperature": 1, "seed": 4, "n": 2},
        {**chat, **usage, "temperature": 0.8, "seed": 5, "stop": ["\n\n\n", "hen."]},
        {**chat, "temperature": 1, "seed": 6, "response_format": form},
    ]


async def test_answers_go_on_when_their_worker_is_killed(service: RunningService) -> None:
    """The same texts, scores and usage as in a clean run, and no client sees an error."""
    await asyncio.to_thread(wait_until, lambda: len(service.alive()) == 2, "two workers", 200)
    bodies = all_kinds(service.model)
    async with httpx.AsyncClient(base_url=service.url, timeout=300) as http:
        clean = [(await answers(http, [body]))[0] for body in bodies]
        for some in (slice(0, 3), slice(2, 5)):  # one worker has places for all of these
            running = asyncio.create_task(answers(http, bodies[some]))
            await asyncio.to_thread(wait_until, partial(have_answers, service), "answers on each worker")
            await asyncio.sleep(0.3)
            victim = service.alive()[0]
            os.kill(victim["pid"], signal.SIGKILL)
            assert await running == clean[some]
            replaced = partial(has_replaced, service, victim["worker_id"])
            await asyncio.to_thread(wait_until, replaced, "a new worker", 200)
    await asyncio.to_thread(service.wait_until_idle)


def have_answers(service: RunningService) -> bool:
    rows = service.alive()
    return len(rows) == 2 and all(row["queue_length"] for row in rows)


def has_replaced(service: RunningService, victim: str) -> bool:
    alive = {row["worker_id"] for row in service.alive()}
    return len(alive) == 2 and victim not in alive


async def test_answers_leave_a_worker_that_stands_still(service: RunningService) -> None:
    """Long before Serve replaces it."""
    await asyncio.to_thread(service.wait_until_idle)
    body = all_kinds(service.model)[0] | LONG
    async with httpx.AsyncClient(base_url=service.url, timeout=300) as http:
        clean = await answers(http, [body])
        running = asyncio.create_task(answers(http, [body, body]))
        await asyncio.to_thread(wait_until, partial(have_answers, service), "answers on each worker")
        stopped = service.alive()[0]
        os.kill(stopped["pid"], signal.SIGSTOP)
        try:
            assert await running == clean * 2
        finally:
            with suppress(ProcessLookupError):  # on a slow machine Serve may have replaced it
                os.kill(stopped["pid"], signal.SIGCONT)
    await asyncio.to_thread(wait_until, lambda: len(service.alive()) == 2, "both workers", 200)
    await asyncio.to_thread(service.wait_until_idle)


def has_ended(pid: int) -> bool:
    """Whether the process has no sockets any more: it is gone, or a zombie of whose threads the last has ended."""
    try:
        return not is_running(pid) and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except OSError:
        return True


def test_the_ingress_dies(service: RunningService) -> None:
    """Requests wait for the next one, but for those that it has taken while it dies."""
    body = {"model": service.model, "prompt": "One, two,", "max_tokens": 4}
    ingress = service.only_process("ray::ServeReplica:redoubt:Ingress")
    os.kill(ingress, signal.SIGKILL)
    wait_until(lambda: has_ended(ingress), "the ingress has ended")
    for _ in range(3):
        response = httpx.post(f"{service.url}/v1/completions", json=body, timeout=200)
        assert response.status_code == 200, response.text
    wait_until(lambda: len(service.alive()) == 2, "the new ingress knows the workers")


@pytest.mark.parametrize("name", ["haproxy\0-db", "ray::HAProxyManager"])
def test_the_proxy_dies(service: RunningService, name: str) -> None:
    """No client sees a final error before it is back."""
    dying = service.processes(name)  # HAProxy may have an older one, which serves its last
    assert dying
    kill(dying)
    statuses = set()

    def answered() -> bool:
        try:
            statuses.add(ask(service))
        except httpx.TransportError:
            return False
        return 200 in statuses

    wait_until(answered, "a new HAProxy", 200)
    assert statuses <= {200, 503}


def test_the_controller_dies(service: RunningService) -> None:
    controller = service.only_process("ray::ServeController")
    os.kill(controller, signal.SIGKILL)
    assert [ask(service) for _ in range(4)] == [200] * 4
    heart_beat = max(row["last_heart_beat"] for row in service.rows())
    # Until the table comes again, a busy machine's workers may all be stale.
    wait_until(
        lambda: sum(row["last_heart_beat"] > heart_beat for row in service.alive()) == 2, "heartbeats again", 200
    )
    message = f"Serve's controller (process {controller}) was lost, and Serve has started another"
    wait_until(lambda: message in service.log.read_text(), "the message in the log")


async def test_without_any_worker_requests_wait(service: RunningService) -> None:
    """Both are killed at once: what ran goes on with the new ones, and what comes meanwhile is answered too."""
    await asyncio.to_thread(wait_until, lambda: len(service.alive()) == 2, "two workers", 200)
    body = all_kinds(service.model)[0] | LONG
    async with httpx.AsyncClient(base_url=service.url, timeout=300) as http:
        clean = await answers(http, [body])
        running = asyncio.create_task(answers(http, [body, body]))
        await asyncio.to_thread(wait_until, partial(have_answers, service), "both answers run")
        kill({row["pid"] for row in service.rows()})
        await asyncio.to_thread(wait_until, lambda: service.alive() == [], "both are known to be gone")
        assert (await http.get("/health")).status_code == 503
        later = await answers(http, [body])
        assert later == clean
        assert await running == clean * 2
