"""Models that appear and disappear, with Serve faked: what is found, described, opened, refused and dropped."""

import asyncio
import json
import logging
import shutil
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.interface.generate import model_directory
from app.interface.generate.model_directory import ModelDirectory, ModelWorkers
from app.interface.generate.service import ServedModel
from app.interface.thinking.requested import ThinkingDefault
from app.messages.model_card import ModelCard
from app.messages.outputs import TokenDelta
from app.messages.requests import GenerateRequest
from app.messages.workers import FoundApplication, WorkerRow
from app.sealing.sealed_model import model_identity
from tests.app.service import WORKER
from tests.app.tiny_model import CONTEXT_TOKENS, EOS_ID, tokenizer_json


class FakeWorkers:
    def __init__(self, *cards: ModelCard) -> None:
        self.all_cards = list(cards)
        self.longest_tokens = CONTEXT_TOKENS

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        raise NotImplementedError
        yield

    def workers(self) -> list[WorkerRow]:
        rows = enumerate(self.all_cards)
        return [replace(WORKER, worker_id=card.name, max_context_tokens=self.longest_tokens + i) for i, card in rows]

    def cards(self) -> list[ModelCard]:
        return self.all_cards

    async def call_each(self, method: str, *arguments: object) -> list[object]:
        return [(card.name, method, *arguments) for card in self.all_cards]


class FakeApplications:
    def __init__(self) -> None:
        self.found: dict[str, FoundApplication] = {}
        self.all_workers: dict[str, FakeWorkers] = {}
        self.connected: list[str] = []

    def put(self, name: str, *cards: ModelCard, runs: bool = True) -> None:
        self.found[name] = FoundApplication(runs)
        self.all_workers.setdefault(name, FakeWorkers()).all_cards = list(cards)

    async def find(self) -> Mapping[str, FoundApplication]:
        return self.found

    def connect(self, name: str) -> FakeWorkers:
        self.connected.append(name)
        return self.all_workers[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = tokenizer_json()
    config = {
        "vocab_size": len(tokenizer["model"]["vocab"]),
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": EOS_ID,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def card(folder: Path) -> ModelCard:
    return ModelCard("own", str(folder), None, "refuse")


async def test_models_come_and_go(card: ModelCard) -> None:
    serve = FakeApplications()
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    models = directory.models  # the very mapping that the routes hold
    await directory.search()
    assert list(models) == ["own"]

    thinking: dict[str, Any] = {"thinking": "short", "short_thinking_tokens": 9}
    serve.put("b", replace(card, name="second", max_context_tokens=64, on_overflow="shift", **thinking))
    serve.put("c", replace(card, name="third"), runs=False)
    await directory.search()
    assert list(models) == ["own", "second"]  # the other one is still starting
    assert (models["second"].chat.context_tokens, models["second"].chat.on_overflow) == (64, "shift")
    assert models["second"].chat.thoughts.default == ThinkingDefault("short", 9)
    assert [row.worker_id for row in directory.workers()] == ["own", "second"]
    generate = models["second"].generate
    assert generate == serve.all_workers["b"].generate

    serve.put("b", runs=False)  # its worker is being replaced
    serve.found["c"] = FoundApplication(has_worker=True)
    await directory.search()
    assert list(models) == ["own", "second", "third"]
    del serve.found["b"]
    await directory.search()
    assert list(models) == ["own", "third"]
    assert serve.connected == ["b", "c"]


async def test_a_name_that_is_another_models_alias_is_taken(card: ModelCard, caplog: pytest.LogCaptureFixture) -> None:
    serve = FakeApplications()
    card = replace(card, aliases=("gpt",))
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    serve.put("b", replace(card, name="second"))
    serve.put("c", replace(card, name="third", aliases=("other",)))
    serve.put("d", replace(card, name="other", aliases=()))
    await directory.search()
    assert {name: model.aliases for name, model in directory.models.items()} == {"own": ("gpt",), "third": ("other",)}
    assert "the model name 'gpt' is taken" in caplog.text
    assert "the model name 'other' is taken" in caplog.text


async def test_a_context_is_not_longer_than_a_workers_cache(card: ModelCard) -> None:
    workers = FakeWorkers(card)
    directory = ModelDirectory(card, workers, FakeApplications())
    await directory.follow()
    whole = directory.models["own"]
    assert whole.chat.context_tokens == CONTEXT_TOKENS
    workers.longest_tokens = 96
    workers.all_cards = [card, card]
    await directory.follow()
    assert directory.models["own"].chat.context_tokens == 96
    served = directory.models["own"]
    await directory.follow()
    assert directory.models["own"] is served
    workers.longest_tokens = 10 * CONTEXT_TOKENS
    await directory.follow()
    assert directory.models["own"].chat.context_tokens == CONTEXT_TOKENS


async def test_in_a_rolling_change_an_application_serves_both_models(card: ModelCard) -> None:
    serve = FakeApplications()
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    old, new = replace(card, name="old"), replace(card, name="new", max_context_tokens=32)
    serve.put("b", old)
    await directory.search()
    serve.put("b", old, new, old)  # one after the other is replaced
    await directory.follow()
    assert list(directory.models) == ["own", "old", "new"]
    serve.put("b", new)
    await directory.follow()
    assert list(directory.models) == ["own", "new"]
    serve.put("b", card)
    await directory.follow()
    assert list(directory.models) == ["own"]  # its name is taken, and the old one's workers are gone
    assert serve.connected == ["b"]


async def test_of_two_versions_with_one_name_the_newer_is_served(card: ModelCard, folder: Path) -> None:
    """The ingress's own model, whose workers report what they have opened."""
    changed = folder / "changed"
    shutil.copytree(folder, changed)
    (changed / "generation_config.json").write_text('{"temperature": 0.5}')
    old = replace(card, identity=model_identity(folder))
    new = replace(card, path=str(changed), identity=model_identity(changed))
    workers = FakeWorkers()
    directory = ModelDirectory(card, workers, FakeApplications())
    models = directory.models
    first = models["own"]
    for cards, identity in (([], old), ([old], old), ([old, new], new), ([new], new), ([], new), ([new, old], old)):
        workers.all_cards = cards
        await directory.follow()
        assert [model.chat.identity for model in models.values()] == [identity.identity]
        assert (models["own"] is first) == (cards in ([], [old]) and identity is old)


async def test_an_ingress_that_is_newer_than_its_workers_serves_what_they_run(card: ModelCard) -> None:
    """The model of the settings stays served, so that requests for it wait; an older ingress follows its workers."""
    old = replace(card, name="old")
    workers = FakeWorkers(old)
    older, newer = (ModelDirectory(one, workers, FakeApplications()) for one in (old, card))
    for cards, of_older, of_newer in (
        ([old], ["old"], ["own", "old"]),
        ([old, card], ["old", "own"], ["old", "own"]),
        ([card], ["own"], ["own"]),
    ):
        workers.all_cards = cards
        await older.follow()
        await newer.follow()
        assert (list(older.models), list(newer.models)) == (of_older, of_newer)


async def test_files_that_are_not_those_of_the_workers_are_not_served(
    card: ModelCard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = FakeApplications()
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    serve.put("b", replace(card, name="other", identity="0" * 16))
    opened: list[ModelCard] = []
    original = model_directory._served

    def counted(card: ModelCard, workers: ModelWorkers) -> ServedModel:
        opened.append(card)
        return original(card, workers)

    monkeypatch.setattr(model_directory, "_served", counted)
    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(5):
            await directory.search()
    assert list(directory.models) == ["own"]
    assert len(opened) == 1  # it is not tried four times a second
    assert len(caplog.records) == 1
    assert "the workers have opened another version of these files" in caplog.text


async def test_files_that_were_changed_under_the_workers_leave_the_name(card: ModelCard) -> None:
    """Requests wait for workers that have opened the ingress's model, although the workers run another one."""
    workers = FakeWorkers()
    directory = ModelDirectory(card, workers, FakeApplications())
    first = directory.models["own"]
    for identity in ("0" * 16, first.chat.identity):
        workers.all_cards = [replace(card, identity=identity)]
        await directory.follow()
        assert dict(directory.models) == {"own": first}


async def test_a_reader_in_a_thread_never_misses_a_model(card: ModelCard) -> None:
    serve = FakeApplications()
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    stop = threading.Event()
    missed = []

    def read() -> None:
        while not stop.is_set():
            if "own" not in directory.models or next(iter(directory.models)) != "own":
                missed.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(30):
        serve.put("b", replace(card, name=f"{number % 2}"))
        await directory.search()
    stop.set()
    reader.join()
    assert missed == []


async def test_a_taken_name_and_a_model_that_can_t_be_opened_are_logged_once(
    card: ModelCard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve = FakeApplications()
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    serve.put("b", card)
    serve.put("c", replace(card, name="third", path=str(tmp_path / "nowhere")))
    with caplog.at_level(logging.WARNING, "ray.serve"):
        await directory.search()
        await directory.search()
    assert list(directory.models) == ["own"]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Application 'b' is not served",
        "Application 'c' is not served",
    ]
    assert "the model name 'own' is taken" in caplog.text
    assert "nowhere" in caplog.text
    serve.put("c", replace(card, name="fourth"))
    await directory.search()
    assert list(directory.models) == ["own", "fourth"]


async def test_a_controller_that_does_not_answer_takes_nothing_away(
    card: ModelCard, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(FakeApplications):
        async def find(self) -> Mapping[str, FoundApplication]:
            raise TimeoutError("no answer")

    directory = ModelDirectory(card, FakeWorkers(card), Silent())
    first = asyncio.Event()
    with caplog.at_level(logging.WARNING, "ray.serve"):
        watch = asyncio.create_task(directory.watch(0.001, first))
        await first.wait()
        await asyncio.sleep(0.02)
        watch.cancel()
    assert list(directory.models) == ["own"]
    assert len(caplog.records) == 1


async def test_a_call_reaches_the_workers_of_all_models(card: ModelCard) -> None:
    serve = FakeApplications()
    directory = ModelDirectory(card, FakeWorkers(card), serve)
    other = replace(card, name="other")
    serve.put("app", other, other)
    await directory.search()
    assert await directory.call_each("memory_use", "ann") == [
        (name, "memory_use", "ann") for name in ("own", "other", "other")
    ]
