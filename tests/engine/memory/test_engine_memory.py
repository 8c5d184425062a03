"""Pages that outlive the engine: what is computed after a restart, and that no fault changes a token."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.engine import Engine
from app.engine.memory.engine_memory import EngineMemory, MemoryOptions
from app.engine.memory.page_store import PageStore
from app.engine.model_runner import Batch
from app.memory import disk
from app.memory.io_threads import FolderStore
from app.messages.memory import MemoryGrant, SavedPages
from app.messages.outputs import TokenDelta
from app.messages.requests import BeamParams, ContextWindow, GenerateRequest, SamplingParams
from tests.app.memory.pages import files_in, grant_for, open_folder
from tests.engine.memory.stores import DictStore, gathered
from tests.engine.test_engine import Receiver
from tests.fakes import FakeRunner
from tests.sizes import FULL, examples

PROMPT = tuple(Random(0).choices(range(1000), k=50))  # 12 pages of 4, and 2 tokens
PAGE_BYTES = FakeRunner().gathered_page_bytes
ADA, EVE = grant_for("ada"), grant_for("eve")
NOW = MemoryOptions(save="idle", save_after_s=0.0, restore="always", min_tokens=1)
LATER = replace(NOW, save_after_s=1e9)
TIMEOUT_S = 60


class Service:
    """An engine over a store, and what its requests cost."""

    def __init__(
        self, store: PageStore, options: MemoryOptions = LATER, *, guess_tokens: int = 0, **runner: Any
    ) -> None:
        self.runner = FakeRunner(**runner)
        self.engine = Engine(self.runner, page_store=store, memory=options, guess_tokens=guess_tokens)
        self.receiver = Receiver()
        self.engine.start()
        self._count = 0

    @property
    def memory(self) -> EngineMemory:
        assert self.engine.memory is not None
        return self.engine.memory

    def ask(
        self, prompt: tuple[int, ...], grant: MemoryGrant | None = ADA, new_tokens: int = 4, name: str = ""
    ) -> GenerateRequest:
        self._count += 1
        sampling = SamplingParams(seed=1)
        name = name or f"request {self._count}"
        request = GenerateRequest(name, prompt, new_tokens, sampling, tenant=b"", memory=grant)
        self.receiver.submit(self.engine, request)
        return request

    def answer(self, request: GenerateRequest) -> tuple[int, ...]:
        """The request's output, which must be right."""
        tokens = self.receiver.tokens(request.request_id)
        assert tokens == self.runner.expected_tokens(request)
        return tokens

    def cost(self, prompt: tuple[int, ...], grant: MemoryGrant | None = ADA, new_tokens: int = 4) -> int:
        """Tokens that were computed for a request."""
        before = sum(self.runner.step_tokens)
        self.answer(self.ask(prompt, grant, new_tokens))
        return sum(self.runner.step_tokens) - before

    def cached(self, request: GenerateRequest) -> int:
        self.answer(request)
        deltas = self.receiver.events[request.request_id]
        return sum(delta.cached_tokens for delta in deltas if isinstance(delta, TokenDelta))

    def flush(self, owner: str | None = None) -> SavedPages:
        return self.memory.flush(owner).result(TIMEOUT_S)


@contextmanager
def serving(store: PageStore, options: MemoryOptions = LATER, **runner: Any) -> Iterator[Service]:
    service = Service(store, options, **runner)
    try:
        yield service
    finally:
        service.engine.stop()
    assert service.engine.statistics().pages_used == 0
    assert service.engine.statistics().healthy is False


@pytest.fixture
def store() -> Iterator[DictStore]:
    store = DictStore(PAGE_BYTES)
    yield store
    store.close()


def saved_by_one_engine(store: DictStore, prompt: tuple[int, ...] = PROMPT, grant: MemoryGrant = ADA) -> None:
    with serving(store) as service:
        service.cost(prompt, grant)
        assert service.flush().unsaved_pages == 0


COLD = len(PROMPT) + 3
"""Tokens that a request for PROMPT computes: the last token of an output is never computed."""
RESTORED = COLD - 48


def test_after_a_restart_only_new_tokens_are_computed(store: DictStore) -> None:
    with serving(store) as service:
        assert service.cost(PROMPT) == COLD
        answer = service.answer(service.ask(PROMPT))
        assert service.flush().saved_pages == 13, "12 pages of the prompt, and one with the answer"
    with serving(store) as service:
        request = service.ask(PROMPT)
        assert service.answer(request) == answer
        assert service.cached(request) == 48
        assert sum(service.runner.step_tokens) == RESTORED
        assert service.memory.statistics().restored_tokens == 48
        assert service.cost((*PROMPT, *answer, 7)) == 55 - 52 + 3, (
            "the answer's page came back too, or was computed hot"
        )


def test_a_chat_goes_on_over_many_restarts(store: DictStore) -> None:
    prompt = PROMPT[:10]
    for turn in range(6):
        with serving(store) as service:
            request = service.ask(prompt)
            computed = sum(service.runner.step_tokens)
            answer = service.answer(request)
            computed = sum(service.runner.step_tokens)
            assert computed <= (10 if not turn else 7 + 3) + 4
            service.flush()
        prompt += (*answer, *PROMPT[:7])


def test_only_the_same_users_grant_finds_pages(store: DictStore) -> None:
    saved_by_one_engine(store)
    with serving(store) as service:
        assert service.cost(PROMPT, EVE) == COLD
        assert service.cost(PROMPT, None) == COLD
        assert service.cost(PROMPT, replace(ADA, names_key=EVE.names_key)) == RESTORED, "found in memory: it is Eve's"
    with serving(store) as service:
        assert service.cost(PROMPT, replace(ADA, names_key=EVE.names_key)) == COLD
        assert service.cost(PROMPT, ADA) == RESTORED


def test_in_memory_users_share_nothing_either(store: DictStore) -> None:
    with serving(store) as service:
        assert service.cost(PROMPT, ADA) == COLD
        assert service.cost(PROMPT, EVE) == COLD
        assert service.cost(PROMPT, None) == COLD
        assert service.cost(PROMPT, replace(ADA, conversation_key_id=EVE.conversation_key_id)) == RESTORED


def test_a_grant_without_saving_reads_only(store: DictStore) -> None:
    with serving(store) as service:
        service.cost(PROMPT, replace(ADA, save=False))
        assert service.flush() == SavedPages(0, 0, 0)
    assert not store.pages
    saved_by_one_engine(store)
    with serving(store) as service:
        assert service.cost(PROMPT, replace(ADA, save=False)) == RESTORED


def test_without_restoring_or_below_min_tokens_nothing_is_looked_for(store: DictStore) -> None:
    saved_by_one_engine(store)
    for options in (replace(LATER, restore="never"), replace(LATER, min_tokens=49)):
        with serving(store, options) as service:
            assert service.cost(PROMPT) == COLD
    assert store.calls["find"] == 1, "the first engine's"
    with serving(store, replace(LATER, min_tokens=48)) as service:
        assert service.cost(PROMPT) == RESTORED


def test_the_same_prompt_at_the_same_time_is_loaded_once(store: DictStore) -> None:
    saved_by_one_engine(store)
    store.held.add("load")
    loads, finds = store.calls["load"], store.calls["find"]
    with serving(store) as service:
        requests = [service.ask(PROMPT) for _ in range(4)]
        store.wait_until(lambda: store.calls["load"] > loads)
        store.let("load")
        for request in requests:
            assert service.cached(request) == 48
        assert (store.calls["load"] - loads, store.calls["find"] - finds) == (12, 1)
        assert sum(service.runner.step_tokens) == 4 * RESTORED


def test_a_search_and_an_endless_output_use_pages_and_are_right(store: DictStore) -> None:
    saved_by_one_engine(store)
    sampling = SamplingParams(seed=1)
    with serving(store, kv_pages=64) as service:
        search = GenerateRequest(
            "beams", PROMPT, 6, tenant=b"", memory=ADA, search=BeamParams(3), stop_token_ids=frozenset((1, 2))
        )
        service.receiver.submit(service.engine, search)
        assert service.receiver.tokens("beams") == service.runner.expected_answers(search)[0][0]
        service.memory.clear(ADA.owner).result(TIMEOUT_S)
        window = ContextWindow(tokens=56, keep_tokens=4, discard_tokens=8)
        endless = GenerateRequest("endless", PROMPT, 60, sampling, tenant=b"", memory=ADA, window=window)
        service.receiver.submit(service.engine, endless)
        assert service.cached(endless) == 48
        assert service.flush() == SavedPages(0, 0, 0), "its pages depend on what has left the window"


# --- faults of loading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["find", "load"])
def test_a_store_that_never_answers_costs_the_deadline_and_no_token(call: str, store: DictStore) -> None:
    saved_by_one_engine(store)
    store.held.add(call)
    with serving(store, replace(LATER, restore="auto")) as service:
        assert service.cost(PROMPT) == COLD
        assert service.memory.statistics().missed_deadlines == 1
        finds = store.calls["find"]
        service.memory.clear(ADA.owner).result(TIMEOUT_S)
        assert service.cost(PROMPT) == COLD
        assert store.calls["find"] == finds, "it is not asked again for a while"
        before = [gathered(service.runner, page) for page in range(service.runner.kv_pages)]
        store.let(call)
        service.engine.abort("wake")
        store.wait_until(lambda: not store._work)
        assert [gathered(service.runner, page) for page in range(service.runner.kv_pages)] == before, "too late"


@pytest.mark.parametrize("missing", range(12))
def test_pages_up_to_a_missing_one_are_used(missing: int, store: DictStore) -> None:
    saved_by_one_engine(store)
    store.missing = {missing, 11}
    with serving(store) as service:
        assert service.cost(PROMPT) == COLD - 4 * missing


def test_a_store_that_fails_is_as_none(store: DictStore) -> None:
    saved_by_one_engine(store)
    for fails in ({"find"}, {"load"}, {"find", "load", "save"}):
        store.fails = fails
        with serving(store) as service:
            assert service.cost(PROMPT) == COLD


@pytest.mark.parametrize("held", ["find", "load"])
def test_an_aborted_request_gets_no_page_any_more(held: str, store: DictStore) -> None:
    saved_by_one_engine(store)
    store.held.add(held)
    before = store.calls[held]
    with serving(store) as service:
        request = service.ask(PROMPT)
        follower = service.ask(PROMPT)
        store.wait_until(lambda: store.calls[held] > before)
        service.engine.abort(request.request_id)
        store.let(held)
        assert service.cached(follower) == 48, "it began a load of its own"


def test_an_engine_that_stops_while_loading_lets_go_of_its_pages(store: DictStore) -> None:
    saved_by_one_engine(store)
    store.held.add("load")
    before = store.calls["load"]
    with serving(store) as service:
        service.ask(PROMPT)
        store.wait_until(lambda: store.calls["load"] > before)
    empty = [gathered(service.runner, page) for page in range(service.runner.kv_pages)]
    store.let("load")
    store.wait_until(lambda: not store._work)
    assert [gathered(service.runner, page) for page in range(service.runner.kv_pages)] == empty


def test_others_go_on_while_one_loads(store: DictStore) -> None:
    saved_by_one_engine(store)
    store.held.add("load")
    before = store.calls["load"]
    with serving(store) as service:
        loading = service.ask(PROMPT)
        store.wait_until(lambda: store.calls["load"] > before)
        other = service.ask(PROMPT[::-1], None, new_tokens=20)
        service.answer(other)
        assert not service.receiver.events[loading.request_id]
        store.let("load")
        assert service.cached(loading) == 48


def test_a_slow_store_is_asked_again_only_after_a_while(store: DictStore) -> None:
    """`auto` measures: once loading took longer than computing would, prompts are computed."""
    saved_by_one_engine(store)
    with serving(store, replace(LATER, restore="auto")) as service:
        store.held.add("load")
        assert service.cost(PROMPT) == COLD
        store.let("load")
        finds = store.calls["find"]
        service.memory.clear(ADA.owner).result(TIMEOUT_S)
        loads = service.memory.loads
        loads._seconds_per_token = lambda: 1.0  # not what this machine takes just now
        loads._seconds_per_page = 1e6
        assert service.cost(PROMPT) == COLD
        assert store.calls["find"] == finds
        service.memory.clear(ADA.owner).result(TIMEOUT_S)
        loads._measured_s = time.monotonic() - 61
        for _ in range(2):
            assert service.cost(PROMPT) == RESTORED, "the old measurement does not count any more"
            service.memory.clear(ADA.owner).result(TIMEOUT_S)


# --- saving -----------------------------------------------------------------------------------------------------------


def test_pages_are_saved_when_their_chat_is_idle(store: DictStore) -> None:
    now_s = 0.0
    with serving(store, replace(NOW, save_after_s=0.2)) as service:
        service.memory.saves._now_s = lambda: now_s
        service.cost(PROMPT)
        assert not store.pages
        now_s = 0.3
        store.wait_until(lambda: len(store.pages) == 13)
        service.cost(PROMPT)
        assert service.flush() == SavedPages(13, 13 * PAGE_BYTES, 0), "they are there already"
        assert len(store.pages) == 13


def test_saving_takes_its_time_only_while_something_is_computed(store: DictStore) -> None:
    with serving(store, NOW) as service:
        service.cost(PROMPT)
        store.wait_until(lambda: len(store.pages) == 13)
        assert store.paced == [False] * 13
        asked = threading.Event()

        def hold(_: Batch) -> None:
            asked.wait(TIMEOUT_S)

        service.runner.before_step = hold
        long, short = service.ask(PROMPT[::-1], None, new_tokens=70), service.ask(PROMPT[:25], EVE, new_tokens=1)
        asked.set()
        service.answer(short)
        service.answer(long)
        store.wait_until(lambda: len(store.pages) == 19)
        assert True in store.paced[13:]
    store.paced.clear()
    store.held.add("save")
    with serving(store) as service:
        long = service.ask(PROMPT[::-1], None, new_tokens=70)
        service.answer(service.ask(PROMPT[:25], EVE, new_tokens=1))
        waiting = service.memory.flush(EVE.owner)
        store.wait_until(lambda: len(store.paced) == 1)
        store.let("save")
        waiting.result(TIMEOUT_S)
        assert not any(store.paced), "somebody waits"


def test_only_at_logout(store: DictStore) -> None:
    with serving(store, replace(NOW, save="logout")) as service:
        service.cost(PROMPT)
        service.cost(PROMPT[::-1], EVE)
        assert service.memory.wait_s() is None
        assert service.flush(EVE.owner) == SavedPages(13, 13 * PAGE_BYTES, 0)
        assert len(store.pages) == 13
        assert service.flush() == SavedPages(13, 13 * PAGE_BYTES, 0)
    with serving(store, replace(NOW, save="never")) as service:
        service.cost(PROMPT, grant_for("bob"))
        assert service.flush() == SavedPages(0, 0, 0)
    assert len(store.pages) == 26


def test_pages_are_saved_before_they_are_used_for_something_else(store: DictStore) -> None:
    with serving(store, kv_pages=16) as service:
        service.cost(PROMPT)
        assert not store.pages
        service.cost(PROMPT[::-1], None)
        store.wait_until(lambda: len(store.pages) == 11)
        assert service.flush() == SavedPages(2, 2 * PAGE_BYTES, 0)
    with serving(store) as service:
        assert service.cost(PROMPT) == RESTORED


def test_more_copies_than_allowed_are_lost_and_counted(store: DictStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.memory.saves.MOST_COPIES_BYTES", 16 * PAGE_BYTES)
    store.held.add("save")
    with serving(store, kv_pages=32, max_context_tokens=128) as service:
        long = tuple(Random(1).choices(range(1000), k=120))
        service.cost(long, new_tokens=1)
        service.cost(long[::-1], None, new_tokens=1)
        assert service.memory.statistics().lost_pages == 30 - 2 - 16
        store.let("save")
    store.wait_until(lambda: not store._work)
    assert len(store.pages) == 16


def test_a_disk_that_refuses_costs_no_answer(store: DictStore) -> None:
    store.fails = {"save"}
    with serving(store) as service:
        assert service.cost(PROMPT) == COLD
        assert service.flush().saved_pages == 0
        assert service.cost(PROMPT) == RESTORED
        assert service.flush() == SavedPages(0, 0, 13)
        store.fails = set()
        assert service.cost(PROMPT) == RESTORED
        assert service.flush() == SavedPages(13, 13 * PAGE_BYTES, 0), "saved with the next turn"


def test_saving_leaves_the_order_in_which_pages_go(store: DictStore) -> None:
    with serving(store, kv_pages=16) as service:
        service.cost(PROMPT)
        service.flush()
        service.cost(PROMPT[:7][::-1], None, new_tokens=1)  # a page or two are taken
        pool = service.engine._scheduler.pool
        chain = [digest for digest, owner in service.memory.saves._owners.items() if owner == ADA.owner]
        assert [digest in pool._cached for digest in chain] == [True] * len(chain), "only free pages were taken"
        service.cost(PROMPT[::-1][:22], None, new_tokens=1)
        kept = [digest in pool._cached for digest in chain]
        assert kept == sorted(kept, reverse=True), "the end goes before the beginning"


def test_held_pages_are_given_up_when_a_request_needs_them(store: DictStore) -> None:
    """Two pages wait for a disk that hangs; the next prompt needs all pages there are."""
    store.held.add("save")
    store.threads = 2
    with serving(store, NOW, kv_pages=13, max_context_tokens=52) as service:
        service.cost(PROMPT, new_tokens=2)
        store.wait_until(lambda: store.calls["save"] == 2)
        assert service.cost(PROMPT[::-1], None, new_tokens=2) == len(PROMPT) + 1
        store.let("save")


def test_an_engine_that_stops_answers_those_who_wait(store: DictStore) -> None:
    store.held.add("save")
    with serving(store) as service:
        service.cost(PROMPT)
        waiting = service.memory.flush(ADA.owner)
        dropping = service.memory.drop(ADA.owner, None)
    assert waiting.result(TIMEOUT_S).saved_pages == 0
    dropping.result(TIMEOUT_S)
    with pytest.raises(Exception, match="the engine has ended"):
        service.memory.flush(None).result(TIMEOUT_S)


def test_who_waits_no_more_disturbs_nobody(store: DictStore) -> None:
    store.held.add("save")
    gate = threading.Event()
    with serving(store, before_step=lambda batch: gate.wait() and None) as service:
        request = service.ask(PROMPT)
        memory = service.memory
        futures: list[Future[Any]] = [memory.flush(None), memory.clear(EVE.owner), memory.drop(EVE.owner, None)]
        assert [future.cancel() for future in futures] == [True] * 3, "the engine is in a step"
        gate.set()
        service.answer(request)
        waiting = service.memory.flush(None)
        store.wait_until(lambda: store.calls["save"] > 0)
        assert not waiting.cancel(), "it has begun"
        store.let("save")
        assert waiting.result(TIMEOUT_S).saved_pages == 13
        assert service.engine.healthy


# --- leaving and forgetting -------------------------------------------------------------------------------------------


def test_a_user_who_leaves_takes_pages_out_of_memory(store: DictStore) -> None:
    with serving(store, replace(LATER, restore="never")) as service:
        service.cost(PROMPT, ADA)
        service.cost(PROMPT, EVE)
        page = next(iter(service.engine._scheduler.pool._cached.values()))
        assert service.memory.clear(ADA.owner).result(TIMEOUT_S) == 13
        assert (np.frombuffer(gathered(service.runner, page), np.int64) == -1).all(), "overwritten"
        assert service.cost(PROMPT, EVE) == RESTORED
        assert service.cost(PROMPT, ADA) == COLD
        assert service.memory.clear("0" * 32).result(TIMEOUT_S) == 0


def test_a_request_that_runs_while_its_user_leaves_keeps_nothing(store: DictStore) -> None:
    go = threading.Semaphore(1)
    with serving(store, replace(LATER, restore="never"), before_step=lambda batch: go.acquire() and None) as service:
        request = service.ask(PROMPT)
        cleared = service.memory.clear(ADA.owner)
        for _ in range(10):
            go.release()
        cleared.result(TIMEOUT_S)
        service.answer(request)
        for _ in range(10):
            go.release()
        assert service.cost(PROMPT) == COLD
        service.memory.clear(ADA.owner).result(TIMEOUT_S)
        assert service.flush() == SavedPages(0, 0, 0)


def test_nothing_of_a_forgotten_conversation_is_saved_later(store: DictStore) -> None:
    other = replace(ADA, conversation_key_id=bytes(16))
    store.held.add("save")
    with serving(store, NOW) as service:
        service.cost(PROMPT, ADA)
        service.cost(PROMPT[::-1], other)
        store.wait_until(lambda: store.calls["save"] == 1)
        dropped = service.memory.drop(ADA.owner, ADA.conversation_key_id)
        service.engine.abort("wake")
        assert not dropped.done(), "one page is being saved"
        store.let("save")
        dropped.result(TIMEOUT_S)
        before = {key for key in store.pages if key[0] == ADA.conversation_key_id}
        assert len(before) <= 1
        service.flush()
        assert {key for key in store.pages if key[0] == ADA.conversation_key_id} == before


# --- everything at once -------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32 - 1))
def test_no_fault_changes_a_token(seed: int) -> None:
    """Few pages, many chats, threads, and a store that forgets, fails and dawdles as chance has it."""
    rng = Random(seed)
    store = DictStore(PAGE_BYTES)
    store.threads = 2
    texts = [tuple(rng.choices(range(1000), k=rng.randrange(1, 60))) for _ in range(4)]
    grants = [grant_for(user, chat) for user in ("ada", "eve") for chat in ("one", "other")]
    for _ in range(3):
        options = MemoryOptions("idle", rng.choice([0.0, 0.001, 1e9]), rng.choice(["auto", "always"]), 1)
        guesses, pages, vocabulary = rng.choice([0, 4]), rng.choice([24, 40]), rng.choice([3, 1000])
        with serving(
            store, options, guess_tokens=guesses, kv_pages=pages, max_context_tokens=96, vocab_size=vocabulary
        ) as service:
            requests = []
            for _ in range(20):
                store.held = set(rng.sample(["find", "load", "save"], rng.choice([0, 0, 0, 1]))) - {"find"}
                store.let("nothing")
                store.fails = set(rng.sample(["find", "load", "save"], rng.choice([0, 0, 1])))
                store.missing = {rng.randrange(15)}
                prompt = rng.choice(texts)[: rng.randrange(1, 60)] + tuple(rng.choices(range(1000), k=rng.randrange(9)))
                prompt = tuple(token % vocabulary for token in prompt)
                request = service.ask(prompt, rng.choice([*grants, None]), new_tokens=rng.randrange(1, 12))
                if rng.random() < 0.2:
                    service.engine.abort(request.request_id)
                else:
                    requests.append(request)
                if rng.random() < 0.2:
                    service.memory.clear(rng.choice(grants).owner)
                if rng.random() < 0.1:
                    service.memory.drop(rng.choice(grants).owner, rng.choice([None, rng.choice(grants).shared_key_id]))
            store.let("find", "load", "save")
            for request in requests:
                service.answer(request)
            service.flush()
    store.close()


# --- the real folder ----------------------------------------------------------------------------------------------


@contextmanager
def folder_store(root: Path, **options: Any) -> Iterator[FolderStore]:
    store = FolderStore(
        open_folder(root, page_bytes=PAGE_BYTES), page_bytes=PAGE_BYTES, page_tokens=4, threads=2, **options
    )
    yield store
    store.close()


def test_with_the_real_folder_and_nothing_of_a_page_is_on_disk(tmp_path: Path) -> None:
    with folder_store(tmp_path) as store, serving(store) as service:
        assert service.cost(PROMPT) == COLD
        assert service.flush().saved_pages == 13
        contents = {gathered(service.runner, page) for page in service.engine._scheduler.pool._cached.values()}
    files = b"".join(path.read_bytes() for path in files_in(tmp_path))
    assert len(files_in(tmp_path)) == len(contents) == 13
    assert all(page[at : at + 8] not in files for page in contents for at in range(0, PAGE_BYTES, 8))
    assert all(key not in files for key in (ADA.conversation_key, ADA.names_key, ADA.shared_key))
    with folder_store(tmp_path) as store, serving(store) as service:
        assert service.cost(PROMPT, EVE) == COLD
        assert service.cost(PROMPT) == RESTORED
        assert store.counts.loaded_pages == 12


def test_damaged_files_are_computed_anew_and_saved_again(tmp_path: Path) -> None:
    with folder_store(tmp_path) as store, serving(store) as service:
        service.cost(PROMPT)
        service.flush()
    rng = Random(3)
    for round_ in range(20):
        for path in rng.sample(files_in(tmp_path), 1 + round_ % 3):
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        with folder_store(tmp_path) as store, serving(store) as service:
            assert RESTORED <= service.cost(PROMPT) <= COLD
            service.flush()
        assert len(files_in(tmp_path)) == 13


def damage(rng: Random, files: list[Path]) -> None:
    """Does something to a saved page."""
    path, other = rng.sample(files, 2)
    data = bytearray(path.read_bytes() if path.exists() else b"")
    kind = rng.randrange(6)
    if kind == 0 or not data:
        path.unlink(missing_ok=True)
    elif kind == 1:
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == 2 and other.exists():
        path.write_bytes(other.read_bytes())
    elif kind == 3:
        path.write_bytes(bytes(len(data)))
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def test_thousands_of_faults_and_not_one_wrong_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users' chats in turn, out of memory before each request, with twenty damages every time."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug here, and it takes most of the time
    rng = Random(11)
    text = tuple(rng.choices(range(1000), k=90))
    faults, restored, most = 0, 0, 10_000 if FULL else 1_000
    with folder_store(tmp_path) as store, serving(store, kv_pages=200) as service:
        while faults < most:
            grant = rng.choice([ADA, EVE])
            request = service.ask(text[: rng.randrange(20, 90)], grant)
            restored += service.cached(request)
            service.flush(grant.owner)
            service.memory.clear(grant.owner).result(TIMEOUT_S)
            files = files_in(tmp_path)
            for _ in range(20):
                damage(rng, files)
                faults += 1
        assert store.counts.damaged_pages > most / 100
    assert restored > most / 10


def test_a_disk_that_hangs_costs_the_deadline_and_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads of the store are inside a read; the prompt is computed, and saving waits for the disk."""
    with folder_store(tmp_path) as store, serving(store) as service:
        service.cost(PROMPT)
        service.flush()
    go, entered = threading.Event(), threading.Semaphore(0)
    read_into = disk.read_into

    def hangs(opened: int, room: memoryview) -> int:
        entered.release()
        assert go.wait(TIMEOUT_S)
        return read_into(opened, room)

    with folder_store(tmp_path) as store, serving(store, replace(LATER, restore="auto")) as service:
        monkeypatch.setattr(disk, "read_into", hangs)
        assert service.cost(PROMPT) == COLD
        assert service.memory.statistics().missed_deadlines == 1
        assert entered.acquire(timeout=TIMEOUT_S)
        assert entered.acquire(timeout=TIMEOUT_S)
        waiting = service.memory.flush(ADA.owner)
        assert service.cost(PROMPT, EVE) == COLD, "others are served"
        assert not waiting.done()
        go.set()
        assert waiting.result(TIMEOUT_S) == SavedPages(13, 13 * PAGE_BYTES, 0)
        assert service.cost(PROMPT) == RESTORED
    monkeypatch.undo()
    with folder_store(tmp_path) as store, serving(store) as service:
        assert service.cost(PROMPT) == RESTORED


def test_an_engine_that_ends_while_a_disk_hangs_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, entered = threading.Event(), threading.Semaphore(0)
    write_all = disk.write_all

    def hangs(opened: int, data: memoryview) -> None:
        entered.release()
        assert go.wait(TIMEOUT_S)
        write_all(opened, data)

    monkeypatch.setattr(disk, "write_all", hangs)
    with folder_store(tmp_path) as store:
        with serving(store) as service:
            service.cost(PROMPT)
            waiting = service.memory.flush(None)
            assert entered.acquire(timeout=TIMEOUT_S)
            assert service.cost(PROMPT) == RESTORED
        assert waiting.result(TIMEOUT_S) == SavedPages(0, 0, 13)
        go.set()
