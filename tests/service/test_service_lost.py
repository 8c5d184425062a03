"""The whole service is lost: no process of it stays, and a supervisor sees its exit status.

`tests/app/launch/test_lost_processes.py` has more of this, with a Ray but without a model, and test_models.py kills the
main process.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.service.operator import ROOT_PASSWORD, configure_accounts, done
from tests.service.running import (
    SMALL_WORKER,
    RunningService,
    assert_nothing_is_left,
    descendants,
    kill,
    starting_service,
)

_ANEW = "The service has been started anew"
_TURNS = 30
_LONG = 4000
"""Of a conversation, which has to fit into the context however long a start takes."""
_RAY_START_S = 240
"""A new Ray starts beside the one that still computes, and beside the other tests."""


@contextmanager
def service_with_accounts(model: Path, folder: Path) -> Iterator[RunningService]:
    """One worker that saves pages, and the user root, whose API key it has. It follows its file. The test ends it."""
    changes: dict[str, dict[str, Any]] = {
        "engine": {"kv_memory_bytes": 100 << 20},
        "worker": {"cpus_per_worker": 1, "drain_timeout_s": 300.0} | SMALL_WORKER,
        "model": {"folder": str(model)},
        "memory": {"folder": str(folder / "memory")},
    }
    configure_accounts(folder, changes)
    with starting_service(folder / "service.yaml", folder / "log", "") as running:
        key = done("key", "add", "--url", running.url, "--as", "root", lines=ROOT_PASSWORD + "\n").strip()
        running = replace(running, key=key)
        yield replace(running, model=running.rows()[0]["model_names"][0])


@pytest.mark.faults
def test_what_everything_depends_on_is_killed(service_model: Path, tmp_path: Path) -> None:
    """The GCS, the raylet, the serving program, HAProxy: each is replaced, and requests are answered or wait.

    The raylet takes workers and ingress with it, so that for a moment there is nothing behind the front.
    """
    with service_with_accounts(service_model, tmp_path) as running:
        client = UserOf(running)
        clean = client.complete()
        for name, is_new_ray in (
            ("haproxy\0-db", False),
            ("gcs/gcs_server", True),
            ("raylet/raylet", True),
            ("app.launch.serving", True),
        ):
            before = running.alive()[0]["worker_id"]
            may_refuse = name not in ("haproxy\0-db", "gcs/gcs_server")
            kept = client.begin_background() if name == "gcs/gcs_server" else None
            kill(running.processes(name))
            for _ in range(3):
                assert client.complete(may_be_refused_s=_RAY_START_S if may_refuse else 0) == clean, name
            if is_new_ray:
                wait_for_new_worker(running, before)
            assert client.complete() == clean, name
            if kept is not None:
                assert client.ended(kept)["status"] in ("completed", "incomplete")
        family = descendants(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(120) == 0, running.log.read_text()
        assert_nothing_is_left(running, family)


class UserOf:
    """A user's requests, which have the same answers each time."""

    def __init__(self, running: RunningService) -> None:
        self._running = running
        headers = {"Authorization": f"Bearer {running.key}"}
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=running.url, headers=headers, timeout=_RAY_START_S + 60, limits=limits)

    def _post(self, path: str, body: dict[str, Any], may_be_refused_s: float = 0) -> dict[str, Any]:
        deadline_s = time.monotonic() + may_be_refused_s
        while (answer := self.http.post(path, json=body)).status_code == 503 and time.monotonic() < deadline_s:
            time.sleep(int(answer.headers["retry-after"]))
        assert answer.status_code == 200, (answer.text, self._running.log.read_text())
        found: dict[str, Any] = answer.json()
        return found

    def complete(self, *, may_be_refused_s: float = 0) -> str:
        body = {"model": self._running.model, "prompt": "One, two,", "max_tokens": 200, "temperature": 0}
        return str(self._post("/v1/completions", body | {"ignore_eos": True}, may_be_refused_s)["choices"][0]["text"])

    def begin_conversation(self) -> str:
        return str(self._post("/v1/conversations", {})["id"])

    def turn(self, conversation: str) -> None:
        """One turn, which must be stored."""
        self._post("/v1/responses", self._asked(16) | {"conversation": conversation})

    def items(self, conversation: str) -> int:
        answer = self.http.get(f"/v1/conversations/{conversation}/items", params={"limit": 100})
        return len(answer.json()["data"])

    def begin_background(self, tokens: int = 1500) -> str:
        return str(self._post("/v1/responses", self._asked(tokens) | {"background": True})["id"])

    def has_ended(self, response_id: str) -> bool:
        return self._response(response_id)["status"] not in ("queued", "in_progress")

    def ended(self, response_id: str) -> dict[str, Any]:
        """The response when it has ended."""
        deadline_s = time.monotonic() + _RAY_START_S
        while not self.has_ended(response_id):
            assert time.monotonic() < deadline_s, response_id
            time.sleep(0.2)
        return self._response(response_id)

    def _response(self, response_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/responses/{response_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _asked(self, tokens: int) -> dict[str, Any]:
        return {"model": self._running.model, "input": "Count.", "temperature": 0, "max_output_tokens": tokens}


def wait_for_new_worker(running: RunningService, before: str) -> None:
    deadline_s = time.monotonic() + _RAY_START_S
    while not any(row["worker_id"] != before for row in rows(running)):
        assert running.process.poll() is None, running.log.read_text()
        assert time.monotonic() < deadline_s, running.log.read_text()
        time.sleep(0.2)


def rows(running: RunningService) -> list[dict[str, Any]]:
    """Empty while nothing answers."""
    try:
        return running.alive()
    except httpx.HTTPError:
        return []


@pytest.mark.faults
def test_a_stop_and_changes_wait_for_answers(service_model: Path, tmp_path: Path) -> None:
    """SIGUSR1 and a changed file start the service anew beside itself, and SIGTERM lets a stream come to its end.

    What is stored meanwhile is there afterwards, and a background answer of before comes to its end.
    """
    with service_with_accounts(service_model, tmp_path) as running, ThreadPoolExecutor(2) as pool:
        client = UserOf(running)
        body = {**running.endless(max_tokens=1500), "temperature": 0}
        begun = threading.Event()

        def stream() -> str:
            with client.http.stream("POST", "/v1/completions", json=body, timeout=600) as answer:
                lines = []
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        lines.append(line.removeprefix("data: "))
                        begun.set()
            *events, last = lines
            assert last == "[DONE]"
            return "".join(json.loads(event)["choices"][0]["text"] for event in events)

        clean, clean_background = stream(), client.ended(client.begin_background(_LONG))
        conversations: list[str] = []
        turns = 0

        def store_a_turn() -> None:
            nonlocal turns
            if turns % _TURNS == 0:
                conversations.append(client.begin_conversation())
            client.turn(conversations[-1])
            turns += 1

        for change in (renew, change_accounts):
            before = running.log.read_text().count(_ANEW)
            background = [client.begin_background(_LONG)]
            streaming = pool.submit(stream)
            change(running)
            while running.log.read_text().count(_ANEW) == before:
                assert running.process.poll() is None, running.log.read_text()
                store_a_turn()
                if client.has_ended(background[-1]):  # so that there is always one, even at the end of the old service
                    background.append(client.begin_background(_LONG))
            store_a_turn()
            assert streaming.result() == clean
            for ended in map(client.ended, background):
                assert (ended["status"], ended["error"]) == (clean_background["status"], None)
                assert ended["output"][0]["content"] == clean_background["output"][0]["content"]
        assert sum(map(client.items, conversations)) == 2 * turns
        answer = client.http.post("/v1/completions", json={**body, "max_tokens": 1, "stream": False})
        assert answer.headers["x-ratelimit-limit-requests"] == "5000"  # the change is in force
        usage = client.http.get("/v1/admin/usage").json()["data"]
        assert sum(row["requests"] for row in usage) >= turns + 6
        begun.clear()
        streaming = pool.submit(stream)
        assert begun.wait(120)
        running.process.send_signal(signal.SIGTERM)
        assert streaming.result() == clean
        assert running.process.wait(400) == 0, running.log.read_text()


def renew(running: RunningService) -> None:
    running.process.send_signal(signal.SIGUSR1)


def change_accounts(running: RunningService) -> None:
    """A setting of the accounts, in the file that the service follows."""
    config = running.log.parent / "service.yaml"
    values = yaml.safe_load(config.read_text())
    values["applications"][0]["args"]["accounts"]["limits"] = {"requests_per_minute": 5000}
    config.write_text(yaml.safe_dump(values))
