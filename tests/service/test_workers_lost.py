"""Workers are silent, or a process of the service dies: the service goes on with the others, or recovers."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.running import RunningService, descendants, wait_until


def ask(service: RunningService) -> int:
    body = {"model": service.model, "prompt": "One, two,", "max_tokens": 4}
    return httpx.post(f"{service.url}/v1/completions", json=body, timeout=30).status_code


def state_of(service: RunningService, worker_id: str) -> str:
    return next((row["state"] for row in service.rows() if row["worker_id"] == worker_id), "forgotten")


def test_a_silent_worker_is_dropped_and_taken_back(service: RunningService) -> None:
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
    assert len(service.alive()) == 2


class Stream:
    """A stream whose end is of interest."""

    def __init__(self) -> None:
        self.tokens = 0
        self.error: dict[str, Any] | None = None

    async def read(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    self.error = event.get("error", self.error)
                    self.tokens += "choices" in event


@pytest.mark.timeout(120)
async def test_a_worker_is_killed_in_the_middle(service: RunningService) -> None:
    await asyncio.to_thread(service.wait_until_idle)
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        streams = [Stream(), Stream()]
        tasks = [asyncio.create_task(stream.read(http, service.endless())) for stream in streams]
        await asyncio.to_thread(
            wait_until, lambda: [row["running"] for row in service.alive()] == [1, 1], "a stream on each worker"
        )
        while any(stream.tokens < 5 for stream in streams):
            await asyncio.sleep(0.05)
        victim = service.alive()[0]
        os.kill(victim["pid"], signal.SIGKILL)

        done, left = await asyncio.wait(tasks, timeout=15, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == len(left) == 1
        (broken,) = (streams[tasks.index(task)] for task in done)
        (other,) = (streams[tasks.index(task)] for task in left)
        assert broken.error is not None
        assert "lost" in broken.error["message"]
        assert await asyncio.to_thread(ask, service) == 200
        await asyncio.to_thread(
            wait_until, lambda: state_of(service, victim["worker_id"]) == "gone", "the table knows of the loss"
        )

        seen = other.tokens
        await asyncio.to_thread(wait_until, lambda: other.tokens > seen + 5, "the other stream goes on")
        await asyncio.to_thread(wait_until, lambda: len(service.alive()) == 2, "a new worker", 60)
        assert victim["worker_id"] not in {row["worker_id"] for row in service.alive()}
        assert other.error is None
        for task in left:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(service.wait_until_idle)


def processes(service: RunningService, name: str) -> list[int]:
    """The service's whose command contains `name`."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(service.process.pid)}
    return [pid for pid, its in names.items() if name in its]


def has_ended(pid: int) -> bool:
    """Whether the process has no sockets any more: it is gone, or a zombie of whose threads the last has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except FileNotFoundError:
        return True


@pytest.mark.timeout(120)
def test_the_ingress_dies(service: RunningService) -> None:
    """Requests wait for the next one, but for those that it has taken while it dies."""
    body = {"model": service.model, "prompt": "One, two,", "max_tokens": 4}
    (ingress,) = processes(service, "ray::ServeReplica:redoubt:Ingress")
    os.kill(ingress, signal.SIGKILL)
    wait_until(lambda: has_ended(ingress), "the ingress has ended")
    for _ in range(3):
        response = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
    wait_until(lambda: len(service.alive()) == 2, "the new ingress knows the workers")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["haproxy\0-db", "ray::HAProxyManager"])
def test_the_proxy_dies(service: RunningService, name: str) -> None:
    """No client sees a final error before it is back."""
    dying = processes(service, name)  # HAProxy may have an older one, which serves its last
    assert dying
    for pid in dying:
        os.kill(pid, signal.SIGKILL)
    statuses = set()

    def answered() -> bool:
        try:
            statuses.add(ask(service))
        except httpx.TransportError:
            return False
        return 200 in statuses

    wait_until(answered, "a new HAProxy", 60)
    assert statuses <= {200, 503}


def test_the_controller_dies(service: RunningService) -> None:
    (controller,) = processes(service, "ray::ServeController")
    os.kill(controller, signal.SIGKILL)
    assert [ask(service) for _ in range(4)] == [200] * 4
    heart_beat = max(row["last_heart_beat"] for row in service.rows())
    # Until the table comes again, a busy machine's workers may all be stale.
    wait_until(lambda: sum(row["last_heart_beat"] > heart_beat for row in service.alive()) == 2, "heartbeats again", 60)
    message = f"Serve's controller (process {controller}) was lost, and Serve has started another"
    wait_until(lambda: message in service.log.read_text(), "the message in the log", 30)


@pytest.mark.timeout(120)
def test_without_any_worker_requests_fail_at_once(service: RunningService) -> None:
    wait_until(lambda: len(service.alive()) == 2, "two workers", 60)
    for row in service.alive():
        os.kill(row["pid"], signal.SIGKILL)
    wait_until(lambda: service.alive() == [], "the controller knows that both are gone")
    body = {"model": service.model, "prompt": "One, two,", "max_tokens": 4}
    refused = httpx.post(f"{service.url}/v1/completions", json=body, timeout=5)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    wait_until(lambda: len(service.alive()) == 2, "new workers", 60)
    assert ask(service) == 200
