"""A second model comes to a running service, is sealed, and goes again, while a conversation with the first goes on.

Only the first drafts. Its worker is killed once; answers are those of the second all the same.

In the end the main process is killed: a start takes as long as both.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from app.sealing.keys import make_key_file
from app.sealing.seal import seal
from bench.processes import command_line
from tests.service.running import (
    START_TIMEOUT_S,
    RunningService,
    assert_nothing_is_left,
    descendants,
    kill,
    starting_service,
    wait_until,
)


def further(**place: str) -> dict[str, Any]:
    worker = {"cpus_per_worker": 1, "ray_num_cpus": 0.1, "warm_up_prompt_tokens": 64, "warm_up_new_tokens": 8}
    args = {
        "model": place,
        "engine": {"kv_memory_bytes": 100 << 20, "draft_tokens": 0, "guess_tokens": 0},
        "worker": worker,
    }
    return {"name": "second", "route_prefix": None, "import_path": "app.deploy:build_model", "args": args}


@pytest.fixture(scope="module")
def config(service_config: Path, service_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For JSON in the log, and all that Serve says at a start."""
    values = yaml.safe_load(service_config.read_text())
    args = values["applications"][0]["args"]
    args["model"] = {"folder": str(service_model), "served_name": "first", "draft": str(service_model)}
    args["worker"]["count"] = 1
    args["ingress"] = {"model_search_period_s": 0.5}
    values["logging_config"] |= {"log_level": "INFO", "encoding": "JSON"}
    path = tmp_path_factory.mktemp("models") / "service.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def small_service(config: Path) -> Iterator[RunningService]:
    """The last test ends it."""
    with starting_service(config, config.with_name("log"), "first") as running:
        yield running


def names(service: RunningService) -> list[str]:
    return [model["id"] for model in httpx.get(f"{service.url}/v1/models", timeout=60).json()["data"]]


def asleep(service: RunningService) -> list[str]:
    models = httpx.get(f"{service.url}/v1/models", timeout=60).json()["data"]
    return [model["id"] for model in models if model["asleep"]]


def ask(service: RunningService, model: str) -> httpx.Response:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 12}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60)


def drawn(service: RunningService, model: str, *, killed_at: int | None = None) -> tuple[Any, ...]:
    """An answer's text, scores, finish reason and counts; its worker is killed when so many events have come."""
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 200, "logit_bias": {"0": -100, "2": -100}}
    body |= {"temperature": 0.5, "seed": 3, "logprobs": 2, "stream": True, "stream_options": {"include_usage": True}}
    events: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
                if len(events) == killed_at:
                    pids = {row["pid"] for row in service.alive() if row["model_names"] == [model]}
                    assert pids
                    kill(pids)
    assert not any("error" in event for event in events), events[-1]
    choices = [choice for event in events for choice in event["choices"]]
    scores = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    joined = {
        name: [each for score in scores for each in score[name]]
        for name in ("tokens", "token_logprobs", "top_logprobs")
    }
    usage = events[-1]["usage"]
    text = "".join(choice["text"] for choice in choices)
    return text, joined, choices[-1]["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]


class Conversation(threading.Thread):
    """Long answers of the first model, one after the other, read in the background."""

    def __init__(self, service: RunningService) -> None:
        super().__init__()
        self._service = service
        self.pieces = 0
        self.failure: str | None = None
        self.left = threading.Event()

    def run(self) -> None:
        while not self.left.is_set() and self.failure is None:
            self._read_one(self._service.endless(max_tokens=8000))

    def _read_one(self, body: dict[str, Any]) -> None:
        with httpx.stream("POST", f"{self._service.url}/v1/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if self.left.is_set():
                    return
                if line.startswith("data: {"):
                    self.failure = self.failure or json.loads(line[6:]).get("error")
                    self.pieces += 1


def test_a_model_comes_and_goes(
    small_service: RunningService, config: Path, service_model: Path, tmp_path: Path
) -> None:
    assert names(small_service) == ["first"]
    assert ask(small_service, "second").status_code == 404
    front = yaml.safe_load(config.read_text())
    conversation = Conversation(small_service)
    conversation.start()
    try:
        second = further(folder=str(service_model), served_name="second")
        second["args"]["sleep"] = {"after_s": 3.0}
        both = front | {"applications": [*front["applications"], second]}
        config.write_text(yaml.safe_dump(both))
        wait_until(lambda: names(small_service) == ["first", "second"], "the second model", START_TIMEOUT_S)
        answer = ask(small_service, "second")
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == ask(small_service, "first").json()["choices"]
        wait_until(lambda: len(small_service.alive()) == 2, "both workers")
        first, second = sorted(small_service.alive(), key=lambda row: row["model_names"])
        assert (first["model_names"], second["model_names"]) == (["first"], ["second"])
        assert (first["draft"], second["draft"]) == (service_model.name, None)
        assert not set(first["cpus"]) & set(second["cpus"])
        assert drawn(small_service, "first", killed_at=20) == drawn(small_service, "second")
        wait_until(lambda: len(small_service.alive()) == 2, "a worker that drafts again", START_TIMEOUT_S)
        wait_until(lambda: asleep(small_service) == ["second"], "the second model asleep")
        assert ask(small_service, "second").json()["choices"] == answer.json()["choices"]

        seal(service_model, tmp_path / "image", make_key_file(tmp_path / "key"), name="third", progress=False)
        third = further(sealed=str(tmp_path / "image"), key=f"file://{tmp_path}/key", served_name="third")
        config.write_text(yaml.safe_dump(front | {"applications": [*front["applications"], third]}))
        wait_until(lambda: names(small_service) == ["first", "third"], "the sealed model instead", START_TIMEOUT_S)
        answer = ask(small_service, "third")
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"] == ask(small_service, "first").json()["choices"]

        config.write_text(yaml.safe_dump(front))
        wait_until(lambda: names(small_service) == ["first"], "the other model gone")
        assert ask(small_service, "third").status_code == 404
        before = conversation.pieces
        wait_until(lambda: conversation.pieces > before, "the conversation goes on")
        assert conversation.failure is None
    finally:
        conversation.left.set()
        conversation.join(60)


def private_folder(running: RunningService) -> Path:
    command = command_line(running.only_process("gcs_server"))
    (log_option,) = (part for part in command.split("\0") if part.startswith("--log_dir="))
    return next(folder for folder in Path(log_option.partition("=")[2]).parents if folder.name.startswith("redoubt-"))


def test_the_main_process_is_killed(small_service: RunningService) -> None:
    family, folder = descendants(small_service.process.pid), private_folder(small_service)
    assert folder.is_dir()
    lines = [json.loads(line) for line in small_service.log.read_text().splitlines()]
    assert all(line.keys() >= {"asctime", "levelname", "message"} for line in lines)
    small_service.process.kill()
    small_service.process.wait()
    assert_nothing_is_left(small_service, family)
    assert not folder.exists()
